package rpcrdma

import (
	"bytes"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/rstored/rstored/rdma"
	"github.com/rstored/rstored/rpcrdma/rpc"
	"github.com/rstored/rstored/rpcrdma/xdr"
)

// rawClient sends messages unchanged, and opens any memory to the server.
type rawClient struct {
	t       *testing.T
	w       *world
	dev     *fakeDevice
	pd      *fakePD
	cq      rdma.CQ
	conn    rdma.Conn
	private []byte
	up      chan bool
	gone    chan struct{}
	replies chan []byte
	flags   chan rdma.WCFlags
	bufs    [][]byte
}

func (w *world) raw(responder uint8, private []byte) *rawClient {
	w.t.Helper()
	r := &rawClient{
		t: w.t, w: w, dev: w.net.device("192.0.2.77"), up: make(chan bool, 1), gone: make(chan struct{}),
		replies: make(chan []byte, 400), flags: make(chan rdma.WCFlags, 400),
	}
	pd, _ := r.dev.AllocPD()
	r.pd = pd.(*fakePD)
	w.t.Cleanup(func() {
		r.dev.loop.do(func() { r.conn.Close() })
		r.dev.Close()
	})
	r.dev.loop.do(func() {
		r.cq, _ = r.dev.CreateCQ(r.dev.loop, rdma.CQOptions{Depth: 1000, OnEvent: r.poll})
		r.conn, _ = r.dev.Dial(r.dev.loop, rdma.DialParams{
			Remote: serverAddr,
			QP: rdma.QPConfig{
				PD: pd, SendCQ: r.cq, RecvCQ: r.cq,
				Caps: rdma.QPCaps{MaxSendWR: 500, MaxRecvWR: 500, MaxSendSGE: 1, MaxRecvSGE: 1},
			},
			Params: rdma.ConnParams{PrivateData: private, ResponderResources: responder},
			Prepare: func(c rdma.Conn) error {
				for i := range 400 { // room for as many replies
					mr, _ := pd.Register(make([]byte, 4096), rdma.LocalWrite)
					r.bufs = append(r.bufs, mr.Bytes())
					c.QP().PostRecv([]rdma.RecvWR{{ID: uint64(i), SGL: []rdma.SGE{{Buf: mr.Bytes(), LKey: mr.LKey()}}}})
				}
				return nil
			},
			On: func(_ rdma.Conn, e rdma.ConnEvent) {
				switch e.Kind {
				case rdma.EventEstablished:
					r.private = bytes.Clone(e.PrivateData)
					r.up <- true
				case rdma.EventRejected:
					r.up <- false
				case rdma.EventDisconnected:
					close(r.gone)
				}
			},
		})
	})
	return r
}

var linuxPrivate = PrivateMessage{RemoteInvalidation: true, Send: 4096, Receive: 4096}.Append(nil)

func (w *world) rawUp() *rawClient {
	w.t.Helper()
	r := w.raw(16, linuxPrivate)
	if !<-r.up {
		w.t.Fatal("rejected")
	}
	return r
}

func (r *rawClient) poll() {
	var wc [16]rdma.WC
	for {
		n := r.cq.Poll(wc[:])
		if n == 0 {
			return
		}
		for _, c := range wc[:n] {
			if c.Op == rdma.WCRecv && c.Status == rdma.Success {
				r.flags <- c.Flags
				r.replies <- bytes.Clone(r.bufs[c.ID][:c.ByteLen])
			}
		}
	}
}

func (r *rawClient) send(msgs ...[]byte) {
	r.dev.loop.do(func() {
		for _, m := range msgs {
			mr, _ := r.pd.Register(m, 0)
			if err := r.conn.QP().PostSend([]rdma.SendWR{{
				Op: rdma.OpSend, Flags: rdma.Signaled,
				SGL: []rdma.SGE{{Buf: m, LKey: mr.LKey()}},
			}}); err != nil {
				r.t.Error(err)
			}
		}
	})
}

// reply waits for a message and parses it.
func (r *rawClient) reply() (*Header, []byte) {
	r.t.Helper()
	select {
	case b := <-r.replies:
		<-r.flags
		h := new(Header)
		rest, err := h.Parse(b)
		if errors.Is(err, ErrVersion) && b[7] == 2 { // ERR_VERS has the version of the call
			b[7] = Version
			rest, err = h.Parse(b)
		}
		if err != nil {
			r.t.Fatalf("%x: %v", b, err)
		}
		return h, rest
	case <-r.gone:
		r.t.Fatal("the connection is gone")
	case <-time.After(time.Minute):
		r.t.Fatal("no reply")
	}
	return nil, nil
}

func (r *rawClient) region(n int, access rdma.Access) *fakeMR {
	mr, _ := r.pd.Register(make([]byte, n), access)
	return mr.(*fakeMR)
}

// segments cuts a region into segments of the given lengths.
func segments(m *fakeMR, lengths ...int) (c Chunk) {
	at := 0
	for _, n := range lengths {
		c = append(c, Segment{Handle: m.rkey, Length: uint32(n), Offset: m.Addr() + uint64(at)})
		at += n
	}
	return c
}

const remoteWrite = rdma.LocalWrite | rdma.RemoteWrite

