package rpcrdma

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/rstored/rstored/rdma"
	"github.com/rstored/rstored/rpcrdma/rpc"
	"github.com/rstored/rstored/rpcrdma/xdr"
)

// rawClient sends messages as they are and exposes memory as the test likes.
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
				for i := range 400 { // as many replies can come
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

// alive checks that the server still serves others.
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

// TestRoomForBulk: a handler that fills what room it is told that there is for bulk
// results has a reply that fits.
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

func TestReadChunkPositions(t *testing.T) {
	w := newWorld(t, Config{ReadSize: 4096})
	r := w.rawUp()
	// PUT of four opaques: 5 bytes in a chunk, 8 inline, 10,001 in a chunk of
	// many segments, 4 in a chunk that includes no padding; then a word.
	lengths := []int{5, 8, 10_001, 4}
	var e xdr.Encoder
	rpc.EncodeCall(&e, 9, testProg, testVers, procPut, nil)
	e.Uint32(4)
	var reads []ReadSegment
	moved := 0
	var sums []uint32
	for i, n := range lengths {
		m := r.region(n, rdma.RemoteRead)
		pattern(m.buf, i)
		sums = append(sums, sum(m.buf), uint32(n))
		if i == 1 {
			e.Opaque(m.buf)
			continue
		}
		e.Uint32(uint32(n))
		pos := uint32(len(e.B) + moved)
		moved += xdr.Padded(n)
		cut := []int{n}
		if i == 2 {
			cut = []int{1, 0, 3}
			for range 40 {
				cut = append(cut, 100)
			}
			cut = append(cut, 10_001-4004)
		}
		for _, s := range segments(m, cut...) {
			reads = append(reads, ReadSegment{Position: pos, Segment: s})
		}
	}
	e.Uint32(0xabcd)
	last := reads[len(reads)-1]
	for _, order := range [][]ReadSegment{reads, append([]ReadSegment{last}, reads[:len(reads)-1]...)} {
		r.send(message(&Header{XID: 9, Reads: order}, e.B))
		h, rest := r.reply()
		d := xdr.NewDecoder(rest)
		if err := rpc.DecodeReply(&d, 9); err != nil || h.Type != TypeMsg {
			t.Fatal(err)
		}
		for i, s := range sums {
			if v := d.Uint32(); v != s {
				t.Errorf("result %d is %#x, want %#x", i, v, s)
			}
		}
	}

	// The same in a long call: the stream itself comes from position 0.
	stream := r.region(len(e.B), rdma.RemoteRead)
	copy(stream.buf, e.B)
	var long []ReadSegment
	for _, s := range segments(stream, 10, len(e.B)-10) {
		long = append(long, ReadSegment{Segment: s})
	}
	r.send(message(&Header{XID: 9, Type: TypeNoMsg, Reads: append(long, reads...)}, nil))
	_, rest := r.reply()
	d := xdr.NewDecoder(rest)
	if err := rpc.DecodeReply(&d, 9); err != nil || d.Uint32() != sums[0] || d.Uint32() != 5 {
		t.Errorf("long call with further chunks: %v", err)
	}
}

func TestReadsInFlight(t *testing.T) {
	w := newWorld(t, Config{ReadDepth: 4, ReadSize: 1000})
	var mu sync.Mutex
	var posted []int
	w.net.posted = func(reads int) {
		mu.Lock()
		posted = append(posted, reads)
		mu.Unlock()
	}
	r := w.rawUp()
	m := r.region(20_000, rdma.RemoteRead)
	var e xdr.Encoder
	rpc.EncodeCall(&e, 9, testProg, testVers, procPut, nil)
	e.Uint32(1)
	e.Uint32(20_000)
	h := &Header{XID: 9, Reads: []ReadSegment{{uint32(len(e.B)), segments(m, 20_000)[0]}}}
	e.Uint32(0xabcd)
	r.send(message(h, e.B))
	r.reply()
	mu.Lock()
	defer mu.Unlock()
	if slices.Max(posted) != 4 {
		t.Errorf("at most %d RDMA READs in flight, want 4", slices.Max(posted))
	}
}

// TestReadBytes: a Read chunk waits, without memory, until what is fetched already leaves
// room, and a call that has nothing to fetch does not wait for it.
func TestReadBytes(t *testing.T) {
	w := newWorld(t, Config{ReadDepth: 16, ReadSize: 4096, ReadBytes: 12_000})
	var mu sync.Mutex
	most := 0
	w.net.posted = func(reads int) {
		mu.Lock()
		most = max(most, reads)
		mu.Unlock()
	}
	r := w.rawUp()
	const calls, n = 8, 5 * 4096 // whole READs, so that what is in flight says how many they are
	var msgs [][]byte
	for i := range uint32(calls) {
		m := r.region(n, rdma.RemoteRead) // of its own, as the reply invalidates it
		var e xdr.Encoder
		rpc.EncodeCall(&e, i+1, testProg, testVers, procPut, nil)
		e.Uint32(1)
		e.Uint32(n)
		h := &Header{XID: i + 1, Credits: 32, Reads: []ReadSegment{{uint32(len(e.B)), segments(m, n)[0]}}}
		e.Uint32(0xabcd)
		msgs = append(msgs, message(h, e.B))
	}
	r.send(msgs...)
	seen := make(map[uint32]bool)
	for range calls {
		h, rest := r.reply()
		d := xdr.NewDecoder(rest)
		if err := rpc.DecodeReply(&d, h.XID); err != nil || d.Uint32() != sum(make([]byte, n)) || seen[h.XID] {
			t.Errorf("call %d: %v", h.XID, err)
		}
		seen[h.XID] = true
	}
	mu.Lock()
	defer mu.Unlock()
	if most != 3 {
		t.Errorf("at most %d RDMA READs in flight, want 3", most)
	}
}

func TestCreditsGranted(t *testing.T) {
	w := newWorld(t, Config{Credits: 12})
	r := w.rawUp()
	for _, c := range []struct{ asked, want uint32 }{{0, 1}, {1, 1}, {11, 11}, {12, 12}, {13, 12}, {1<<32 - 1, 12}} {
		r.send(message(&Header{XID: 1, Credits: c.asked}, rawCall(1, procNull)))
		if h, _ := r.reply(); h.Credits != c.want {
			t.Errorf("asked for %d, granted %d, want %d", c.asked, h.Credits, c.want)
		}
		r.send(message(&Header{XID: 1, Credits: c.asked, Type: TypeMsgP}, nil))
		if h, _ := r.reply(); h.Credits != c.want || h.Type != TypeError {
			t.Errorf("asked for %d, an error granted %d, want %d", c.asked, h.Credits, c.want)
		}
	}
}

// TestCreditsGrow: who has most of its credits in use gets more, up to the limit, and
// there is a receive for each.
func TestCreditsGrow(t *testing.T) {
	w := newWorld(t, Config{Credits: 100})
	r := w.rawUp()
	xid := uint32(0)
	for _, c := range []struct{ calls, want uint32 }{
		{1, 16},
		{12, 16},
		{13, 32},
		{24, 32},
		{25, 64},
		{1, 64},
		{64, 100},
		{100, 100},
	} {
		for range c.calls {
			xid++
			r.send(message(&Header{XID: xid, Credits: 1000}, rawCall(xid, procWait)))
		}
		for range c.calls {
			w.svc.gate <- struct{}{}
		}
		for range c.calls {
			if h, _ := r.reply(); h.XID == xid && h.Credits != c.want {
				t.Errorf("%d calls at once, the reply to the last grants %d, want %d", c.calls, h.Credits, c.want)
			}
		}
	}
}

func TestMoreCallsThanCredits(t *testing.T) {
	w := newWorld(t, Config{Credits: 2})
	r := w.rawUp()
	var msgs [][]byte
	for i := range uint32(60) {
		msgs = append(msgs, message(&Header{XID: i + 1}, rawCall(i+1, procWait)))
	}
	r.send(msgs...)
	w.inUse(receives(2))
	close(w.svc.gate)
	for range msgs {
		r.reply()
	}
}

func TestPrivateMessageAnswered(t *testing.T) {
	w := newWorld(t, Config{})
	r := w.rawUp()
	if m, ok := ParsePrivate(r.private); !ok || m != (PrivateMessage{true, 4096, 4096}) {
		t.Errorf("%+v %v", m, ok)
	}
	// A client without one gets messages of 1024 bytes, and no invalidation.
	old := w.raw(16, nil)
	if !<-old.up {
		t.Fatal("rejected")
	}
	m := old.region(8192, remoteWrite)
	old.send(message(&Header{XID: 3, HasReply: true, Reply: segments(m, 8192)}, rawCall(3, procText, 1000)))
	if h, _ := old.reply(); h.Type != TypeNoMsg || h.Reply.Len() != 24+4+1000 {
		t.Errorf("%v, %d bytes in the Reply chunk", h.Type, h.Reply.Len())
	}
	if n := w.l.Stats().Messages["sent_with_invalidate"]; n != 0 {
		t.Errorf("%d R_Keys invalidated of a client that did not ask for it", n)
	}
	if none := w.raw(0, linuxPrivate); <-none.up {
		t.Error("a client that serves no RDMA READ was accepted")
	}
}

func TestInvalidateOnlyTheOneKey(t *testing.T) {
	w := newWorld(t, Config{})
	r := w.rawUp()
	for i, c := range []struct {
		extra bool
		want  rdma.WCFlags
	}{{false, rdma.WithInv}, {true, 0}} {
		m := r.region(8192, remoteWrite)
		chunk := segments(m, 4096, 4096)
		if c.extra {
			chunk = append(chunk, segments(r.region(4, remoteWrite), 4)...)
		}
		xid := uint32(i + 1)
		r.send(message(&Header{XID: xid, Writes: []Chunk{chunk}}, rawCall(xid, procGet, 1, 5000)))
		<-r.replies
		if f := <-r.flags; f != c.want {
			t.Errorf("case %d: flags %d, want %d", i, f, c.want)
		}
	}
}

// A READDIR of large entries: the Reply chunk is larger than 1 MiB.
func TestReplyChunkBeyondOneMiB(t *testing.T) {
	w := newWorld(t, Config{})
	r := w.rawUp()
	m := r.region(1<<20+8192, remoteWrite)
	var cut []int
	for n := len(m.buf); n > 0; n -= 131072 {
		cut = append(cut, min(n, 131072))
	}
	r.send(message(&Header{XID: 3, HasReply: true, Reply: segments(m, cut...)}, rawCall(3, procText, 1<<20+4096)))
	h, _ := r.reply()
	if h.Type != TypeNoMsg || h.Reply.Len() != 24+4+1<<20+4096 {
		t.Fatalf("%v, %d bytes", h.Type, h.Reply.Len())
	}
	d := xdr.NewDecoder(m.buf)
	if err := rpc.DecodeReply(&d, 3); err != nil {
		t.Fatal(err)
	}
	want := make([]byte, 1<<20+4096)
	pattern(want, 3)
	if !bytes.Equal(d.Opaque(1<<21), want) {
		t.Error("wrong data")
	}
}

// TestManySegments: 64 segments of uneven length in a Write chunk and in a Reply chunk.
func TestManySegments(t *testing.T) {
	w := newWorld(t, Config{})
	r := w.rawUp()
	cut := make([]int, MaxChunkSegments)
	total := 0
	for i := range cut {
		cut[i] = 1 + 37*i
		total += cut[i]
	}
	m := r.region(total, remoteWrite)
	r.send(message(&Header{XID: 5, Writes: []Chunk{segments(m, cut...)}}, rawCall(5, procGet, 1, uint32(total))))
	h, _ := r.reply()
	want := make([]byte, total)
	pattern(want, 0)
	if len(h.Writes) != 1 || len(h.Writes[0]) != len(cut) || h.Writes[0].Len() != total || !bytes.Equal(m.buf, want) {
		t.Errorf("the Write chunk came back as %v", h.Writes)
	}
	const text = 50_000
	m = r.region(total, remoteWrite)
	r.send(message(&Header{XID: 6, HasReply: true, Reply: segments(m, cut...)}, rawCall(6, procText, text)))
	h, _ = r.reply()
	d := xdr.NewDecoder(m.buf)
	if err := rpc.DecodeReply(&d, 6); err != nil || h.Type != TypeNoMsg {
		t.Fatalf("%v %v", h.Type, err)
	}
	want = make([]byte, text)
	pattern(want, 3)
	if !bytes.Equal(d.Opaque(text), want) {
		t.Error("the Reply chunk has wrong data")
	}
}

func TestRefusals(t *testing.T) {
	w := newWorld(t, Config{})
	r := w.rawUp()
	m := r.region(1<<20, remoteWrite|rdma.RemoteRead)
	seg := func(n int) Segment { return segments(m, n)[0] }
	null := rawCall(7, procNull)
	for _, c := range []struct {
		name    string
		msg     []byte
		code    ErrorCode // 0: dropped
		counter string
	}{
		{"empty", []byte{}, 0, "rpcrdma_short_message"},
		{"short", words(7, 1, 1, 0, 0, 0), 0, "rpcrdma_short_message"},
		{"no RPC message", words(7, 1, 1, 0, 0, 0, 0), 0, "rpcrdma_short_message"},
		{"version", append(words(7, 2, 1, 0, 0, 0, 0), null...), CodeVers, "rpcrdma_version_mismatch"},
		{"unknown type", append(words(7, 1, 1, 9, 0, 0, 0), null...), CodeChunk, "rpcrdma_malformed_header"},
		{"RDMA_MSGP", append(words(7, 1, 1, 2, 4, 4, 0, 0, 0), null...), CodeChunk, "rpcrdma_obsolete_message"},
		{"RDMA_DONE", words(7, 1, 1, 3), 0, "recv_rdma_done"},
		{"RDMA_ERROR", words(7, 1, 1, 4, 2), 0, "recv_rdma_error"},
		{"an RPC reply", append(words(7, 1, 1, 0, 0, 0, 0), words(7, 1, 0, 0, 0, 0)...), 0, "rpcrdma_backward_message"},
		{"bad list", append(words(7, 1, 1, 0, 3, 0, 0), null...), CodeChunk, "rpcrdma_malformed_header"},
		{
			"65 segments", message(&Header{XID: 7, Writes: []Chunk{segments(m, make([]int, 65)...)}}, null), CodeChunk,
			"rpcrdma_too_many_segments",
		},
		{"long call without a chunk", message(&Header{XID: 7, Type: TypeNoMsg}, nil), CodeChunk, "rpcrdma_bad_read_position"},
		{
			"long call elsewhere", message(&Header{XID: 7, Type: TypeNoMsg, Reads: []ReadSegment{{4, seg(40)}}}, nil), CodeChunk,
			"rpcrdma_bad_read_position",
		},
		{
			"position 0 in a message", message(&Header{XID: 7, Reads: []ReadSegment{{0, seg(40)}}}, null), CodeChunk,
			"rpcrdma_bad_read_position",
		},
		{
			"position beyond the message",
			message(&Header{XID: 7, Reads: []ReadSegment{{uint32(len(null) + 4), seg(40)}}}, null), CodeChunk,
			"rpcrdma_bad_read_position",
		},
		{
			"position not of a word", message(&Header{XID: 7, Reads: []ReadSegment{{6, seg(40)}}}, null), CodeChunk,
			"rpcrdma_bad_read_position",
		},
		{
			"chunks that overlap", message(&Header{XID: 7, Reads: []ReadSegment{{8, seg(40)}, {16, seg(40)}}}, null), CodeChunk,
			"rpcrdma_bad_read_position",
		},
		{
			"more than a buffer", message(&Header{XID: 7, Reads: []ReadSegment{{40, seg(1 << 20)}, {40, seg(1 << 20)}}}, null),
			CodeChunk, "rpcrdma_call_too_long",
		},
		{
			"4 GiB", message(&Header{
				XID:   7,
				Reads: []ReadSegment{{40, Segment{m.rkey, 1<<32 - 1, m.Addr()}}, {40, Segment{m.rkey, 1<<32 - 1, m.Addr()}}},
			}, null),
			CodeChunk, "rpcrdma_call_too_long",
		},
		{"XIDs differ", message(&Header{XID: 8}, null), CodeChunk, "rpcrdma_xid_mismatch"},
		{
			"XIDs differ in a long call", message(&Header{XID: 7, Type: TypeNoMsg, Reads: []ReadSegment{{0, seg(40)}}}, nil),
			CodeChunk, "rpcrdma_xid_mismatch",
		},
		{
			"result longer than its chunk",
			message(&Header{XID: 7, Writes: []Chunk{segments(m, 50, 49)}}, rawCall(7, procGet, 1, 100)), CodeChunk,
			"rpcrdma_reply_too_long",
		},
		{
			"reply longer than its chunk",
			message(&Header{XID: 7, HasReply: true, Reply: segments(m, 4000)}, rawCall(7, procText, 4100)), CodeChunk,
			"rpcrdma_reply_too_long",
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			before := w.l.Stats()
			r.send(c.msg)
			if c.code != 0 {
				h, rest := r.reply()
				if h.Type != TypeError || h.Code != c.code || len(rest) != 0 {
					t.Errorf("%+v", h)
				}
				if c.code == CodeVers && (h.Low != 1 || h.High != 1) {
					t.Errorf("versions %d to %d", h.Low, h.High)
				}
				if len(c.msg) > 4 && h.XID != binary.BigEndian.Uint32(c.msg) {
					t.Errorf("XID %d", h.XID)
				}
			}
			r.send(message(&Header{XID: 99}, rawCall(99, procNull)))
			if h, _ := r.reply(); h.XID != 99 {
				t.Errorf("then %+v", h)
			}
			after := w.l.Stats()
			if after.Errors[c.counter]+after.Messages[c.counter] != before.Errors[c.counter]+before.Messages[c.counter]+1 {
				t.Errorf("%s was not counted", c.counter)
			}
		})
	}
	if m.buf[0] != 0 {
		t.Error("something was written")
	}
}

