package roce

import (
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/netip"
	"sync"

	crand "crypto/rand"

	"github.com/rstored/rstored/rdma"
	"github.com/rstored/rstored/rdma/link"
	"github.com/rstored/rstored/rdma/link/udp"
	"github.com/rstored/rstored/rdma/wire"
)

// Config describes a device. The zero value is a device on a free loopback address.
type Config struct {
	// Addr is the local address. Invalid means a free address of 127.0.0.0/8,
	// for a client whose server is on the same host: RoCEv2 has one port, so
	// each process needs an address of its own. See SourceFor.
	Addr netip.Addr

	// Shards is the number of loops, a power of two; 0 means 1.
	Shards int

	// Logger receives what an operator should know; nil for none.
	Logger *slog.Logger

	// NoGSO and NoGRO turn off segmentation offload, see udp.Config.
	NoGSO bool
	NoGRO bool
	// ReceiveBuffer and SendBuffer are socket buffer sizes in bytes; 0 means
	// the defaults of rdma/link/udp.
	ReceiveBuffer int
	SendBuffer    int

	// Sockets, if not nil, stores sockets that outlive the process, see udp.Config.
	Sockets udp.Sockets

	// PathMTUMax bounds the path MTU of connections; 0 means 4096. What the
	// interface carries bounds it too.
	PathMTUMax rdma.MTU

	// PKeys is the table of partition keys (IBTA 10.9), in which bit 15 says that the device
	// is a full member; nil means 0xffff alone, the default partition. Connections are
	// made within partitions of the table only.
	PKeys []uint16

	// AckTimeout is the code of the local ACK timeout that our REQs propose (4.096 us * 2^n); 0
	// means DefaultAckTimeout. A connection ends when its peer is silent for RetryCount times as
	// long.
	AckTimeout uint8

	// CNPDSCP is the DSCP of congestion notifications; 0 means that of the connection.
	CNPDSCP uint8

	// LocalICRC makes packets to and from devices on this host carry an ICRC as all others do. Two
	// devices omit it unless one of them has LocalICRC, see agrees.
	LocalICRC bool

	// ConnectLimit bounds how long an unanswered REQ is repeated; 0 means 8
	// seconds.
	ConnectLimit rdma.Time

	// Ledger is memory that outlives the process, such as a shared mapping of a file, with
	// cm.LedgerRecord bytes for each connection. At first it is zero; later it has what an earlier
	// device of the address left. After a crash, the next device uses it to end the connections at
	// once. Without a ledger, peers detect the crash by their timeouts.
	Ledger []byte

	// From, if not nil, describes the device of another process on the same sockets. Its
	// connections can be restored by RestoreConn. The device receives and sends nothing before
	// Start.
	From *Snapshot

	// Starting says that listeners are about to be opened: until Device.Started, REQs for ports
	// that are not open yet wait. It is for a device on the sockets of an earlier process, which
	// peers reach before the listeners are open.
	Starting bool

	// QPMax bounds the queue pairs of the device; 0 means DefaultQPMax.
	QPMax int

	// Random gives unpredictable words for QP numbers, sequence numbers and
	// keys; nil means a generator seeded by the system. It is called under a
	// lock of the device.
	Random func() uint32

	// OnFailure, if set, gets the record of each connection that ended badly and of each
	// REQ that was refused. It is called on a loop, and must not wait.
	OnFailure func(Record)

	// Wrap, if set, gets the link of each shard and returns the one to use, such as one that
	// captures packets.
	Wrap func(shard int, l link.Link) link.Link
}

// Defaults and limits of a device.
const (
	// DefaultAckTimeout is 2.1 s, as the Linux CM uses it.
	DefaultAckTimeout = 19
	DefaultQPMax      = 65536
	// MaxRdAtomic is the most READs and atomics that a queue pair has in flight, in either
	// direction.
	MaxRdAtomic = 16
	// ShardsMax is the largest number of shards.
	ShardsMax = 64

	minRNRTimer    = 12 // 0.64 ms, in our RNR NAKs
	targetAckDelay = 15 // 134 ms, in our REPs, as rxe
	hopLimit       = 64

	dscpShift = 2 // of a DSCP in a traffic class, above ECN

	// headersMax are the bytes around the payload of a packet, with the margin by which the Linux
	// CM chooses a path MTU: 40 bytes of IPv6 (or GRH), 8 of UDP, 12 of BTH, 4 of XRC, 28 of
	// atomics, 4 of ICRC.
	headersMax = 96
	// headersRC4 and headersRC6 are the most bytes around a full payload of an RC packet: IP, UDP,
	// BTH, RETH, immediate and ICRC.
	headersRC4 = 20 + 8 + 12 + 16 + 4 + 4
	headersRC6 = headersRC4 + 20

	batchSize = 256 // datagrams of one turn
	rxSlots   = 32
	rxSlot    = 1 << 16
)

func (c *Config) setDefaults() error {
	if c.Shards == 0 {
		c.Shards = 1
	}
	if c.Shards < 0 || c.Shards > ShardsMax || c.Shards&(c.Shards-1) != 0 {
		return fmt.Errorf("a device cannot have %d shards: the number must be a power of two, at most %d", c.Shards,
			ShardsMax)
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if c.PathMTUMax == 0 {
		c.PathMTUMax = 4096
	}
	if c.PathMTUMax.Code() == 0 {
		return fmt.Errorf("the path MTU %d is not one of 256, 512, 1024, 2048 and 4096", c.PathMTUMax)
	}
	if c.AckTimeout == 0 {
		c.AckTimeout = DefaultAckTimeout
	}
	if c.AckTimeout > 31 {
		return fmt.Errorf("the ACK timeout code %d is over 31", c.AckTimeout)
	}
	if c.CNPDSCP > rdma.DSCPMax {
		return fmt.Errorf("a DSCP is at most %d, not %d", rdma.DSCPMax, c.CNPDSCP)
	}
	if c.PKeys == nil {
		c.PKeys = []uint16{wire.DefaultPKey}
	}
	if err := checkPKeys(c.PKeys); err != nil {
		return err
	}
	if c.QPMax <= 0 {
		c.QPMax = DefaultQPMax
	}
	if c.Random == nil {
		var seed [32]byte
		_, _ = crand.Read(seed[:]) // does not fail
		c.Random = rand.New(rand.NewChaCha8(seed)).Uint32
	}
	return nil
}

// source is Config.Random for several goroutines.
type source struct {
	mu sync.Mutex
	f  func() uint32
}

func (s *source) uint32() uint32 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.f()
}

func (s *source) uint64() uint64 { return uint64(s.uint32())<<32 | uint64(s.uint32()) }

// SourceFor is the address to open a device on that is to reach remote. It is the address that
// routing chooses, or the invalid address (see Config.Addr) if remote is on this host.
func SourceFor(remote netip.Addr) (netip.Addr, error) { return udp.SourceFor(remote) }
