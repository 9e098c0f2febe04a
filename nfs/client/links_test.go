package client

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/rstored/rstored/blockstore"
	"github.com/rstored/rstored/nfs"
	"github.com/rstored/rstored/nfs/nfs4"
	"github.com/rstored/rstored/rpcrdma/rpc"
	"github.com/rstored/rstored/rpcrdma/tcp"
	"github.com/rstored/rstored/rpcrdma/xdr"
)

// gated is a connection whose calls wait until it is lost.
type gated struct {
	calls  chan *rpc.Request
	closed chan struct{}
	once   sync.Once
}

func (g *gated) Call(ctx context.Context, r *rpc.Request) error {
	select {
	case g.calls <- r:
	case <-ctx.Done():
		return ctx.Err()
	}
	<-g.closed
	return &rpc.ConnError{Peer: "server", Err: rpc.ErrClosed}
}

func (g *gated) Close() error {
	g.once.Do(func() { close(g.closed) })
	return nil
}

// TestConnections: a session makes further connections while all are in use, as many as it may
// have. The calls of one that is lost go over others with the same XIDs: in version 3 only over
// newer ones.
func TestConnections(t *testing.T) {
	for _, vers := range []uint32{3, 4} {
		t.Run(fmt.Sprint("version ", vers), func(t *testing.T) { testConnections(t, vers) })
	}
}

func testConnections(t *testing.T, vers uint32) {
	dialed := make(chan *gated, 10)
	dials := 0
	dial := func(context.Context) (rpc.Client, error) {
		if dials++; dials > 3 { // attempts come one after the other
			return nil, errors.New("the server has no room for another")
		}
		g := &gated{calls: make(chan *rpc.Request, 100), closed: make(chan struct{})}
		dialed <- g
		return g, nil
	}
	s := newSession("server", 3, time.Hour, dial)
	ended := make(chan error, 100)
	call := func() { go func() { ended <- s.Call(context.Background(), &rpc.Request{Vers: vers}) }() }
	var all []*gated
	for i := range 3 {
		call()
		if i > 0 {
			call() // finds all connections in use, and makes the next one
		}
		all = append(all, <-dialed)
		for len(s.connections()) <= i {
			time.Sleep(time.Millisecond)
		}
	}
	call()
	seen := map[uint32]bool{}
	for range 6 {
		select {
		case r := <-all[0].calls:
			seen[r.XID] = true
		case r := <-all[1].calls:
			seen[r.XID] = true
		case r := <-all[2].calls:
			seen[r.XID] = true
		}
	}
	s.mu.Lock()
	lost := s.links[1].calls
	s.mu.Unlock()
	if lost == 0 || len(seen) != 6 {
		t.Fatalf("%d calls on the second connection, %d XIDs", lost, len(seen))
	}
	_ = all[1].Close()
	for range lost {
		select {
		case r := <-all[0].calls:
			if !seen[r.XID] || vers == 3 {
				t.Error("another XID, or a connection that is older than the lost one")
			}
		case r := <-all[2].calls:
			if !seen[r.XID] {
				t.Error("another XID")
			}
		}
	}
	if n := s.resent.Load(); n != uint64(lost) {
		t.Errorf("%d calls were sent again", n)
	}
	_ = s.Close()
	for range 6 {
		if err := <-ended; !errors.Is(err, rpc.ErrClosed) {
			t.Error(err)
		}
	}
}

// afterSession decodes a compound that begins with SEQUENCE, up to its sequence ID.
func afterSession(r *rpc.Request) xdr.Decoder {
	var e xdr.Encoder
	r.Args(&e)
	d := xdr.NewDecoder(e.AppendFlat(nil))
	d.Opaque(tagMax)
	d.Uint32()
	d.Uint32()
	d.Uint32()
	nfs4.DecodeSessionID(&d)
	return d
}

// sequenceOf are the slot and the sequence ID of a compound with a session.
func sequenceOf(r *rpc.Request) (slot, seq uint32) {
	d := afterSession(r)
	seq = d.Uint32()
	return d.Uint32(), seq
}

// TestAllConnectionsLost: a call that finds one connection after the other lost does not wait
// between them, and makes a new one at once.
func TestAllConnectionsLost(t *testing.T) {
	srv := &flakyServer{lives: 1, xids: map[uint32]int{}}
	s := newSession("server", 16, time.Hour, srv.dial)
	defer s.Close()
	for i := range 16 {
		s.links = append(s.links, &link{conn: &flaky{server: srv}, since: uint64(i + 1)})
	}
	s.reconnects.Store(16)
	// With a wait after each of them the call would take 18 s.
	ctx, cancel := context.WithTimeout(t.Context(), 9*time.Second)
	defer cancel()
	if err := s.Call(ctx, &rpc.Request{}); err != nil || srv.dials != 1 {
		t.Errorf("%v, %d connections made", err, srv.dials)
	}
}

// TestCallbacksBounded: a server that sends callbacks without end occupies a bounded number of
// goroutines, and its callbacks are answered again when those have ended.
func TestCallbacksBounded(t *testing.T) {
	var c callbacks
	c.execution.Lock()
	for range 2 * callbacksMax {
		c.receive(nil, func([]byte) {})
	}
	if n := c.waiting.Load(); n != callbacksMax {
		t.Errorf("%d callbacks wait", n)
	}
	c.execution.Unlock()
	for c.waiting.Load() > 0 {
		time.Sleep(time.Millisecond)
	}
}