func TestChunksThatCannotBeReached(t *testing.T) {
	for _, c := range []struct {
		name    string
		msg     func(r *rawClient) []byte
		counter string
	}{
		{"read chunk with a wrong key", func(r *rawClient) []byte {
			m := r.region(5000, rdma.RemoteRead)
			return message(&Header{XID: 7, Reads: []ReadSegment{{40, Segment{m.rkey + 1, 5000, m.Addr()}}}},
				rawCall(7, procPut, 1, 5000))
		}, "rpcrdma_read_failed"},
		{"read chunk beyond the region", func(r *rawClient) []byte {
			m := r.region(5000, rdma.RemoteRead)
			return message(&Header{XID: 7, Reads: []ReadSegment{{40, Segment{m.rkey, 5001, m.Addr()}}}},
				rawCall(7, procPut, 1, 5001))
		}, "rpcrdma_read_failed"},
		{"write chunk without permission", func(r *rawClient) []byte {
			m := r.region(5000, rdma.RemoteRead)
			return message(&Header{XID: 7, Writes: []Chunk{segments(m, 5000)}}, rawCall(7, procGet, 1, 5000))
		}, "rpcrdma_write_failed"},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(t, Config{})
			r := w.rawUp()
			r.send(c.msg(r))
			<-r.gone
			w.alive()
			deadline := time.Now().Add(time.Minute)
			for w.l.Stats().Errors[c.counter] == 0 && time.Now().Before(deadline) {
				time.Sleep(time.Millisecond)
			}
			if n := w.l.Stats().Errors[c.counter]; n != 1 {
				t.Errorf("counted %d: %v", n, w.l.Stats().Errors)
			}
		})
	}
}

