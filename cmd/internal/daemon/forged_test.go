package daemon

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rstored/rstored/blockstore"
	"github.com/rstored/rstored/cmd/internal/telemetry"
	"github.com/rstored/rstored/nfs/client"
	"github.com/rstored/rstored/rdma"
	"github.com/rstored/rstored/rdma/cm"
	"github.com/rstored/rstored/rdma/link"
	"github.com/rstored/rstored/rdma/rdmatest/netns"
	"github.com/rstored/rstored/rdma/roce"
	"github.com/rstored/rstored/rdma/wire"
	"github.com/rstored/rstored/rpcrdma"
	"github.com/rstored/rstored/rpcrdma/rpc"
)

// TestForgedPackets: a host that forges source addresses, and does not see the packets of others,
// sends the server whatever it can think of in the name of a client. That client's data stays
// right, its connection goes on, and it can make another. The memory and the log of the server stay
// small, and its counters say what came. The three hosts are network namespaces; the attacker has a
// link of its own to the server.
func TestForgedPackets(t *testing.T) {
	for _, c := range []struct{ name, client, server string }{
		{"IPv4", "192.0.2.1", "192.0.2.2"},
		{"IPv6", "fd00::1", "fd00::2"},
	} {
		t.Run(c.name, func(t *testing.T) {
			testForgedPackets(t, netip.MustParseAddr(c.client),
				netip.MustParseAddr(c.server))
		})
	}
}

