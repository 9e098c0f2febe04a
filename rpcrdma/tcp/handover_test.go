package tcp

import (
	"bytes"
	"encoding/binary"
	"net"
	"testing"
	"time"

	"github.com/rstored/rstored/rpcrdma/rpc"
	"github.com/rstored/rstored/rpcrdma/xdr"
)

// callRecord makes the record of a call of the test's program.
func callRecord(xid, proc uint32, data []byte) []byte {
	var e xdr.Encoder
	for _, w := range []uint32{xid, rpc.MsgCall, 2, prog, 1, proc, 0, 0, 0, 0} {
		e.Uint32(w)
	}
	e.Opaque(data)
	mark := rpc.RecordMark(len(e.B))
	return append(mark[:], e.B...)
}

// heard reads the reply to an echo, and returns its XID and data.
func heard(t *testing.T, c net.Conn) (uint32, []byte) {
	t.Helper()
	if err := c.SetReadDeadline(time.Now().Add(20 * time.Second)); err != nil {
		t.Fatal(err)
	}
	b, err := rpc.ReadRecord(c, nil, 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	d := xdr.NewDecoder(b)
	xid := d.Uint32()
	for range 5 { // reply, accepted, verifier of no bytes, success
		d.Uint32()
	}
	return xid, d.Opaque(1 << 20)
}

// rests waits until all connections are quiescent.
func rests(t *testing.T, s *Listener) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); len(s.Busy()) > 0; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%+v", s.Busy())
		}
	}
}

// TestCallBackUnderWay: a connection is not quiescent while the writer has a call to the client
// that it has not begun to write.
func TestCallBackUnderWay(t *testing.T) {
	near, far := net.Pipe()
	defer near.Close()
	defer far.Close()
	s, _, _ := serve(t, Config{})
	c := newConn(s, near, rpc.Peer{}) // without goroutines
	c.paused = true
	rests := func(want bool, when string) {
		t.Helper()
		if ok, calls := c.quiescent(); ok != want {
			t.Errorf("%s: still is %t, with %d calls", when, ok, calls)
		}
	}
	<-c.free // the reader has one
	rests(true, "at first")
	if !c.callBack([]byte("a call")) {
		t.Fatal("there is no room")
	}
	rests(false, "queued")
	k := <-c.replies
	rests(false, "taken")
	c.recycle(k)
	rests(true, "written")
	for c.callBack(nil) {
	}
	for range cap(c.replies) {
		c.recycle(<-c.replies)
	}
	rests(true, "after more than fit")
}

