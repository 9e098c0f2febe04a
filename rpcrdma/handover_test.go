package rpcrdma_test

import (
	"bytes"
	"context"
	"encoding/gob"
	"errors"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rstored/rstored/rdma/roce"
	"github.com/rstored/rstored/rpcrdma"
	"github.com/rstored/rstored/rpcrdma/rpc"
	"github.com/rstored/rstored/rpcrdma/xdr"
)

// keeper stores a copy of each socket that was opened, for the next device.
type keeper struct{ fds map[int]int }

func (k *keeper) Take(_ netip.AddrPort, shard, _ int) (int, bool) {
	fd, ok := k.fds[shard]
	if !ok {
		return -1, false
	}
	fd, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	return fd, err == nil
}

func (k *keeper) Keep(_ netip.AddrPort, shard, _, fd int) {
	k.fds[shard], _ = unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
}

func (k *keeper) Forget(netip.AddrPort, int, int) {}

// TestHandover moves the connections of a port several times from one device to another on the same
// sockets. Meanwhile calls move bulk data in both directions. No call is lost or executed twice,
// and no connection ends.
func TestHandover(t *testing.T) {
	var served atomic.Int64
	srv := rpc.NewServer(rpc.ServerConfig{Programs: []rpc.Program{{Name: "test", Prog: prog, Vers: 1, Procs: []rpc.Proc{
		{Name: "NULL", Inline: true, Serve: func(*rpc.Call, bool) rpc.Status { return rpc.Done }},
		procGet: {Name: "GET", Serve: func(c *rpc.Call, _ bool) rpc.Status {
			n := int(c.Args.Uint32())
			p := c.Payload(n)
			if c.Args.Err() != nil || p == nil {
				return rpc.Garbage
			}
			for i := range p {
				p[i] = byte(n)
			}
			served.Add(1)
			c.Res.Bulk(p)
			return rpc.Done
		}},
		procPut: {Name: "PUT", Inline: true, Serve: func(c *rpc.Call, _ bool) rpc.Status {
			b := c.Args.Opaque(size)
			if c.Args.Err() != nil || bytes.Count(b, []byte{byte(len(b))}) != len(b) {
				return rpc.Garbage
			}
			served.Add(1)
			c.Res.Uint32(uint32(len(b)))
			return rpc.Done
		}},
	}}}})
	sockets := &keeper{fds: map[int]int{}}
	dev, err := roce.Open(roce.Config{Sockets: sockets, Shards: 2})
	if err != nil {
		t.Fatal(err)
	}
	cfg := rpcrdma.Config{ReadBytes: 64 << 10} // so low that calls wait for their data
	l, err := rpcrdma.Serve(dev, 20049, srv, cfg)
	if err != nil {
		t.Fatal(err)
	}
	at := netip.AddrPortFrom(dev.Addr(), 20049)

	var doors []*rpc.ConnLimiter
	var work sync.WaitGroup
	var stop atomic.Bool
	var asked atomic.Int64
	const clients = 3
	for i := range clients {
		c := dialRoCE(t, at)
		users := 3
		if i == 0 {
			users = 24 // more than the first grant
		}
		for j := range users {
			work.Go(func() {
				for k := 0; !stop.Load(); k++ {
					n := 1 + (i*977+j*7919+k*104729)%300_000
					var err error
					if k%2 == 0 {
						buf := make([]byte, n)
						err = c.Call(context.Background(), &rpc.Request{
							Prog: prog, Vers: 1, Proc: procGet, Dst: buf, ResMax: 64,
							Args: func(e *xdr.Encoder) { e.Uint32(uint32(n)) },
							Res: func(d *xdr.Decoder) error {
								if b := d.Bulk(n); d.Err() == nil && (len(b) != n || bytes.Count(b, []byte{byte(n)}) != n) {
									return errors.New("other bytes")
								}
								return d.Err()
							},
						})
					} else {
						err = c.Call(context.Background(), &rpc.Request{
							Prog: prog, Vers: 1, Proc: procPut,
							Args: func(e *xdr.Encoder) { e.Bulk(bytes.Repeat([]byte{byte(n)}, n)) },
							Res:  func(d *xdr.Decoder) error { d.Uint32(); return d.Err() },
						})
					}
					if err != nil {
						t.Errorf("client %d: %v", i, err)
						return
					}
					asked.Add(1)
				}
			})
		}
	}
	progress := func() {
		for n := asked.Load() + 30; asked.Load() < n && !t.Failed(); {
			time.Sleep(time.Millisecond)
		}
	}
	for round := range 4 {
		progress()
		dev.PostponeCM(true)
		l.Pause(true)
		var release func()
		for {
			for len(l.Busy()) > 0 {
				time.Sleep(time.Millisecond)
			}
			release = dev.Pause()
			if l.Quiescent() {
				break
			}
			release()
		}
		if round == 1 { // the handover fails, and this Listener continues
			release()
			l.Pause(false)
			dev.PostponeCM(false)
			continue
		}
		snapshot, err := dev.Export()
		if err != nil {
			t.Fatal(err)
		}
		var stream bytes.Buffer
		if err := gob.NewEncoder(&stream).Encode(snapshot); err != nil {
			t.Fatal(err)
		}
		conns, files, err := l.Export()
		if err != nil || len(files) != 0 {
			t.Fatal(err)
		}
		from := new(roce.Snapshot)
		if err := gob.NewDecoder(&stream).Decode(from); err != nil {
			t.Fatal(err)
		}
		next, err := roce.Open(roce.Config{Addr: dev.Addr(), Sockets: sockets, Shards: from.Shards, From: from})
		if err != nil {
			t.Fatal(err)
		}
		// The limits of the new Listener are below the number of connections. It restores all of
		// them.
		door := rpc.NewConnLimiter(rpc.ConnLimits{Clients: 1, PerClient: 1})
		restorer, err := rpcrdma.Serve(next, 20049, srv,
			rpcrdma.Config{ReadBytes: 64 << 10, MaxConns: 1, Memory: rpcrdma.MemoryMin, Limiter: door})
		if err != nil {
			t.Fatal(err)
		}
		if n, err := restorer.Import(conns); n != clients || err != nil {
			t.Fatalf("%d connections: %v", n, err)
		}
		credits := 0
		was := l.Conns()
		for i, c := range restorer.Conns() {
			credits += c.Credits
			if c.Remote != was[i].Remote || c.Credits != was[i].Credits {
				t.Errorf("a connection that was %+v is %+v", was[i], c)
			}
		}
		if m := restorer.Memory(); m.Connections != clients || m.Messages < credits*4096 || credits <= 16*clients {
			t.Errorf("%d credits are granted: %+v", credits, m)
		}
		if n := door.Stats().Clients; n < 1 {
			t.Errorf("%d clients are at the door", n)
		}
		doors = append(doors, door)
		next.Start()
		dev, l = next, restorer // the old device stays paused until the test ends
	}
	progress()
	stop.Store(true)
	work.Wait()
	if n := served.Load(); n != asked.Load() {
		t.Errorf("%d calls were served, of %d", n, asked.Load())
	}
	for _, c := range l.Conns() {
		if c.Calls == 0 {
			t.Errorf("the connection of %v has no calls", c.Remote)
		}
	}
	if len(l.Conns()) != clients {
		t.Errorf("connections: %+v", l.Conns())
	}
	t.Cleanup(func() { // before the clients, so that they do not wait
		_ = l.Close()
		srv.Close()
		_ = dev.Close()
		if n := doors[len(doors)-1].Stats().Clients; n != 0 {
			t.Errorf("%d clients are at the door after the end", n)
		}
	})
}

