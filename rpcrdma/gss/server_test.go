package gss

import (
	"bytes"
	"encoding/binary"
	"errors"
	"net/netip"
	"runtime"
	"testing"
	"time"
)

// fixed is an Acceptor whose tokens are the names of principals.
type fixed struct{ ctx *Context }

func (f fixed) Accept(token []byte, now time.Time) (Established, error) {
	if len(token) == 0 {
		return Established{}, &InitError{Major: DefectiveToken, Minor: 5, Err: errors.New("empty")}
	}
	return Established{
		Context: f.ctx, Principal: string(token), Token: []byte("answer"), Expires: now.Add(time.Hour),
	}, nil
}

func TestServer(t *testing.T) {
	client, server := pair(t, AES256SHA1)
	now := time.Unix(1e9, 0)
	var outcomes int
	s := NewServer(ServerConfig{
		Acceptor: fixed{server}, Contexts: 100, PerHost: 10,
		Identify: func(p string) Identity { return Identity{UID: uint32(len(p))} },
		Outcome:  func(netip.Addr, string, error) { outcomes++ },
	})
	host := netip.MustParseAddr("192.0.2.1")
	res, x := s.Accept(host, []byte("alice"), now)
	if x == nil || res.Major != Complete || res.Window != windowSize || x.Identity.UID != 5 || x.Principal != "alice" {
		t.Fatalf("%+v", res)
	}
	res, no := s.Accept(host, nil, now)
	if no != nil || res.Major != DefectiveToken || res.Minor != 5 || outcomes != 2 {
		t.Errorf("%+v", res)
	}
	header := []byte("header")
	call := func(seq uint32) Verdict {
		return s.Check(x, &Cred{Seq: seq}, header, client.AppendMIC(nil, header))
	}
	for i, c := range []struct {
		seq  uint32
		want Verdict
	}{
		{1, Proceed},
		{1, Discard},
		{3, Proceed},
		{2, Proceed},
		{2, Discard},
		{SeqMax, Proceed},
		{3, Discard},
		{SeqMax + 1, CtxProblem},
	} {
		if got := call(c.seq); got != c.want {
			t.Errorf("call %d, sequence number %d: %v", i, c.seq, got)
		}
	}
	if got := s.Check(x, &Cred{Seq: 9}, []byte("another"), client.AppendMIC(nil, header)); got != CredProblem {
		t.Errorf("a forged header: %v", got)
	}
	if s.Find(x.Handle(), now) != x || s.Find(x.Handle(), now.Add(2*time.Hour)) != nil ||
		s.Find(x.Handle(), now) != nil {
		t.Error("a context does not expire")
	}
	for range 1000 { // contexts of one host evict none of another
		s.Accept(host, []byte("mallory"), now)
	}
	if st := s.Stats(); st.Active != 10 || st.Evicted != 990 {
		t.Errorf("%+v", st)
	}
	_, bob := s.Accept(netip.MustParseAddr("192.0.2.2"), []byte("bob"), now)
	for i := range 100_000 {
		s.Accept(netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)}), []byte("mallory"), now)
		if i%50 == 0 && s.Find(bob.Handle(), now) == nil {
			t.Fatal("a context in use was forgotten")
		}
	}
	if st := s.Stats(); st.Active != 100 || len(s.hosts) > 100 || s.used.Len() != 100 {
		t.Errorf("%+v, %d hosts", st, len(s.hosts))
	}
	if s.Find(bob.Handle(), now) != bob || s.recent.Load() != bob {
		t.Error("the context that was found last is not the first that is tried")
	}
	s.Destroy(bob)
	s.Destroy(bob)
	if s.Find(bob.Handle(), now) != nil {
		t.Error("destroyed, and found")
	}
	for _, h := range [][]byte{nil, make([]byte, handleLen), bob.Handle()[:8], append(bytes.Clone(bob.Handle()), 0)} {
		if s.Find(h, now) != nil {
			t.Errorf("handle %x is found", h)
		}
	}
}

// halfMade is an Acceptor whose contexts have keys of their own. It refuses every second token.
type halfMade struct{ n int }

