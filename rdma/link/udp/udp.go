package udp

import (
	"errors"
	"fmt"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rstored/rstored/rdma"
	"github.com/rstored/rstored/rdma/link"
	"github.com/rstored/rstored/rdma/wire"
)

// Config describes a link.
type Config struct {
	// Addr is the local address. Invalid means a free loopback address, 127.x.y.z, chosen at
	// random, for a client whose server is on the same host: both need port 4791.
	Addr netip.Addr

	// ReceiveBuffer and SendBuffer are the socket's buffers in bytes; 0 means
	// DefaultReceiveBuffer and DefaultSendBuffer. The system may give less.
	ReceiveBuffer int
	SendBuffer    int

	// NoGSO and NoGRO turn segmentation offload off, for a network card that
	// numbers segments differently, and for tests.
	NoGSO bool
	NoGRO bool

	// Shard and Shards, if Shards is over 1, make the socket one of Shards (a
	// power of two) that share the address; the sockets must be opened in the
	// order of Shard. Datagrams go to the socket whose number the low bits of
	// the destination QPN are, those for QP1 to the first.
	Shard  int
	Shards int

	// Sockets, if not nil, may have the socket of an earlier process.
	Sockets Sockets
}

// Sockets stores sockets that outlive the process: for the next process, and from the one before.
type Sockets interface {
	// Take returns the bound socket of a shard, if an earlier process left it. The link closes it.
	Take(at netip.AddrPort, shard, shards int) (fd int, ok bool)
	// Keep stores a copy of the descriptor of a socket that was opened.
	Keep(at netip.AddrPort, shard, shards, fd int)
	// Forget closes the copy, because the socket is about to be closed.
	Forget(at netip.AddrPort, shard, shards int)
}

// Defaults of Config. A datagram of 1 KiB is charged with more than twice its
// size, so the receive buffer holds some 25 MiB of the smallest packets.
const (
	DefaultReceiveBuffer = 64 << 20
	DefaultSendBuffer    = 8 << 20
)

// Stats count what happened on a link.
type Stats struct {
	RxDatagrams  uint64
	RxBytes      uint64
	RxMerged     uint64 // datagrams that arrived merged into larger buffers
	RxCalls      uint64 // recvmmsg calls that brought something
	RxTruncated  uint64 // buffers longer than a slot
	RxNoRoom     uint64 // datagrams merged into a buffer beyond the room of the Rx
	RxErrors     uint64 // errors that the socket reported on receive
	TxDatagrams  uint64
	TxBytes      uint64
	TxSegmented  uint64 // datagrams that left as segments of larger buffers
	TxCalls      uint64 // sendmmsg calls
	TxNoBuffers  uint64 // datagrams lost to ENOBUFS or a send buffer that stayed full
	TxTooBig     uint64 // datagrams over the path MTU
	TxErrors     uint64 // datagrams lost to other errors, such as no route
	TxFaults     uint64 // volatile payloads that were truncated meanwhile
	TxCopied     uint64 // datagrams with volatile payload that were sent from a copy
	TxVoid       uint64 // of these, datagrams whose payload could not be copied: peers drop them
	TxWaits      uint64 // times the send buffer was full
	GSODisabled  uint64 // times segmentation was turned off for not working
	GSOPeersOff  uint64 // peers that get no segments, because segments arrived wrong
	Waits        uint64 // times Recv went to sleep
	RcvBufBytes  int    // receive buffer that the system granted
	SndBufBytes  int
	GSOActive    bool
	GROActive    bool
	SourcePortTx uint16
}

// Link is one socket. It implements link.Link.
type Link struct {
	cfg   Config
	fd    int
	wait  waiter
	addr  netip.Addr
	scope uint32 // interface index of a link-local address
	port  uint16
	mtu   int

	stats Stats
	rx    receiver
	tx    sender

	closed bool
}

var _ link.Link = (*Link)(nil)