func rawCall(xid, proc uint32, args ...uint32) []byte {
	var e xdr.Encoder
	rpc.EncodeCall(&e, xid, testProg, testVers, proc, nil)
	for _, a := range args {
		e.Uint32(a)
	}
	return e.B
}

func message(h *Header, rest []byte) []byte {
	if h.Version == 0 {
		h.Version = Version
	}
	return append(h.Append(nil), rest...)
}

// alive checks that the server still serves other clients.
func (w *world) alive() {
	w.t.Helper()
	if err := put(w.dial("192.0.2.200", ClientConfig{}), 10, 5000); err != nil {
		w.t.Errorf("the server no longer serves others: %v", err)
	}
}

func TestSeveralWriteChunks(t *testing.T) {
	w := newWorld(t, Config{})
	r := w.rawUp()
	m := r.region(10_000, remoteWrite)
	pad := r.region(4, remoteWrite)
	second := r.region(1000, remoteWrite)
	fourth := r.region(100, remoteWrite)
	h := &Header{XID: 5, Credits: 32, Writes: []Chunk{
		append(segments(m, 1000, 0, 2000, 4000), segments(pad, 4)...), // 2501 bytes go here
		segments(second, 1000),                  // and 7 here
		{},                                      // empty: inline
		segments(fourth, 50, 50),                // not needed
		append(Chunk{}, segments(fourth, 1)...), // nor this
	}}
	r.send(message(h, rawCall(5, procGet, 3, 2501, 7, 6)))
	got, rest := r.reply()
	want := []Chunk{
		append(segments(m, 1000, 0, 2000, 4000), segments(pad, 4)...),
		segments(second, 7),
		{},
		segments(fourth, 0, 0), segments(fourth, 0),
	}
	want[0][2].Length, want[0][3].Length, want[0][4].Length = 1501, 0, 0
	want[0][3].Offset = m.Addr() + 3000
	want[3][1].Offset = fourth.Addr() + 50
	if fmt.Sprint(got.Writes) != fmt.Sprint(want) || got.Type != TypeMsg || len(got.Reads) != 0 || got.HasReply {
		t.Errorf("returned\n%v, want\n%v", got.Writes, want)
	}
	data := make([]byte, 2501)
	pattern(data, 0)
	if !bytes.Equal(m.buf[:2501], data) || !bytes.Equal(m.buf[2501:], make([]byte, len(m.buf)-2501)) {
		t.Error("the first chunk is not as it should be")
	}
	pattern(data, 1)
	if !bytes.Equal(second.buf[:7], data[:7]) || second.buf[7] != 0 || !bytes.Equal(pad.buf, make([]byte, 4)) {
		t.Error("the second chunk or the pad segment is not as it should be")
	}
	d := xdr.NewDecoder(rest)
	if err := rpc.DecodeReply(&d, 5); err != nil {
		t.Fatal(err)
	}
	pattern(data, 2)
	if a, b, c := d.Uint32(), d.Uint32(),
		d.Opaque(100); a != 2501 || b != 7 || !bytes.Equal(c, data[:6]) || d.Uint32() != 0xabcd || d.Remaining() != 0 {
		t.Errorf("inline part: %x", rest)
	}
}

// TestRoomForBulk: if a handler uses all the room that BulkMax and NextBulk report, the reply fits.
func TestRoomForBulk(t *testing.T) {
	w := newWorld(t, Config{})
	r := w.rawUp()
	for _, c := range []struct {
		name   string
		chunks int // Write chunks, of which the first is for 100 bytes and the others for none
		reply  bool
		min    int // of all bytes together
	}{
		{"one chunk", 1, false, 1000},
		{"one chunk, and an empty one", 2, false, 1000},
		{"no chunk", 0, false, 1000},
		{"a chunk and a Reply chunk", 1, true, 19_000},
		{"a Reply chunk", 0, true, 19_000},
	} {
		first, long := r.region(100, remoteWrite), r.region(20_000, remoteWrite) // a reply may invalidate their keys
		h := &Header{XID: 5, Credits: 32, HasReply: c.reply}
		for i := range c.chunks {
			if i == 0 {
				h.Writes = append(h.Writes, segments(first, 100))
			} else {
				h.Writes = append(h.Writes, Chunk{})
			}
		}
		if c.reply {
			h.Reply = segments(long, 20_000)
		}
		r.send(message(h, rawCall(5, procFill, 3)))
		got, rest := r.reply()
		if got.Type == TypeError {
			t.Errorf("%s: refused", c.name)
			continue
		}
		if got.Type == TypeNoMsg {
			rest = long.buf[:got.Reply.Len()]
		}
		d := xdr.NewDecoder(rest)
		if err := rpc.DecodeReply(&d, 5); err != nil {
			t.Fatal(err)
		}
		total := 0
		for i := range 3 {
			n := int(d.Uint32())
			total += n
			if i > 0 || c.chunks == 0 {
				want := make([]byte, n)
				pattern(want, i)
				if b := d.Fixed(n); !bytes.Equal(b, want) {
					t.Errorf("%s: item %d is not as it should be", c.name, i)
				}
			}
		}
		if d.Uint32() != 0xabcd || d.Remaining() != 0 || total < c.min {
			t.Errorf("%s: %d bytes, %d left over", c.name, total, d.Remaining())
		}
	}
}
