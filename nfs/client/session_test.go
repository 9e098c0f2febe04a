package client

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/rstored/rstored/rpcrdma/rpc"
)

func TestURLs(t *testing.T) {
	for _, c := range []struct{ in, host, path, out string }{
		{"nfs+rdma://h/a/b", "h:20049", "/a/b", ""},
		{"nfs+tcp://h", "h:2049", "/", "nfs+tcp://h:2049/"},
		{"nfs+rdma://h:1/a//b/../c/", "h:1", "/a/c", ""},
		{"nfs+rdma://[2001:db8::1]/x", "[2001:db8::1]:20049", "/x", ""},
		{"nfs+rdma://[2001:db8::1]:7/x", "[2001:db8::1]:7", "/x", ""},
		{"nfs+tcp://h/a%23b%3F%25", "h:2049", "/a#b?%", "nfs+tcp://h:2049/a%23b%3F%25"},
		{"nfs+tcp://h/100%", "h:2049", "/100%", "nfs+tcp://h:2049/100%25"},
		{"nfs+tcp://h/\xff", "h:2049", "/\xff", ""},
		{"nfs+rdma://h/a?provider=verbs", "h:20049", "/a", "nfs+rdma://h:20049/a?provider=verbs"},
		{"nfs+rdma://h/a?provider=rxe", "", "", ""},
		{"nfs+tcp://h/a?provider=soft", "", "", ""},
		{"nfs+rdma://h/a?dscp=26&provider=soft", "h:20049", "/a", "nfs+rdma://h:20049/a?provider=soft&dscp=26"},
		{"nfs+rdma://h/a?dscp=63", "h:20049", "/a", "nfs+rdma://h:20049/a?dscp=63"},
		{"nfs+rdma://h/a?b=c", "h:20049", "/a?b=c", "nfs+rdma://h:20049/a%3Fb=c"},
		{"nfs+rdma://h/a?dscp=64", "", "", ""},
		{"nfs+rdma://h/a?dscp=0", "", "", ""},
		{"nfs+rdma://h/a?dscp=26&speed=1", "", "", ""},
		{"nfs+tcp://h/a?dscp=26", "", "", ""},
		{"nfs+tcp://h/a?xprtsec=tls&dscp=26", "", "", ""},
		{"http://h/", "", "", ""},
		{"nfs+tcp://h:65536/a", "", "", ""},
		{"nfs+tcp://h:0/a", "", "", ""},
		{"nfs+rdma://[::1]:x/a", "", "", ""},
		{"/a/b", "", "", ""},
		{"nfs+rdma:///x", "", "", ""},
	} {
		u, err := ParseURL(c.in)
		if (err == nil) != (c.host != "") {
			t.Errorf("%q: %v", c.in, err)
			continue
		}
		if err != nil {
			continue
		}
		if u.Host != c.host || u.Path != c.path {
			t.Errorf("%q: %+v", c.in, u)
		}
		if c.out != "" && u.String() != c.out {
			t.Errorf("%q prints as %q", c.in, u)
		}
		if v, err := ParseURL(u.String()); err != nil || v != u {
			t.Errorf("%q does not survive printing: %+v %v", c.in, v, err)
		}
	}
}

// flaky is a connection that is lost after a number of calls.
type flaky struct {
	server *flakyServer
	left   int
}

type flakyServer struct {
	mu    sync.Mutex
	dials int
	down  bool
	lives int // calls per connection
	xids  map[uint32]int
}

func (s *flakyServer) dial(context.Context) (rpc.Client, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.dials++
	if s.down {
		return nil, &rpc.ConnError{Peer: "server", Err: errors.New("refused")}
	}
	return &flaky{server: s, left: s.lives}, nil
}

func (f *flaky) Call(_ context.Context, r *rpc.Request) error {
	f.server.mu.Lock()
	defer f.server.mu.Unlock()
	f.server.xids[r.XID]++
	if f.left--; f.left < 0 {
		return &rpc.ConnError{Peer: "server", Err: errors.New("lost")}
	}
	return nil
}

func (f *flaky) Close() error { return nil }

func TestLostConnectionsAreMadeAgainAndCallsKeepTheirXID(t *testing.T) {
	srv := &flakyServer{lives: 3, xids: map[uint32]int{}}
	s := newSession("server", 1, 10*time.Second, srv.dial)
	defer s.Close()
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for range 25 {
				if err := s.Call(context.Background(), &rpc.Request{}); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	if len(srv.xids) != 100 {
		t.Errorf("%d XIDs for 100 calls", len(srv.xids))
	}
	if srv.dials < 33 || s.resent.Load() == 0 {
		t.Errorf("%d connections, %d calls sent again", srv.dials, s.resent.Load())
	}
}

func TestServerThatNeverWasIsReportedAtOnce(t *testing.T) {
	s := newSession("server", 1, time.Hour, (&flakyServer{down: true}).dial)
	var gone *rpc.ConnError
	if err := s.Call(context.Background(), &rpc.Request{}); !errors.As(err, &gone) {
		t.Error(err)
	}
}

func TestServerThatStaysAwayIsGivenUp(t *testing.T) {
	srv := &flakyServer{lives: 1, xids: map[uint32]int{}}
	s := newSession("server", 1, 50*time.Millisecond, srv.dial)
	if err := s.Call(context.Background(), &rpc.Request{}); err != nil {
		t.Fatal(err)
	}
	srv.mu.Lock()
	srv.down = true
	srv.mu.Unlock()
	if err := s.Call(context.Background(), &rpc.Request{}); err == nil {
		t.Error("a call to a server that is down succeeded")
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Millisecond)
	defer cancel()
	s.giveUp = time.Hour
	srv.lives = 0
	srv.down = false
	if err := s.Call(ctx, &rpc.Request{}); !errors.Is(err, context.DeadlineExceeded) {
		t.Error(err)
	}
	_ = s.Close()
	if err := s.Call(context.Background(), &rpc.Request{}); !errors.Is(err, rpc.ErrClosed) {
		t.Error(err)
	}
}

// TestNewCallsWaitForALostServer: a call that is made while the server is away waits
// for it as those do that were under way.
func TestNewCallsWaitForALostServer(t *testing.T) {
	srv := &flakyServer{lives: 1, xids: map[uint32]int{}}
	s := newSession("server", 1, time.Hour, srv.dial)
	defer func() { _ = s.Close() }()
	if err := s.Call(context.Background(), &rpc.Request{}); err != nil {
		t.Fatal(err)
	}
	srv.mu.Lock()
	srv.down = true
	srv.mu.Unlock()
	s.drop(s.links[0].conn)
	time.AfterFunc(50*time.Millisecond, func() {
		srv.mu.Lock()
		defer srv.mu.Unlock()
		srv.down = false
	})
	if err := s.Call(context.Background(), &rpc.Request{}); err != nil {
		t.Error(err)
	}
}