func TestClientGoesAwayDuringItsCalls(t *testing.T) {
	w := newWorld(t, Config{})
	r := w.rawUp()
	m := r.region(1<<20, remoteWrite|rdma.RemoteRead)
	var msgs [][]byte
	for i := range uint32(30) {
		msgs = append(msgs, message(&Header{XID: i, Writes: []Chunk{segments(m, 100_000)}}, rawCall(i, procGet, 1, 100_000)),
			message(&Header{XID: i + 100}, rawCall(i+100, procWait)))
	}
	r.send(msgs...)
	r.dev.loop.do(func() { r.conn.Disconnect() })
	w.alive()
	close(w.svc.gate)
	// That everything comes back is checked at the end.
}

func FuzzServer(f *testing.F) {
	for _, b := range kernelHeaders(f, headerFile) {
		f.Add(append(bytes.Clone(b), rawCall(binary.BigEndian.Uint32(b), procPut, 1, 8, 1, 2, 0xabcd)...))
	}
	f.Add(message(&Header{XID: 1, Reads: []ReadSegment{{40, Segment{}}}}, rawCall(1, procPut, 0, 0xabcd)))
	f.Add(message(&Header{XID: 1, Writes: []Chunk{{}, {{}}}, HasReply: true}, rawCall(1, procText, 5000)))
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) > 4096 {
			return
		}
		w := newWorld(t, Config{Credits: 2, MaxConns: 4})
		r := w.rawUp()
		close(w.svc.gate)
		r.send(b, message(&Header{XID: 99}, rawCall(99, procNull)))
		for {
			select {
			case m := <-r.replies:
				<-r.flags
				if binary.BigEndian.Uint32(m) == 99 {
					return
				}
				continue
			case <-r.gone: // it named memory that is not there
			case <-time.After(time.Minute):
				t.Fatalf("no reply after %x", b)
			}
			return
		}
	})
}