func (h *halfMade) Accept(_ []byte, now time.Time) (Established, error) {
	if h.n++; h.n%2 == 0 {
		return Established{}, &InitError{Major: Failure, Err: errors.New("no")}
	}
	key := Key{AES256SHA1, binary.BigEndian.AppendUint32(make([]byte, 28), uint32(h.n))}
	c, err := NewContext(key, Role{Acceptor: true})
	return Established{Context: c, Principal: "mallory", Expires: now.Add(time.Hour)}, err
}

// TestHalfMade: 100,000 contexts are established and never used. They take no more memory than the
// contexts that a server may have at most.
func TestHalfMade(t *testing.T) {
	s := NewServer(ServerConfig{Acceptor: new(halfMade)})
	now := time.Unix(1e9, 0)
	heap := func() uint64 {
		runtime.GC()
		runtime.GC() // the second collection frees what is in pools
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	before := heap()
	token := make([]byte, 1000)
	for i := range 100_000 {
		s.Accept(netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)}), token, now)
	}
	const perContext = 16 << 10
	st, grown := s.Stats(), int64(heap()-before)
	if st.Active != 4096 || st.Established != 50_000 || st.Refused != 50_000 || len(s.hosts) != 4096 ||
		grown > 4096*perContext {
		t.Errorf("%+v, %d hosts, %d bytes", st, len(s.hosts), grown)
	}
	t.Logf("%d bytes for each context", grown/4096)
	runtime.KeepAlive(s)
}

// TestSnapshot: a successor has the contexts with their windows, and continues their sequence
// numbers.
func TestSnapshot(t *testing.T) {
	client, server := pair(t, AES128SHA256)
	now := time.Unix(1e9, 0)
	cfg := ServerConfig{Acceptor: fixed{server}, Identify: func(string) Identity {
		return Identity{UID: 7, GID: 8, Groups: []uint32{8, 9}}
	}}
	old := NewServer(cfg)
	_, x := old.Accept(netip.MustParseAddr("192.0.2.1"), []byte("alice"), now)
	header := []byte("header")
	call := func(s *Server, seq uint32) Verdict {
		y := s.Find(x.Handle(), now)
		if y == nil {
			return CredProblem
		}
		return s.Check(y, &Cred{Seq: seq}, header, client.AppendMIC(nil, header))
	}
	for _, seq := range []uint32{1, 2000, 1999} {
		if got := call(old, seq); got != Proceed {
			t.Fatal(seq, got)
		}
	}
	last := binary.BigEndian.Uint64(x.AppendMIC(nil)[8:])
	data, err := old.Snapshot()
	if err != nil {
		t.Fatal(err)
	}
	s := NewServer(cfg)
	if err := s.Restore(data); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		seq  uint32
		want Verdict
	}{{1, Discard}, {2000, Discard}, {1999, Discard}, {1998, Proceed}, {2001, Proceed}} {
		if got := call(s, c.seq); got != c.want {
			t.Errorf("%d: %v", c.seq, got)
		}
	}
	y := s.Find(x.Handle(), now)
	if y.Principal != "alice" || y.Identity.UID != 7 || len(y.Identity.Groups) != 2 ||
		binary.BigEndian.Uint64(y.AppendMIC(nil)[8:]) != last+1 {
		t.Errorf("%+v", y)
	}
	message := []byte("in private")
	if got, err := y.Open(client.Seal(nil, message)); err != nil || !bytes.Equal(got, message) {
		t.Errorf("%q, %v", got, err)
	}
	if _, z := s.Accept(netip.MustParseAddr("192.0.2.1"), []byte("bob"), now); bytes.Equal(z.Handle(), x.Handle()) {
		t.Error("a handle twice")
	}
	if s.Find(x.Handle(), now.Add(2*time.Hour)) != nil {
		t.Error("a context does not expire")
	}
	if err := s.Restore(data); err == nil {
		t.Error("restored into a server with contexts")
	}
	for n := range len(data) {
		if err := NewServer(cfg).Restore(data[:n]); err == nil {
			t.Fatalf("restored from %d of %d bytes", n, len(data))
		}
	}
}