// TestOrphans: a connection that is not restored ends, and its client is notified. One that cannot
// be restored is no error of the others.
func TestOrphans(t *testing.T) {
	for _, c := range []struct {
		name     string
		restored int // -1: Import is not called
		cfg      rpcrdma.Config
	}{
		{"nobody imports", -1, rpcrdma.Config{}},
		{"messages of 5120 bytes were promised to one client", 1, rpcrdma.Config{Inline: 4096, Receive: 4096}},
		{"both are restored", 2, rpcrdma.Config{}},
	} {
		t.Run(c.name, func(t *testing.T) { orphans(t, c.restored, c.cfg) })
	}
}

func orphans(t *testing.T, restored int, cfg rpcrdma.Config) {
	srv := rpc.NewServer(rpc.ServerConfig{Programs: []rpc.Program{{Name: "test", Prog: prog, Vers: 1, Procs: []rpc.Proc{
		{Name: "NULL", Inline: true, Serve: func(*rpc.Call, bool) rpc.Status { return rpc.Done }},
	}}}})
	defer srv.Close()
	sockets := &keeper{fds: map[int]int{}}
	dev, err := roce.Open(roce.Config{Sockets: sockets})
	if err != nil {
		t.Fatal(err)
	}
	l, err := rpcrdma.Serve(dev, 20049, srv, rpcrdma.Config{})
	if err != nil {
		t.Fatal(err)
	}
	own, err := roce.Open(roce.Config{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { own.Close() })
	var clients [2]*rpcrdma.Client // the first one sends messages of 5120 bytes
	for i := range clients {
		clients[i], err = rpcrdma.Dial(t.Context(), own, l.Addr(), rpcrdma.ClientConfig{Inline: 4096 * i})
		if err != nil {
			t.Fatal(err)
		}
	}
	null := func(c *rpcrdma.Client) error {
		return c.Call(t.Context(), &rpc.Request{Prog: prog, Vers: 1, Args: func(*xdr.Encoder) {}})
	}
	for len(l.Conns()) < len(clients) || len(l.Busy()) > 0 {
		time.Sleep(time.Millisecond)
	}
	dev.PostponeCM(true)
	l.Pause(true)
	dev.Pause()
	from, err := dev.Export()
	if err != nil || len(from.Conns) != len(clients) {
		t.Fatalf("%+v, %v", from, err)
	}
	conns, _, err := l.Export()
	if err != nil {
		t.Fatal(err)
	}
	next, err := roce.Open(roce.Config{Addr: dev.Addr(), Sockets: sockets, From: from})
	if err != nil {
		t.Fatal(err)
	}
	if restored >= 0 {
		successor, err := rpcrdma.Serve(next, 20049, srv, cfg)
		if err != nil {
			t.Fatal(err)
		}
		if n, err := successor.Import(conns); n != restored || err != nil {
			t.Fatalf("%d connections restored: %v", n, err)
		}
	}
	next.Start()
	for i, c := range clients {
		if i < len(clients)-restored && restored < len(clients) {
			for null(c) == nil {
				time.Sleep(time.Millisecond)
			}
		} else if err := null(c); err != nil {
			t.Errorf("client %d: %v", i, err)
		}
		c.Close()
	}
	if err := next.Close(); err != nil {
		t.Error(err)
	}
}

// TestDamagedImport: Import refuses data that is no snapshot.
func TestDamagedImport(t *testing.T) {
	l, _ := serveRoCE(t)
	if _, err := l.Import([]byte("nothing")); err == nil {
		t.Error("taken")
	}
}
