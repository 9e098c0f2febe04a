package rpcrdma

import (
	"bytes"
	"encoding/binary"
	"testing"
	"time"

	"github.com/rstored/rstored/rdma"
	"github.com/rstored/rstored/rpcrdma/rpc"
	"github.com/rstored/rstored/rpcrdma/xdr"
)

// A READDIR with large entries needs a Reply chunk of more than 1 MiB.
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
	// The end of the test checks that all memory is free again.
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
			case <-r.gone: // the message named memory that does not exist
			case <-time.After(time.Minute):
				t.Fatalf("no reply after %x", b)
			}
			return
		}
	})
}
