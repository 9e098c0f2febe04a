package client

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/rstored/rstored/rpcrdma/rpc"
)

// registering is a connection that counts what is registered with it.
type registering struct {
	flaky
	live map[*byte]bool
	fail error
}

func (r *registering) Register(buf []byte) (func(), error) {
	if r.fail != nil {
		return nil, r.fail
	}
	r.live[&buf[0]] = true
	return func() { delete(r.live, &buf[0]) }, nil
}

// TestMemoryFollowsTheConnection: memory is registered with the connection of the
// moment, whether it came before it or after it.
func TestMemoryFollowsTheConnection(t *testing.T) {
	server := &flakyServer{lives: 1, xids: map[uint32]int{}}
	var conns []*registering
	var fail error
	c := New(Config{GiveUp: time.Second, Dial: func(context.Context) (rpc.Client, error) {
		r := &registering{flaky: flaky{server: server, left: 1}, live: map[*byte]bool{}, fail: fail}
		conns = append(conns, r)
		return r, nil
	}})
	defer c.Close()
	early, late := make([]byte, 10), make([]byte, 10)
	a, err := c.Register(early)
	if err != nil {
		t.Fatal(err)
	}
	call := func() error { return c.RPC().Call(context.Background(), &rpc.Request{}) }
	if err := call(); err != nil {
		t.Fatal(err)
	}
	b, err := c.Register(late)
	if err != nil {
		t.Fatal(err)
	}
	if len(conns) != 1 || !conns[0].live[&early[0]] || !conns[0].live[&late[0]] {
		t.Fatalf("%d connections, %v", len(conns), conns[0].live)
	}
	if err := call(); err != nil { // the first connection is lost
		t.Fatal(err)
	}
	if len(conns) != 2 || !conns[1].live[&early[0]] || !conns[1].live[&late[0]] {
		t.Fatalf("%d connections, %v", len(conns), conns[1].live)
	}
	a.Close()
	b.Close()
	if len(conns[1].live) != 0 {
		t.Error("still registered after Close")
	}
	fail = errors.New("no more memory can be locked")
	if _, err := c.Register(early); err != nil {
		t.Fatal(err) // the present connection can
	}
	if err := call(); !errors.Is(err, fail) {
		t.Errorf("a connection without the memory was used: %v", err)
	}
}

// TestRegisterOnLostConnection: a connection that was lost while it had no calls does not keep
// memory from being registered, and is not used again.
func TestRegisterOnLostConnection(t *testing.T) {
	server := &flakyServer{lives: 10, xids: map[uint32]int{}}
	var conns []*registering
	c := New(Config{GiveUp: time.Second, Dial: func(context.Context) (rpc.Client, error) {
		r := &registering{flaky: flaky{server: server, left: 10}, live: map[*byte]bool{}}
		conns = append(conns, r)
		return r, nil
	}})
	defer c.Close()
	call := func() {
		t.Helper()
		if err := c.RPC().Call(t.Context(), &rpc.Request{}); err != nil {
			t.Fatal(err)
		}
	}
	call()
	conns[0].fail = &rpc.ConnError{Peer: "server", Err: errors.New("lost")}
	buf := make([]byte, 10)
	m, err := c.Register(buf)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	call()
	if len(conns) != 2 || !conns[1].live[&buf[0]] {
		t.Errorf("%d connections, %v", len(conns), conns[len(conns)-1].live)
	}
}

// reaching is a connection that reaches memory of other devices, or says that it does not.
type reaching struct {
	registering
	bufs map[*byte]int // where in the dma-buf what is registered begins
	none error
}

func (r *reaching) RegisterDMABuf(_ int, offset uint64, names []byte) (func(), error) {
	if r.none != nil {
		return nil, r.none
	}
	r.bufs[&names[0]] = int(offset)
	return func() { delete(r.bufs, &names[0]) }, nil
}

// TestDMABuf: memory of another device follows the connection as other memory does, is used as such
// where it is mapped and the connection cannot do better, and is refused otherwise.
func TestDMABuf(t *testing.T) {
	if _, err := New(Config{}).RegisterDMABuf(DMABuf{FD: 1}); err == nil {
		t.Error("memory without names was registered")
	}
	names := make([]byte, 5)
	var conn rpc.Client
	dial := func() *Client {
		return New(Config{GiveUp: time.Second, Dial: func(context.Context) (rpc.Client, error) { return conn, nil }})
	}
	plain := func() registering {
		return registering{
			flaky: flaky{server: &flakyServer{lives: 1, xids: map[uint32]int{}}, left: 1},
			live:  map[*byte]bool{},
		}
	}
	for _, c := range []struct {
		what           string
		none           error
		able, mapped   bool
		direct, normal int
		fails          bool
	}{
		{"reaches it", nil, true, false, 1, 0, false},
		{"reaches it, mapped", nil, true, true, 1, 0, false},
		{"does not", ErrNoDMABuf, true, false, 0, 0, true},
		{"does not, mapped", ErrNoDMABuf, true, true, 0, 1, false},
		{"is out of resources", errors.New("full"), true, true, 0, 0, true},
		{"knows nothing of it", nil, false, false, 0, 0, true},
		{"knows nothing of it, mapped", nil, false, true, 0, 1, false},
	} {
		r := &reaching{registering: plain(), bufs: map[*byte]int{}, none: c.none}
		if conn = r; !c.able {
			conn = &r.registering
		}
		cl := dial()
		if err := cl.RPC().Call(context.Background(), &rpc.Request{}); err != nil {
			t.Fatal(err)
		}
		m, err := cl.RegisterDMABuf(DMABuf{Offset: 4096, Names: names, Mapped: c.mapped})
		if (err != nil) != c.fails || c.none != nil && c.fails && !errors.Is(err, c.none) {
			t.Errorf("%s: %v", c.what, err)
		}
		if len(r.bufs) != c.direct || len(r.live) != c.normal {
			t.Errorf("%s: %v, %v", c.what, r.bufs, r.live)
		}
		if err == nil {
			if len(m.Bytes()) != 5 || c.direct > 0 && r.bufs[&m.Bytes()[0]] != 4096 {
				t.Errorf("%s: %d bytes at %v", c.what, len(m.Bytes()), r.bufs)
			}
			m.Close()
			m.Close()
			if len(r.bufs)+len(r.live) != 0 {
				t.Errorf("%s: registered after Close", c.what)
			}
		}
		cl.Close()
	}
}

