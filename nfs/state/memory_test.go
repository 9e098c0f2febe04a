package state

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"runtime"
	"testing"
	"time"

	"github.com/rstored/rstored/nfs"
)

// wide is what a client asks for that wants as much as it can get.
var wide = Channel{MaxRequest: 1 << 20, MaxResponse: 1 << 20, MaxCached: 8 << 10, MaxOps: 64, MaxSlots: 256}

// comer makes clients of one host.
type comer struct {
	s        *Server
	from     From
	noExport bool
	n        int
}

func comerAt(s *Server, i int) *comer {
	var a [4]byte
	binary.BigEndian.PutUint32(a[:], 10<<24|uint32(i))
	return &comer{s: s, from: From{Host: netip.AddrFrom4(a)}}
}

// exchange makes a client record, session a client with a session.
func (c *comer) exchange(now time.Time) (Exchanged, nfs.Status) {
	c.n++
	return c.s.ExchangeID(now, &ExchangeID{
		Owner:    fmt.Append(nil, "client ", c.n, " of ", c.from.Host),
		Verifier: verifier(1), Principal: root, From: c.from, NoExport: c.noExport,
	})
}

func (c *comer) session(now time.Time) (*Session, nfs.Status) {
	got, st := c.exchange(now)
	if st != nfs.OK {
		return nil, st
	}
	made, st := c.s.CreateSession(now,
		&CreateSession{
			Client: got.Client, Sequence: got.Sequence, Principal: root, From: c.from, NoExport: c.noExport,
			Minor: 1, Fore: wide,
		})
	if st != nfs.OK {
		return nil, st
	}
	return c.s.Session(made.ID), nfs.OK
}

// fill uses all slots, each with a reply as long as may be, and opens as much as it can.
func (c *comer) fill(t *testing.T, now time.Time, x *Session, opens int) (opened int) {
	t.Helper()
	reply := make([]byte, x.Fore.MaxCached)
	for i := range x.Fore.MaxSlots {
		u, v, st := c.s.Sequence(now, &Request{
			Session: x.ID, From: c.from, Slot: i, Sequence: 1, Digest: 1, Ops: 1,
			Minor: 1,
		})
		if v != Execute || st != nfs.OK {
			t.Fatal(v, st)
		}
		u.Finish(reply)
	}
	_ = x.Client.ReclaimComplete()
	for ; opened < opens; opened++ {
		owner := fmt.Appendf(nil, "%1000d", opened)
		if _, st := x.Client.Open(now, &Open{Owner: owner, File: loadFile(c.n*opens + opened), Access: Read}); st != nfs.OK {
			if st != nfs.ErrJukebox {
				t.Fatal(st)
			}
			return opened
		}
	}
	return opened
}

// TestMemoryOfOneHost: a host that makes as many clients as it can, with all that they can have,
// takes its share of the heap and no more, and the others do not notice it.
func TestMemoryOfOneHost(t *testing.T) {
	const all, host = 64 << 20, 16 << 20
	s := New(Config{Boot: 7, Memory: all, ClientMemory: host})
	base := heap()
	evil := comerAt(s, 1)
	refused, sessions, opens := 0, 0, 0
	var first, last *Session
	for range 5000 {
		x, st := evil.session(begin)
		if st != nfs.OK {
			if st != nfs.ErrJukebox {
				t.Fatal(st)
			}
			refused++
			continue
		}
		if first == nil {
			first = x
		}
		last = x
		sessions++
		opens += evil.fill(t, begin, x, 3)
	}
	took := int64(heap() - base)
	t.Logf("%d sessions, the last with %d slots, %d opens, %d refused, %d bytes by the account, %d of the heap", sessions,
		last.Fore.MaxSlots, opens, refused, s.Memory().Bytes, took)
	if refused == 0 || s.Memory().Refused == 0 {
		t.Error("nothing was refused")
	}
	if n := s.Memory().Bytes; n > host || took > host+host/8 {
		t.Errorf("%d bytes by the account, %d of the heap, of %d", n, took, host)
	}
	if last.Fore.MaxSlots >= first.Fore.MaxSlots {
		t.Errorf("the last session has %d slots, the first %d", last.Fore.MaxSlots, first.Fore.MaxSlots)
	}
	other, st := comerAt(s, 2).session(begin)
	if st != nfs.OK || other.Fore.MaxCached != wide.MaxCached || other.Fore.MaxSlots < 64 {
		t.Errorf("another host: %+v, %v", other, st)
	}
	for _, c := range s.sortedClients() {
		s.remove(c)
	}
	if n := s.Memory().Bytes; n != 0 || len(s.mem.hosts) != 0 {
		t.Errorf("%d bytes and %d hosts are left", n, len(s.mem.hosts))
	}
	runtime.KeepAlive(s)
}

