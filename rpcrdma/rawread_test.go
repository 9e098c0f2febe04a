package rpcrdma

import (
	"slices"
	"sync"
	"testing"

	"github.com/rstored/rstored/rdma"
	"github.com/rstored/rstored/rpcrdma/rpc"
	"github.com/rstored/rstored/rpcrdma/xdr"
)

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

	// The same as a long call: the stream comes from position 0.
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

// TestReadBytes: a Read chunk waits, without memory, while ReadBytes are in flight. A call without
// Read chunks does not wait for it.
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
	const calls, n = 8, 5 * 4096 // whole READs of 4096 bytes
	var msgs [][]byte
	for i := range uint32(calls) {
		m := r.region(n, rdma.RemoteRead) // one for each call, because the reply invalidates it
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

// TestCreditsGrow: a client that uses most of its credits gets more, up to the limit. There is a
// receive for each credit.
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
	// A client without a private message gets messages of 1024 bytes, and no invalidation.
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
