package udp

import (
	"bytes"
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"testing"

	"github.com/rstored/rstored/rdma"
	"github.com/rstored/rstored/rdma/link"
	"github.com/rstored/rstored/rdma/wire"
	"golang.org/x/sys/unix"
)

// mapping is a mapped file in memory, as a store lends it.
type mapping struct {
	file *os.File
	mem  []byte
	fail error
	n    int // copies
}

func mapped(t testing.TB, data []byte) *mapping {
	t.Helper()
	name := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(name, data, 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := os.OpenFile(name, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	mem, err := unix.Mmap(int(f.Fd()), 0, len(data), unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		unix.Munmap(mem)
		f.Close()
	})
	return &mapping{file: f, mem: mem}
}

func (m *mapping) Copy(dst, src []byte) error {
	m.n++
	if m.fail != nil {
		return m.fail
	}
	n, _ := m.file.ReadAt(dst, int64(rdma.Offset(src, m.mem)))
	clear(dst[n:])
	return nil
}

// TestVolatilePayload sends packets from a file that changes while they are sent.
func TestVolatilePayload(t *testing.T) {
	const page, pages = 4096, 8
	data := make([]byte, page*pages)
	for i := range data {
		data[i] = byte(i/page + 1)
	}
	cut := bytes.Clone(data)
	clear(cut[2*page:])
	changed := bytes.Clone(data)
	changed[0] = 99
	for i, c := range []struct {
		name   string
		noGSO  bool
		again  bool
		fail   bool
		before func(m *mapping) error // the packets are sent
		// between runs after the checksums and before the system call.
		between func(m *mapping) error
		want    []byte
		bad     int // packets whose ICRC is wrong
		copied  uint64
		faults  bool
	}{
		{name: "unchanged", want: data},
		{name: "sent again", again: true, want: data, copied: pages},
		{
			name: "cut off before", before: func(m *mapping) error { return m.file.Truncate(2 * page) }, want: cut,
			copied: pages, faults: true,
		},
		{
			name: "cut off before, no GSO", noGSO: true, before: func(m *mapping) error { return m.file.Truncate(2 * page) },
			want: cut, copied: pages, faults: true,
		},
		{
			name: "cut off in between", between: func(m *mapping) error { return m.file.Truncate(2 * page) }, want: cut,
			copied: pages, faults: true,
		},
		{
			name: "cut off in between, no GSO", noGSO: true,
			between: func(m *mapping) error { return m.file.Truncate(2 * page) }, want: cut, copied: pages - 2, faults: true,
		},
		{
			name: "empty", before: func(m *mapping) error { return m.file.Truncate(0) }, want: make([]byte, len(data)),
			copied: pages, faults: true,
		},
		{
			name: "changed in between", between: func(m *mapping) error { _, err := m.file.WriteAt([]byte{99}, 0); return err },
			want: changed, bad: 1,
		},
		{
			name: "not to be had", before: func(m *mapping) error { return m.file.Truncate(0) }, fail: true,
			want: make([]byte, len(data)), bad: pages, copied: pages, faults: true,
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			at := func(n int) netip.Addr { return netip.AddrFrom4([4]byte{127, 91, 7, byte(2*i + n)}) }
			a := opened(t, Config{Addr: at(1), NoGSO: c.noGSO})
			b := opened(t, Config{Addr: at(2)})
			m := mapped(t, data)
			if c.fail {
				m.fail = errors.New("disk")
			}
			f := &wire.Flow{Src: a.LocalAddr(), Dst: b.LocalAddr()}
			batch := wire.NewBatch(64)
			for i := range pages {
				p := wire.Packet{Op: wire.WriteMiddle, PSN: wire.PSN(i), PKey: wire.DefaultPKey}
				batch.Add(f, &p, [][]byte{m.mem[i*page : (i+1)*page]})
				d := &batch.D[i]
				d.Volatile, d.Retransmit = m, c.again
			}
			if c.before != nil {
				if err := c.before(m); err != nil {
					t.Fatal(err)
				}
			}
			a.tx.prepare(batch.D)
			for !a.tx.tryBuild(batch.D) {
			}
			if c.between != nil {
				if err := c.between(m); err != nil {
					t.Fatal(err)
				}
			}
			n, err := a.tx.transmit(batch.D)
			if err = errors.Join(err, a.tx.sendAll(batch.D[n:])); err != nil {
				t.Fatal(err)
			}
			rx := link.NewRx(8, 1<<16)
			var p wire.Packet
			from := &wire.Flow{Dst: b.LocalAddr()}
			bad := 0
			for i, deadline := 0, b.Now()+5*rdma.Second; i < pages; {
				if _, err := b.Recv(rx, deadline); err != nil || b.Now() > deadline {
					t.Fatalf("after %d datagrams: %v", i, err)
				}
				for _, d := range rx.D {
					from.Src, from.SrcPort = d.Src, d.SrcPort
					if ok, _, _ := wire.VerifyICRC(from, d.Data, 0); !ok {
						bad++
					}
					if err := p.Parse(d.Data); err != nil || p.PSN != wire.PSN(i) {
						t.Fatalf("datagram %d: %v PSN %d", i, err, p.PSN)
					}
					if want := c.want[i*page : (i+1)*page]; !bytes.Equal(p.Payload, want) {
						t.Errorf("datagram %d is %v..., not %v", i, p.Payload[:4], want[:4])
					}
					i++
				}
			}
			s := a.Stats()
			if bad != c.bad || s.TxCopied != c.copied || s.TxFaults > 0 != c.faults || s.TxVoid > 0 != c.fail {
				t.Errorf("%d bad checksums, counters %+v", bad, s)
			}
		})
	}
}

// TestOtherFaults: a fault in memory that is not volatile is not recovered.
func TestOtherFaults(t *testing.T) {
	a := opened(t, Config{Addr: netip.MustParseAddr("127.91.8.1")})
	m := mapped(t, make([]byte, 8192))
	f := &wire.Flow{Src: a.LocalAddr(), Dst: netip.MustParseAddr("127.91.8.2")}
	batch := wire.NewBatch(8)
	other := &mapping{}
	batch.Add(f, &wire.Packet{Op: wire.WriteMiddle}, [][]byte{make([]byte, 4096)})
	batch.D[0].Volatile = other
	batch.Add(f, &wire.Packet{Op: wire.WriteMiddle}, [][]byte{m.mem[:4096]})
	if err := m.file.Truncate(0); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if recover() == nil {
			t.Error("no panic")
		}
	}()
	a.Send(batch)
}