// TestMemoryWithoutExport: hosts that no export admits get little, whatever their number, and what
// is for others stays.
func TestMemoryWithoutExport(t *testing.T) {
	const all = 64 << 20
	s := New(Config{Boot: 7, Memory: all, ClientMemory: all})
	var mine *comer
	for i := range 5000 {
		c := comerAt(s, i)
		c.noExport = true
		if _, st := c.session(begin); st == nfs.OK && mine == nil {
			mine = c
		}
	}
	if n := s.Memory().Bytes; n > all/noExportPart {
		t.Errorf("%d bytes of %d", n, all/noExportPart)
	}
	x, st := comerAt(s, 6000).session(begin)
	if st != nfs.OK || x.Fore.MaxSlots < 64 {
		t.Errorf("a client of an export: %+v, %v", x, st)
	}
	// An export admits the client now.
	mine.noExport = false
	if x, st := mine.session(begin); st != nfs.OK || x.Fore.MaxSlots < 64 {
		t.Errorf("a client that an export admits now: %+v, %v", x, st)
	}
	one := New(Config{Boot: 7, Memory: all, ClientMemory: all})
	c := comerAt(one, 1)
	c.noExport = true
	for range 1000 {
		_, _ = c.session(begin)
	}
	if n := one.Memory().Bytes; n > all/noExportPart/noExportHostPart {
		t.Errorf("one host without an export has %d bytes", n)
	}
}

// TestMemoryForMounts: hosts without a mount cannot take what those with one need, and go first.
func TestMemoryForMounts(t *testing.T) {
	const all = 16 << 20
	s := New(Config{Boot: 7, Memory: all, ClientMemory: all})
	mounted := comerAt(s, 1)
	x, st := mounted.session(begin)
	if st != nfs.OK {
		t.Fatal(st)
	}
	refused := 0
	for i := range 20_000 {
		if _, st := comerAt(s, 2+i).exchange(begin); st != nfs.OK {
			refused++
		}
	}
	if n := s.Memory().Bytes; refused == 0 || n > all-all/reservedPart {
		t.Errorf("%d refused, %d bytes", refused, n)
	}
	if n := mounted.fill(t, begin, x, 200); n != 200 {
		t.Errorf("a client with a mount opened %d files", n)
	}
	if _, st := mounted.session(begin); st != nfs.OK {
		t.Errorf("a second client of the host: %v", st)
	}
	// Those that never confirmed their ID go when somebody needs the room.
	y, st := comerAt(s, 30_000).session(begin.Add(2 * time.Second))
	if st != nfs.OK || y.Fore.MaxSlots < 16 {
		t.Errorf("a new client: %+v, %v", y, st)
	}
	if s.Session(x.ID) == nil {
		t.Error("the client with a mount is gone")
	}
}

// TestMemoryOfSilentClients: who is silent for longer than his lease keeps what he has until others
// need the room.
func TestMemoryOfSilentClients(t *testing.T) {
	const all = 16 << 20
	s := New(Config{Boot: 7, Memory: all, ClientMemory: all})
	var list []*Session
	for i := range 1000 {
		c := comerAt(s, 1+i%10)
		c.n = i
		x, st := c.session(begin)
		if st != nfs.OK {
			break
		}
		c.fill(t, begin, x, 1)
		list = append(list, x)
	}
	now := begin.Add(s.Lease() + time.Second)
	there := func() (n int) {
		for _, x := range list {
			if s.Session(x.ID) != nil {
				n++
			}
		}
		return n
	}
	if n := there(); n != len(list) {
		t.Fatalf("%d of %d are there", n, len(list))
	}
	x, st := comerAt(s, 2000).session(now)
	if st != nfs.OK || x.Fore.MaxCached != wide.MaxCached || x.Fore.MaxSlots < 64 {
		t.Errorf("a client that comes then: %+v, %v", x, st)
	}
	if n := there(); n != 0 {
		t.Errorf("%d are there", n)
	}
}

// TestMemoryOfOwners: an owner string is forgotten with its only client, when there is no room for
// another.
func TestMemoryOfOwners(t *testing.T) {
	s := New(Config{Boot: 7, Clients: 1})
	ask := func(owner string, v byte) nfs.Status {
		_, st := s.ExchangeID(begin, &ExchangeID{Owner: []byte(owner), Verifier: verifier(v), Principal: root})
		return st
	}
	if st := ask("one", 1); st != nfs.OK {
		t.Fatal(st)
	}
	s.mem.limit = 1
	if st := ask("one", 2); st != nfs.ErrJukebox || len(s.owners) != 0 || len(s.clients) != 0 {
		t.Errorf("%v, %d owners, %d clients", st, len(s.owners), len(s.clients))
	}
}

// TestMemoryOfNetworks: a host of IPv6 that uses many addresses of its network is one host.
func TestMemoryOfNetworks(t *testing.T) {
	s := New(Config{Boot: 7, Memory: 64 << 20, ClientMemory: 4 << 20})
	for i := range 1000 {
		c := &comer{s: s, from: From{Host: netip.MustParseAddr(fmt.Sprintf("2001:db8::%x", i+1))}}
		_, _ = c.session(begin)
	}
	if n := s.Memory().Bytes; n > 4<<20 {
		t.Errorf("%d bytes", n)
	}
}

// recount holds what is counted for each client against what it has.
func recount(s *Server) error {
	var all int64
	for _, c := range s.clientList() {
		c.mu.Lock()
		n := int64(clientCost + len(c.owner))
		for _, x := range c.sessions {
			n += x.Fore.cost()
		}
		for _, w := range c.states {
			n += costOf(w)
		}
		if c.v40 != nil {
			for _, o := range c.v40.openOwners {
				n += o.cost()
			}
			for _, o := range c.v40.lockOwners {
				n += o.cost()
			}
		}
		if n != c.charged {
			c.mu.Unlock()
			return fmt.Errorf("a client with %d bytes counts as %d", n, c.charged)
		}
		all += c.charged
		c.mu.Unlock()
	}
	if n := s.Memory().Bytes; n != all {
		return fmt.Errorf("clients with %d bytes count as %d", all, n)
	}
	return nil
}