func testForgedPackets(t *testing.T, clientAddr, serverAddr netip.Addr) {
	hosts, server := netns.Pair(t, 4200, []string{"192.0.2.1/24", "fd00::1/64"}, []string{"192.0.2.2/24", "fd00::2/64"})
	a := newForger(t, server, clientAddr, serverAddr)

	logFile, err := os.Create(filepath.Join(t.TempDir(), "log"))
	if err != nil {
		t.Fatal(err)
	}
	defer logFile.Close()
	stderr := os.Stderr
	os.Stderr = logFile
	log, err := telemetry.NewLog("info", "json")
	os.Stderr = stderr
	if err != nil {
		t.Fatal(err)
	}
	cfg := testConfig(t, t.TempDir()+"=/e *(rw,no_root_squash,insecure)")
	at := netip.AddrPortFrom(serverAddr, 20049)
	cfg.RDMAListen, cfg.TCPListen = []string{at.String()}, nil
	var d *Daemon
	server.Do(func() { d, err = Start(cfg, nil, log) })
	if err != nil {
		t.Fatal(err)
	}
	defer stopDaemon(t, d)

	tap := &handshakes{}
	var dev *roce.Device
	hosts.Do(func() {
		dev, err = roce.Open(roce.Config{
			Addr: clientAddr,
			Wrap: func(_ int, l link.Link) link.Link { return tapLink{l, tap} },
		})
	})
	if err != nil {
		t.Fatal(err)
	}
	defer dev.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	newClient := func() (c *client.Client, dials *atomic.Int32) {
		dials = new(atomic.Int32)
		c = client.New(client.Config{
			Version: client.Version3, Peer: at.String(), Cred: &rpc.Cred{Flavor: rpc.AuthSys}, GiveUp: 30 * time.Second,
			Dial: func(ctx context.Context) (rpc.Client, error) {
				dials.Add(1)
				return rpcrdma.Dial(ctx, dev, at, rpcrdma.ClientConfig{})
			},
		})
		t.Cleanup(func() { _ = c.Close() })
		return c, dials
	}
	c, dials := newClient()
	root, err := c.Mount(ctx, "/e")
	if err != nil {
		t.Fatal(err)
	}
	a.req, a.rep = tap.get()
	if a.req.GUID == 0 || a.rep.QPN == 0 {
		t.Fatalf("the handshake was not seen: %+v, %+v", a.req, a.rep)
	}
	f, err := c.Create(ctx, root, "f", blockstore.Guarded, nil, [8]byte{})
	if err != nil {
		t.Fatal(err)
	}

	// The client writes and reads all the time.
	var rounds atomic.Int64
	stop := make(chan struct{})
	var busy sync.WaitGroup
	busy.Go(func() {
		rnd := rand.New(rand.NewPCG(1, 1))
		data, got := make([]byte, 300_000), make([]byte, 300_000)
		for {
			select {
			case <-stop:
				return
			default:
			}
			for i := range len(data) / 8 {
				binary.LittleEndian.PutUint64(data[8*i:], rnd.Uint64())
			}
			err := c.Upload(ctx, f.Handle, bytes.NewReader(data), 0, uint64(len(data)), nil)
			if err == nil {
				err = c.Download(ctx, f.Handle, at0(got), 0, uint64(len(got)), nil)
			}
			if err == nil && !bytes.Equal(got, data) {
				err = errors.New("the file has other data")
			}
			if err != nil {
				t.Errorf("the client: %v", err)
				return
			}
			rounds.Add(1)
		}
	})
	defer busy.Wait()
	defer close(stop)
	progress := func(what string) {
		t.Helper()
		from, begun := rounds.Load(), time.Now()
		for rounds.Load() < from+2 {
			if time.Since(begun) > 20*time.Second {
				t.Fatalf("%s: the client stands still", what)
			}
			time.Sleep(time.Millisecond)
		}
	}
	progress("before the attack")
	goroutines, heap := runtime.NumGoroutine(), heapNow()
	counters := func() map[string]uint64 { return d.Stats().Devices[serverAddr.String()] }
	before := counters()

	icmp := icmpReceived(t, server)
	for _, p := range []struct {
		name  string
		count int
		send  func(i int)
		moves []string // counters
	}{
		{"random bytes", 4000, a.randomBytes, []string{"DropMalformed", "DropVersion", "DropUnknownQPN"}},
		{"cut packets", 4000, a.cut, []string{"DropMalformed"}},
		{"opcodes to the queue pair", 4096, a.opcodes, []string{"DropOpcode"}},
		{"queue pairs by chance", 8000, a.guessedQPN, []string{"DropUnknownQPN"}},
		{"wrong ICRC", 8000, a.wrongICRC, []string{"ICRCErrors"}},
		{"wrong partition", 2000, a.wrongPKey, []string{"RC.DropPKey"}},
		{"another address", 2000, a.wrongAddress, []string{"RC.DropPeer"}},
		{"requests with packet numbers by chance", 4000, a.guessedPSN, []string{"RC.RxOutOfSequence"}},
		{"ACKs and NAKs", 4000, a.acks, nil},
		{"CNPs", 2000, a.cnps, []string{"RC.CNPHandled"}},
		{"ECN", 2000, a.marked, nil},
		{
			"messages of the connection manager", 8000, a.manage,
			[]string{"CM.DropUnknown", "CM.DropState", "CM.Unsupported", "CM.RxSIDRREQ", "DropQKey", "DropGSI"},
		},
		{"half-open connections of the client", 8000, a.halfOpen, []string{"CM.HalfOpenEvicted"}},
		{"half-open connections of anybody", 8000, a.halfOpenOfAnybody, []string{"CM.HalfOpenEvicted"}},
		{"REQs to closed ports", 4000, a.closedPort, []string{"CM.TxREJ"}},
		{"REQs with too large a path MTU", 2000, a.largeMTU, []string{"CM.TxREJ"}},
		{"ICMP", 4096, a.icmp, nil},
	} {
		was, begun, did := counters(), time.Now(), rounds.Load()
		for i := range p.count {
			p.send(i)
			if i%64 == 63 {
				time.Sleep(time.Millisecond)
			}
			if i == p.count/2 && strings.HasPrefix(p.name, "half-open") {
				other, _ := newClient()
				if _, err := other.Mount(ctx, "/e"); err != nil {
					t.Errorf("%s: another connection of the client: %v", p.name, err)
				}
			}
		}
		took := time.Since(begun)
		progress(p.name)
		is := counters()
		for _, name := range p.moves {
			if is[name] == was[name] {
				t.Errorf("%s: the counter %s did not move", p.name, name)
			}
		}
		t.Logf("%-40s %5d packets in %4d ms, %3d rounds of the client, %d queue pairs", p.name, p.count, took.Milliseconds(),
			rounds.Load()-did, is["QPs"])
	}
	if a.err != nil {
		t.Errorf("the attacker cannot send: %v", a.err)
	}
	if n := icmpReceived(t, server) - icmp; n < 4096/2 {
		t.Errorf("%d messages of ICMP arrived", n)
	}

	if n := dials.Load(); n != 1 {
		t.Errorf("the client connected %d times", n)
	}
	after := counters()
	if grew := int64(heapNow()) - int64(heap); grew > 64<<20 {
		t.Errorf("the heap grew by %d MiB", grew>>20)
	}
	if n := runtime.NumGoroutine(); n > goroutines+64 {
		t.Errorf("%d goroutines, %d before", n, goroutines)
	}
	if after["QPs"] > 512+16 {
		t.Errorf("%d queue pairs", after["QPs"])
	}
	if after["RC.RxPackets"] == before["RC.RxPackets"] {
		t.Error("the counters are not those of the device")
	}
	if _, err := logFile.Seek(0, io.SeekStart); err != nil {
		t.Fatal(err)
	}
	text, err := io.ReadAll(logFile)
	if err != nil {
		t.Fatal(err)
	}
	if n := bytes.Count(text, []byte("\n")); n > 2000 {
		t.Errorf("%d lines of log, %d bytes, for %d packets", n, len(text), a.sent)
	}
	t.Logf("%d packets, %d lines of log, heap %d KiB before and %d after", a.sent, bytes.Count(text, []byte("\n")),
		heap>>10, heapNow()>>10)
}