// TestBusySlot: the connection of a call is lost while the server executes it, and the server
// answers to the retry that it is not done yet, as the kernel's server does. Until the call is done
// no other one has its slot: with the same sequence ID the server would answer it with the reply of
// the first.
func TestBusySlot(t *testing.T) {
	s := newServer(t)
	var mu sync.Mutex
	var victim [2]uint32 // slot and sequence ID
	delays, armed := 0, false
	c := s.meddled(Version42, func(_ context.Context, r *rpc.Request, call func(*rpc.Request) error) error {
		first, _ := opsOf(r)
		if first != nfs4.OpSequence {
			return call(r)
		}
		slot, seq := sequenceOf(r)
		mu.Lock()
		defer mu.Unlock()
		switch at := [2]uint32{slot, seq}; {
		case armed:
			armed, victim, delays = false, at, 5
			return &rpc.ConnError{Peer: "server", Err: errors.New("cut")}
		case at == victim && delays > 0:
			delays--
			var e xdr.Encoder
			e.Uint32(uint32(nfs.ErrJukebox))
			e.String("")
			e.Uint32(1)
			e.Uint32(nfs4.OpSequence)
			e.Uint32(uint32(nfs.ErrJukebox))
			d := xdr.NewDecoder(e.B)
			return r.Res(&d)
		case at == victim:
			victim = [2]uint32{}
			if !hasOp(r, nfs4.OpCreate) {
				t.Error("another compound has the slot and sequence ID of one in progress")
			}
		}
		return call(r)
	})
	ctx := t.Context()
	root, err := c.Resolve(ctx, "/data")
	if err != nil {
		t.Fatal(err)
	}
	mu.Lock()
	armed = true
	mu.Unlock()
	made := make(chan error)
	go func() {
		_, err := c.Mkdir(ctx, root.Handle, "d", nil)
		made <- err
	}()
	for {
		mu.Lock()
		waits := victim != [2]uint32{} && delays < 5
		mu.Unlock()
		if waits {
			break
		}
		time.Sleep(time.Millisecond)
	}
	for end := false; !end; {
		select {
		case err := <-made:
			if err != nil {
				t.Error(err)
			}
			end = true
		default:
			if _, err := c.GetAttr(ctx, root.Handle); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// hasOp reports whether the second or third operation of a compound is the one given. The first is
// SEQUENCE and the second mostly PUTFH.
func hasOp(r *rpc.Request, want uint32) bool {
	d := afterSession(r)
	for range 4 {
		d.Uint32()
	}
	if d.Uint32() != nfs4.OpPutFH {
		return false
	}
	d.Opaque(nfs4.FHMax)
	return d.Uint32() == want
}

// TestConnectionsCut: connections of one client are cut at random while many calls change files.
// Each change is made once, over whatever connection it came: the session's slot tells. (Version 3
// has no such thing: a reply that was acknowledged and not read is lost.)
func TestConnectionsCut(t *testing.T) {
	eachVersion(t, func(t *testing.T, s *server) {
		if s.vers == Version3 {
			t.Skip("version 3 has no slots")
		}
		var mu sync.Mutex
		var live []rpc.Client
		c := New(Config{
			Peer: s.addr, Version: s.vers, Cred: &rpc.Cred{Flavor: rpc.AuthSys, Machine: "test"}, Connections: 4,
			Dial: func(ctx context.Context) (rpc.Client, error) {
				inner, err := tcp.Dial(ctx, s.addr)
				if err == nil {
					mu.Lock()
					live = append(live, inner)
					mu.Unlock()
				}
				return inner, err
			},
		})
		defer c.Close()
		ctx := t.Context()
		root, err := c.Resolve(ctx, "/data")
		if err != nil {
			t.Fatal(err)
		}
		stop, cut := make(chan struct{}), make(chan struct{})
		go func() {
			defer close(cut)
			for i := 0; ; i++ {
				select {
				case <-stop:
					return
				case <-time.After(5 * time.Millisecond):
				}
				mu.Lock()
				n := len(live)
				victim := live[i%n]
				live[i%n] = live[n-1]
				if n > 1 {
					live = live[:n-1]
				}
				mu.Unlock()
				_ = victim.Close()
			}
		}()
		var wg sync.WaitGroup
		for g := range 8 {
			wg.Go(func() {
				for i := range 40 {
					name := fmt.Sprintf("%d-%d", g, i)
					n, err := c.Create(ctx, root.Handle, name, blockstore.Guarded, nil, [8]byte{})
					if err == nil {
						_, err = c.Write(ctx, n.Handle, []byte(name), 0, blockstore.FileSync)
					}
					if err == nil {
						err = c.Rename(ctx, root.Handle, name, root.Handle, name+"+")
					}
					if err == nil && i%2 == 0 {
						err = c.Remove(ctx, root.Handle, name+"+")
					}
					if err != nil {
						t.Errorf("%s: %v", name, err)
						return
					}
				}
			})
		}
		wg.Wait()
		close(stop)
		<-cut
		left := 0
		if err := c.ReadDir(ctx, root.Handle, func(*Entry) error { left++; return nil }); err != nil || left != 8*20 {
			t.Errorf("%d files left, %v", left, err)
		}
		if st := c.Stats(); st.Connections < 4 {
			t.Errorf("%+v", st)
		}
	})
}