// choosy is a connection that reaches memory of other devices if it was made for that.
type choosy struct {
	reaching
	forDMABufs bool
}

func (c *choosy) RegisterDMABuf(fd int, offset uint64, names []byte) (func(), error) {
	if !c.forDMABufs {
		return nil, rpc.ErrNotForDMABufs
	}
	return c.reaching.RegisterDMABuf(fd, offset, names)
}

// TestDMABufConnection: who has memory of another device has a connection that was made for it,
// whether the memory is there before the connection, after it, or is registered while it is being
// made or has all that there was.
func TestDMABufConnection(t *testing.T) {
	for _, when := range []string{"before", "after", "meanwhile", "last"} {
		var conns []*choosy
		var register func()
		cl := New(Config{GiveUp: time.Second, Dial: func(ctx context.Context) (rpc.Client, error) {
			c := &choosy{reaching{registering{
				flaky: flaky{server: &flakyServer{lives: 1, xids: map[uint32]int{}}, left: 1},
				live:  map[*byte]bool{},
			}, map[*byte]int{}, nil}, rpc.ForDMABufs(ctx)}
			conns = append(conns, c)
			if when == "meanwhile" && len(conns) == 1 {
				register()
			}
			return c, nil
		}})
		defer cl.Close()
		names := make([]byte, 5)
		register = func() {
			t.Helper()
			m, err := cl.RegisterDMABuf(DMABuf{Names: names})
			if err != nil {
				t.Fatalf("%s: %v", when, err)
			}
			t.Cleanup(m.Close)
		}
		call := func() {
			t.Helper()
			if err := cl.RPC().Call(context.Background(), &rpc.Request{}); err != nil {
				t.Fatalf("%s: %v", when, err)
			}
		}
		want := 2
		switch when {
		case "before":
			want = 1
			register()
		case "after":
			call()
			register()
			conns[0].left = 1
		case "last":
			cl.nfs.hook(func(context.Context, rpc.Client) error {
				if len(conns) == 1 {
					register()
				}
				return nil
			})
		}
		call()
		last := conns[len(conns)-1]
		if len(conns) != want || !last.forDMABufs || len(last.bufs) != 1 {
			t.Errorf("%s: %d connections, the last of them %t with %d", when, len(conns), last.forDMABufs, len(last.bufs))
		}
		if want == 2 && (conns[0].forDMABufs || len(conns[0].bufs) != 0) {
			t.Errorf("%s: the first connection has the memory", when)
		}
	}
}

// closing is a connection with which the first memory is registered while other memory is closed.
type closing struct {
	registering
	other map[*byte]*Memory
}

func (c *closing) Register(buf []byte) (func(), error) {
	if m := c.other[&buf[0]]; m != nil {
		clear(c.other)
		m.Close()
	}
	return c.registering.Register(buf)
}

// TestMemoryClosed: memory that is closed while a connection is made is not registered with it.
func TestMemoryClosed(t *testing.T) {
	conn := &closing{registering{
		flaky: flaky{server: &flakyServer{lives: 1, xids: map[uint32]int{}}, left: 1},
		live:  map[*byte]bool{},
	}, map[*byte]*Memory{}}
	c := New(Config{GiveUp: time.Second, Dial: func(context.Context) (rpc.Client, error) { return conn, nil }})
	defer c.Close()
	a, b := make([]byte, 10), make([]byte, 10)
	for buf, other := range map[*[]byte]*byte{&a: &b[0], &b: &a[0]} {
		m, err := c.Register(*buf)
		if err != nil {
			t.Fatal(err)
		}
		conn.other[other] = m
	}
	if err := c.RPC().Call(context.Background(), &rpc.Request{}); err != nil {
		t.Fatal(err)
	}
	if len(conn.live) != 1 {
		t.Errorf("%d are registered, of which one was closed", len(conn.live))
	}
}

// TestUntouchable: memory of another device is told from other memory, unless it is mapped.
func TestUntouchable(t *testing.T) {
	c := New(Config{})
	defer c.Close()
	b := make([]byte, 30)
	names, mapped, plain := b[:10:10], b[10:20:20], b[20:]
	for _, d := range []DMABuf{{Names: names}, {Names: mapped, Mapped: true}} {
		m, err := c.RegisterDMABuf(d)
		if err != nil {
			t.Fatal(err)
		}
		defer m.Close()
	}
	if m, err := c.Register(plain); err != nil {
		t.Fatal(err)
	} else {
		defer m.Close()
	}
	for _, x := range []struct {
		b    []byte
		want bool
	}{
		{names, true},
		{names[9:], true},
		{names[3:5], true},
		{names[:0], false},
		{mapped, false},
		{plain, false},
		{make([]byte, 3), false},
		{nil, false},
	} {
		if c.nfs.unmapped(x.b) != x.want {
			t.Errorf("%d bytes: %t", len(x.b), !x.want)
		}
	}
}