// TestHandover: a connection goes to another Listener in the middle of a call. Neither the call nor
// the connection is lost. A new connection waits meanwhile.
func TestHandover(t *testing.T) {
	first, addr, release := serve(t, Config{})
	c, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	send := func(b []byte) {
		t.Helper()
		if _, err := c.Write(b); err != nil {
			t.Fatal(err)
		}
	}
	send(callRecord(1, procEcho, []byte("before")))
	if xid, b := heard(t, c); xid != 1 || string(b) != "before" {
		t.Fatalf("%d: %q", xid, b)
	}
	peer := first.Conns()[0].Remote

	// A complete call is served. A partial call stays in the connection.
	data := bytes.Repeat([]byte("half"), 20_000)
	cut := callRecord(3, procSlow, data)
	send(callRecord(2, procWait, nil))
	for first.Conns()[0].Calls < 2 {
		time.Sleep(time.Millisecond)
	}
	send(cut[:50_001])
	first.Pause(true)
	if b := first.Busy(); len(b) != 1 || b[0].Remote != peer {
		t.Fatalf("with a call in progress: %+v", b)
	}
	if _, files, err := first.Export(); err != nil || len(files) != 0 {
		t.Fatalf("exported with a call in progress: %d, %v", len(files), err)
	}
	close(release)
	if xid, _ := heard(t, c); xid != 2 {
		t.Fatalf("the call in progress: %d", xid)
	}
	rests(t, first)

	// The handover fails, and the old Listener continues.
	first.Pause(false)
	send(cut[50_001:])
	if xid, b := heard(t, c); xid != 3 || !bytes.Equal(b, data) {
		t.Fatalf("%d: %d bytes", xid, len(b))
	}

	// Now another Listener takes over.
	for i, at := range []int{0, 2, 4, 50_001, len(cut)} {
		var second *Listener
		binary.BigEndian.PutUint32(cut[4:], uint32(i))
		send(cut[:at])
		first.Pause(true)
		rests(t, first)
		late, err := net.Dial("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		out, files, err := first.Export()
		if err != nil || len(files) == 0 {
			t.Fatalf("%d connections: %v", len(files), err)
		}
		f, err := first.l.(*net.TCPListener).File()
		if err != nil {
			t.Fatal(err)
		}
		l, err := net.FileListener(f)
		_ = f.Close()
		if err != nil {
			t.Fatal(err)
		}
		second = Config{Later: true}.Serve(l, first.srv)
		n, err := second.Import(out, files)
		if err != nil || n != len(files) {
			t.Fatalf("%d connections: %v", n, err)
		}
		t.Cleanup(func() { _ = second.Close() })
		second.Start()
		send(cut[at:])
		if xid, b := heard(t, c); xid != uint32(i) || !bytes.Equal(b, data) {
			t.Fatalf("cut at %d: %d, %d bytes", at, xid, len(b))
		}
		if _, err := late.Write(callRecord(77, procEcho, []byte("late"))); err != nil {
			t.Fatal(err)
		}
		if xid, b := heard(t, late); xid != 77 || string(b) != "late" {
			t.Fatalf("a connection that was made meanwhile: %d, %q", xid, b)
		}
		_ = late.Close()
		found := false
		for _, k := range second.Conns() {
			found = found || k.Remote == peer && k.Calls >= uint64(3+i)
		}
		if !found {
			t.Fatalf("connections: %+v", second.Conns())
		}
		first = second // the old Listener stays paused until the test ends
	}
}

// TestHandoverCounts: all connections that are handed over are admitted, also beyond the limits.
// They count against the limits for new ones.
func TestHandoverCounts(t *testing.T) {
	first, addr, _ := serve(t, Config{})
	var conns []*Client
	for range 3 {
		c := dial(t, addr)
		if err := echo(c, procEcho, nil); err != nil {
			t.Fatal(err)
		}
		conns = append(conns, c)
	}
	first.Pause(true)
	rests(t, first)
	out, files, err := first.Export()
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	door := rpc.NewConnLimiter(rpc.ConnLimits{Clients: 1, PerClient: 2, Descriptors: 1})
	second := Config{Later: true, MaxConns: 1, Limiter: door}.Serve(l, first.srv)
	defer func() { _ = second.Close() }()
	if n, err := second.Import(out, files); n != len(conns) || err != nil {
		t.Fatalf("%d connections: %v", n, err)
	}
	second.Start()
	for _, c := range conns {
		if err := echo(c, procEcho, make([]byte, 1000)); err != nil {
			t.Error(err)
		}
	}
	if st := door.Stats(); st.Clients != 1 || st.Descriptors != len(conns) {
		t.Errorf("at the door: %+v", st)
	}
	if err := echo(dial(t, second.Addr().String()), procEcho, nil); err == nil {
		t.Error("one more was let in")
	}
	_ = second.Close()
	if st := door.Stats(); st.Clients != 0 || st.Descriptors != 0 {
		t.Errorf("at the door, after the end: %+v", st)
	}
}

// TestDamagedImport: Import refuses data that is no snapshot.
func TestDamagedImport(t *testing.T) {
	s, _, _ := serve(t, Config{})
	if _, err := s.Import([]byte("nothing"), nil); err == nil {
		t.Error("taken")
	}
}