// icmpReceived is how many messages of ICMP a host has received, of both versions.
func icmpReceived(t *testing.T, host *netns.Space) (n int) {
	t.Helper()
	out, err := host.Run("cat", "/proc/net/snmp", "/proc/net/snmp6")
	if err != nil {
		t.Fatal(err)
	}
	four := 0
	for line := range strings.Lines(out) {
		if w := strings.Fields(line); w[0] == "Icmp:" && w[1] != "InMsgs" {
			four, err = strconv.Atoi(w[1])
		} else if w[0] == "Icmp6InMsgs" {
			n, err = strconv.Atoi(w[1])
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return n + four
}

func heapNow() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// at0 is memory to write at offsets of.
type at0 []byte

// WriteAt implements io.WriterAt.
func (b at0) WriteAt(p []byte, off int64) (int, error) { return copy(b[off:], p), nil }

// handshakes are the first REQ that a device sends, and the REP to it.
type handshakes struct {
	mu  sync.Mutex
	req cm.REQ
	rep cm.REP
}

func (h *handshakes) get() (cm.REQ, cm.REP) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.req, h.rep
}

func (h *handshakes) see(mad []byte) {
	head, err := cm.ParseHeader(mad)
	if err != nil {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case head.Attr == cm.AttrREQ && h.req.GUID == 0:
		h.req = cm.ParseREQ(mad)
	case head.Attr == cm.AttrREP && h.rep.QPN == 0:
		h.rep = cm.ParseREP(mad)
	}
}

// tapLink sees the handshakes of a device.
type tapLink struct {
	link.Link
	tap *handshakes
}

// Send implements link.Link.
func (l tapLink) Send(b *wire.Batch) error {
	for i := range b.D {
		if d := &b.D[i]; wire.Opcode(d.Hdr[0]) == wire.UDSendOnly {
			l.tap.see(d.Payload[0])
		}
	}
	return l.Link.Send(b)
}

// Recv implements link.Link.
func (l tapLink) Recv(rx *link.Rx, deadline rdma.Time) (int, error) {
	n, err := l.Link.Recv(rx, deadline)
	var p wire.Packet
	for i := range n {
		if p.Parse(rx.D[i].Data) == nil && p.Op == wire.UDSendOnly {
			l.tap.see(p.Payload)
		}
	}
	return n, err
}

// forger sends packets with any source address to the server, on its own Ethernet. It knows the REQ
// and the REP of the client's connection; what it sends has at most one of the numbers that only
// the two hosts can know.
type forger struct {
	rnd            *rand.Rand
	fd             int
	to             unix.SockaddrLinklayer
	client, server netip.Addr
	req            cm.REQ
	rep            cm.REP
	sent           int
	err            error
}
