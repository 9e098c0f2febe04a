package client

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"sync"
	"testing"
	"time"

	"github.com/rstored/rstored/blockstore"
	"github.com/rstored/rstored/nfs"
	"github.com/rstored/rstored/nfs/nfs4"
	"github.com/rstored/rstored/nfs/state"
	"github.com/rstored/rstored/rpcrdma/rpc"
	"github.com/rstored/rstored/rpcrdma/tcp"
	"github.com/rstored/rstored/rpcrdma/xdr"
)

// restart ends the server with everything that it has in memory, and starts another.
func (s *server) restart() {
	_ = s.ports.Close()
	s.rpc.Close()
	s.start()
	s.listen(s.addr)
}

// four is the session of a client of version 4.
func four(t *testing.T, c *Client) *session4 {
	t.Helper()
	p, err := c.procs(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	return p.(proc4).session4
}

// meddled is a connection whose calls go through f.
type meddled struct {
	rpc.Client
	f func(ctx context.Context, r *rpc.Request, call func(*rpc.Request) error) error
}

func (m *meddled) Call(ctx context.Context, r *rpc.Request) error {
	return m.f(ctx, r, func(r *rpc.Request) error { return m.Client.Call(ctx, r) })
}

func (s *server) meddled(v Version,
	f func(ctx context.Context, r *rpc.Request, call func(*rpc.Request) error) error,
) *Client {
	c := New(Config{
		Peer: s.addr, Version: v, Cred: &rpc.Cred{Flavor: rpc.AuthSys, Machine: "test"},
		Dial: func(ctx context.Context) (rpc.Client, error) {
			inner, err := tcp.Dial(ctx, s.addr)
			if err != nil {
				return nil, err
			}
			return &meddled{inner, f}, nil
		},
	})
	s.t.Cleanup(func() { _ = c.Close() })
	return c
}

// opsOf are the operations of a call.
func opsOf(r *rpc.Request) (first uint32, n int) {
	var e xdr.Encoder
	if r.Prog != nfs4.Program || r.Vers != nfs4.Version || r.Args == nil {
		return 0, 0
	}
	r.Args(&e)
	d := xdr.NewDecoder(e.AppendFlat(nil))
	d.Opaque(tagMax)
	d.Uint32()
	n = int(d.Uint32())
	return d.Uint32(), n
}

// TestRepliesLost: the reply to every call gets lost with its connection after the
// server has executed it. Nothing is executed twice.
func TestRepliesLost(t *testing.T) {
	s := newServer(t)
	lost := map[uint32]bool{}
	reliable := false
	var mu sync.Mutex
	c := s.meddled(Version42, func(_ context.Context, r *rpc.Request, call func(*rpc.Request) error) error {
		mu.Lock()
		again := lost[r.XID] || reliable
		lost[r.XID] = true
		mu.Unlock()
		if first, _ := opsOf(r); again || first == nfs4.OpBindConnToSession {
			return call(r)
		}
		copied := *r
		copied.Res, copied.Dst = nil, nil
		if err := call(&copied); err != nil {
			return err
		}
		return &rpc.ConnError{Peer: "server", Err: errors.New("cut before the reply")}
	})
	ctx := context.Background()
	root, err := c.Resolve(ctx, "/data")
	if err != nil {
		t.Fatal(err)
	}
	h := root.Handle
	f, err := c.Create(ctx, h, "a", blockstore.Guarded, nil, [8]byte{})
	if err != nil {
		t.Fatal(err)
	}
	for name, do := range map[string]func() error{
		"mkdir":   func() error { _, err := c.Mkdir(ctx, h, "d", nil); return err },
		"link":    func() error { return c.Link(ctx, f.Handle, h, "l") },
		"symlink": func() error { _, err := c.Symlink(ctx, h, "s", "t", nil); return err },
	} {
		if err := do(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := c.Rename(ctx, h, "l", h, "m"); err != nil {
		t.Errorf("rename: %v", err)
	}
	if err := c.Remove(ctx, h, "m"); err != nil {
		t.Errorf("remove: %v", err)
	}
	if err := c.Rmdir(ctx, h, "d"); err != nil {
		t.Errorf("rmdir: %v", err)
	}
	data := fill(3, 3<<20+5)
	if err := c.Upload(ctx, f.Handle, bytes.NewReader(data), 0, uint64(len(data)), nil); err != nil {
		t.Fatal(err)
	}
	// The data of a READ is not kept: it would be sent and lost for ever.
	mu.Lock()
	reliable = true
	mu.Unlock()
	got := &memory{b: make([]byte, len(data))}
	if err := c.Download(ctx, f.Handle, got, 0, uint64(len(data)), nil); err != nil || !bytes.Equal(got.b, data) {
		t.Errorf("download: %v", err)
	}
	st := c.Stats()
	if st.Sessions != 1 || st.Resent == 0 || s.four.Faults()[nfs4.CountReplays] < 7 {
		t.Errorf("%+v, faults of the server %v", st, s.four.Faults())
	}
}

// TestGivenUpCalls: a slot whose call was given up is in step with the server again
// before it is used again, whether the server has executed the call or not.
func TestGivenUpCalls(t *testing.T) {
	s := newServer(t)
	var mu sync.Mutex
	mode := ""
	c := s.meddled(Version42, func(ctx context.Context, r *rpc.Request, call func(*rpc.Request) error) error {
		_, n := opsOf(r)
		mu.Lock()
		m := mode
		mu.Unlock()
		if m == "" || n < 3 {
			return call(r)
		}
		if m == "executed" {
			copied := *r
			copied.Res, copied.Dst = nil, nil
			if err := call(&copied); err != nil {
				return err
			}
		}
		<-ctx.Done()
		return ctx.Err()
	})
	ctx := context.Background()
	root, err := c.Resolve(ctx, "/data")
	if err != nil {
		t.Fatal(err)
	}
	x := four(t, c).current()
	for _, m := range []string{"executed", "not sent"} {
		mu.Lock()
		mode = m
		mu.Unlock()
		var wg sync.WaitGroup
		short, cancel := context.WithTimeout(ctx, 20*time.Millisecond)
		for range 2 * slotsAsked {
			wg.Go(func() {
				if _, err := c.GetAttr(short, root.Handle); !errors.Is(err, context.DeadlineExceeded) {
					t.Errorf("%s: %v", m, err)
				}
			})
		}
		wg.Wait()
		cancel()
		mu.Lock()
		mode = ""
		mu.Unlock()
		for range 4 * slotsAsked {
			wg.Go(func() {
				if _, err := c.GetAttr(ctx, root.Handle); err != nil {
					t.Errorf("%s, afterwards: %v", m, err)
				}
			})
		}
		wg.Wait()
	}
	for range slotsAsked { // all of them come back
		if _, err := x.slots.take(ctx, x.ended); err != nil {
			t.Fatal(err)
		}
	}
	if st := c.Stats(); st.Sessions != 1 {
		t.Errorf("%+v", st)
	}
}

// TestRestartWithOpenFiles: a file that is open is reclaimed after a restart of the
// server, and nobody who was denied it got it in between.
func TestRestartWithOpenFiles(t *testing.T) {
	s := newServer(t)
	c, other := s.client(), s.client()
	ctx := context.Background()
	put(t, c, "/data/f", fill(1, 100))
	f, err := c.OpenShare(ctx, "/data/f", ShareBoth, ShareWrite)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := other.OpenShare(ctx, "/data/f", ShareWrite, 0); !IsStatus(err, nfs.ErrShareDenied) {
		t.Errorf("a file that was denied: %v", err)
	}
	if _, err := f.WriteAt(fill(2, 50), 25); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		s.restart()
		if _, err := f.WriteAt(fill(3, 50), 50); err != nil {
			t.Fatal(err)
		}
		if _, err := other.OpenShare(ctx, "/data/f", ShareWrite, 0); !IsStatus(err, nfs.ErrShareDenied) {
			t.Errorf("a file that was denied, after the restart: %v", err)
		}
	}
	if st := c.Stats(); st.Sessions != 4 || st.Reclaimed != 3 {
		t.Errorf("%+v", st)
	}
	if err := f.Close(); err != nil {
		t.Error(err)
	}
	if g, err := other.OpenShare(ctx, "/data/f", ShareWrite, 0); err != nil {
		t.Error(err)
	} else if err := g.Close(); err != nil {
		t.Error(err)
	}
	want := append(append(fill(1, 25), fill(2, 25)...), fill(3, 50)...)
	v, err := c.FS(ctx, "/data")
	if err != nil {
		t.Fatal(err)
	}
	if got, err := fs.ReadFile(v, "f"); err != nil || !bytes.Equal(got, want) {
		t.Errorf("%d bytes, %v", len(got), err)
	}
}

// TestSessionLost: a session that the server has lost is made again; what is open in
// it stays open.
func TestSessionLost(t *testing.T) {
	s := newServer(t)
	c := s.client()
	ctx := context.Background()
	put(t, c, "/data/f", fill(1, 100))
	f, err := c.Open(ctx, "/data/f")
	if err != nil {
		t.Fatal(err)
	}
	if st := s.four.State().DestroySession(four(t, c).current().id,
		&state.By{Principal: state.Principal{Flavor: rpc.AuthSys, UID: 0}}); st != nfs.OK {
		t.Fatal(st)
	}
	b := make([]byte, 100)
	if _, err := f.ReadAt(b, 0); err != nil || !bytes.Equal(b, fill(1, 100)) {
		t.Error(err)
	}
	if st := c.Stats(); st.Sessions != 2 || st.Reclaimed != 0 {
		t.Errorf("%+v", st)
	}
	if err := f.Close(); err != nil {
		t.Error(err)
	}
}