// Open opens the socket of a link.
func Open(cfg Config) (*Link, error) {
	if cfg.ReceiveBuffer <= 0 {
		cfg.ReceiveBuffer = DefaultReceiveBuffer
	}
	if cfg.SendBuffer <= 0 {
		cfg.SendBuffer = DefaultSendBuffer
	}
	if cfg.Shards > 1 && cfg.Shards&(cfg.Shards-1) != 0 {
		return nil, fmt.Errorf("%d sockets cannot share an address: the number must be a power of two", cfg.Shards)
	}
	if !cfg.Addr.IsValid() {
		return openLoopback(cfg)
	}
	cfg.Addr = cfg.Addr.Unmap()
	if cfg.Addr.IsUnspecified() || cfg.Addr.IsMulticast() {
		return nil,
			fmt.Errorf("%v cannot be an RDMA address: the packets' checksum covers the address they come from, "+
				"so it must be one address of this host", cfg.Addr)
	}
	return open(cfg)
}

func open(cfg Config) (*Link, error) {
	l := &Link{cfg: cfg, addr: cfg.Addr, port: wire.Port}
	l.rx.l, l.tx.l = l, l
	var err error
	if l.mtu, l.scope, err = interfaceOf(cfg.Addr); err != nil {
		return nil, err
	}
	taken := false
	if s := cfg.Sockets; s != nil {
		l.fd, taken = s.Take(netip.AddrPortFrom(l.addr, l.port), cfg.Shard, max(cfg.Shards, 1))
	}
	if !taken {
		if l.fd, err = l.socket(); err != nil {
			return nil, err
		}
	} else if err := unix.SetNonblock(l.fd, true); err != nil {
		unix.Close(l.fd)
		return nil, fmt.Errorf("the inherited socket of %v: %w", cfg.Addr, err)
	}
	if err := l.setup(); err != nil {
		unix.Close(l.fd)
		return nil, err
	}
	if err := l.wait.open(l); err != nil {
		unix.Close(l.fd)
		return nil, fmt.Errorf("waiting on the RDMA socket: %w", err)
	}
	if s := cfg.Sockets; s != nil && !taken {
		s.Keep(netip.AddrPortFrom(l.addr, l.port), cfg.Shard, max(cfg.Shards, 1), l.fd)
	}
	return l, nil
}

// clockBase is common to all links of the process, so that their times can be compared.
var clockBase = time.Now()

// Now reads the monotonic clock. It never returns 0.
func (l *Link) Now() rdma.Time { return rdma.Time(time.Since(clockBase)) + 1 }

// LocalAddr is the address that the socket is bound to.
func (l *Link) LocalAddr() netip.Addr { return l.addr }

// MTU is the MTU of the interface that has the address.
func (l *Link) MTU() int { return l.mtu }

// Stats returns the link's counters. To be called on the loop.
func (l *Link) Stats() Stats {
	s := l.stats
	s.GSOActive, s.GROActive, s.SourcePortTx = l.tx.gso, l.rx.gro, l.port
	return s
}

// Close closes the socket.
func (l *Link) Close() error {
	if l.closed {
		return link.ErrClosed
	}
	l.closed = true
	if s := l.cfg.Sockets; s != nil {
		s.Forget(netip.AddrPortFrom(l.addr, l.port), l.cfg.Shard, max(l.cfg.Shards, 1))
	}
	return errors.Join(l.wait.close(), unix.Close(l.fd))
}

// Wake makes the Recv under way, or the next one, return. It may be called from
// any goroutine.
func (l *Link) Wake() { l.wait.wake() }

// Recv implements link.Link.
func (l *Link) Recv(rx *link.Rx, deadline rdma.Time) (int, error) {
	if l.closed {
		return 0, link.ErrClosed
	}
	rx.Reset()
	l.rx.use(rx)
	if l.rx.receive() && deadline >= 0 {
		if err := l.wait.sleep(deadline); err != nil {
			return 0, fmt.Errorf("%w: %w", link.ErrClosed, err)
		}
	}
	return l.rx.result()
}
