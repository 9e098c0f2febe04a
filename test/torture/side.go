package torture

import (
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"slices"

	"github.com/rstored/rstored/rdma"
)

// side is one end of a connection.
type side struct {
	c       *connection
	i       int
	host    *host
	pd      rdma.PD
	cq      rdma.CQ
	srq     rdma.SRQ // nil where receives are not shared
	conn    rdma.Conn
	target  rdma.MR // the peer's requests go here
	source  rdma.MR // what is sent
	sink    rdma.MR // what is read and received
	mrs     []rdma.MR
	up      bool
	down    bool
	closed  bool
	crashed bool

	ops       []*op
	completed int    // ops before this have completed, or will never tell
	model     []byte // of the peer's target, up to completed
	failed    bool
	gotten    int // messages of the peer that have come
}

func (s *side) usable() bool {
	return s != nil && s.up && !s.down && !s.closed && !s.crashed && s.host.back == 0 && s.c.w.net.Now() >= s.host.frozen
}

func (s *side) peer() *side { return s.c.side[1-s.i] }

// Receives are told apart from requests by the top bit of their ID.
const recvID = 1 << 63

const receives = 16

func (s *side) prepare(conn rdma.Conn) error {
	s.conn = conn
	for i := range receives {
		if err := s.receive(uint64(i)); err != nil {
			return err
		}
	}
	return nil
}

func (s *side) receive(slot uint64) error {
	b := s.sink.Bytes()[slot*sendMax : (slot+1)*sendMax]
	cut := int(s.c.w.rnd.IntN(sendMax))
	wr := []rdma.RecvWR{{
		ID:  recvID | slot,
		SGL: []rdma.SGE{{Buf: b[:cut], LKey: s.sink.LKey()}, {Buf: b[cut:], LKey: s.sink.LKey()}},
	}}
	if s.srq != nil {
		return s.srq.PostRecv(wr)
	}
	return s.conn.QP().PostRecv(wr)
}

func (s *side) on(_ rdma.Conn, e rdma.ConnEvent) {
	w := s.c.w
	w.note(uint64(s.c.n), uint64(e.Kind), uint64(w.net.Now()))
	if e.Kind == rdma.EventEstablished {
		if s.up || s.down {
			w.failf("connection %d side %d: established twice or too late", s.c.n, s.i)
		}
		s.up = true
		return
	}
	if s.down {
		w.failf("connection %d side %d: ended twice", s.c.n, s.i)
	}
	s.down = true
	if w.plan.gentle() && !s.c.ended {
		w.failf("connection %d side %d: %w", s.c.n, s.i, e.Err)
	}
}

// submit runs f on the loop of the side's device, as users of the API have to.
func (s *side) submit(f func()) { s.host.dev.Loops()[0].Submit(f) }

// post posts the request of an event, if it can be.
func (s *side) post(e Event) { s.submit(func() { s.posted(e) }) }

func (s *side) posted(e Event) {
	if !s.usable() || s.peer() == nil {
		return
	}
	w := s.c.w
	o := &op{e: e}
	id := uint64(len(s.ops))
	// Memory of its own: it is the provider's until the completion.
	region := func(b []byte, a rdma.Access) rdma.MR {
		m, err := s.pd.Register(b, a)
		if err != nil {
			w.failf("%w", err)
			return nil
		}
		s.mrs = append(s.mrs, m)
		return m
	}
	wr := rdma.SendWR{
		ID: id, Op: e.Op, Flags: e.Flags, RemoteAddr: s.peer().target.Addr() + uint64(e.Offset),
		RKey: s.peer().target.RKey(),
	}
	if !e.Quiet {
		wr.Flags |= rdma.Signaled
	}
	r := rand.New(rand.NewPCG(e.Seed, id))
	buf := make([]byte, max(int(e.Size), 1))
	m := region(buf, rdma.LocalWrite)
	if m == nil {
		return
	}
	switch e.Op {
	case rdma.OpRead, rdma.OpCompareSwap, rdma.OpFetchAdd:
		o.sink = buf[:e.Size]
		wr.Compare, wr.SwapAdd = uint64(r.IntN(3)), uint64(r.IntN(3))
	default:
		for i := range buf {
			buf[i] = byte(r.Uint32())
		}
		o.data = buf[:e.Size]
		wr.Imm = uint32(e.Seed)
	}
	b := buf[:e.Size]
	switch cut := min(e.Cut, e.Size); {
	case e.Size == 0:
	case cut == 0 || cut == e.Size || e.Op == rdma.OpCompareSwap || e.Op == rdma.OpFetchAdd:
		wr.SGL = []rdma.SGE{{Buf: b, LKey: m.LKey()}}
	default:
		wr.SGL = []rdma.SGE{{Buf: b[:cut], LKey: m.LKey()}, {Buf: b[cut:], LKey: m.LKey()}}
	}
	o.e.Seed = wr.Compare<<32 | wr.SwapAdd // what an atomic does
	if o.data != nil {
		o.e.Seed = e.Seed
	}
	if e.Inline {
		wr.Flags |= rdma.Inline
		for i := range wr.SGL {
			wr.SGL[i].LKey = 0
		}
		o.data = slices.Clone(o.data)
		defer clear(buf) // it is ours again
	}
	if err := s.conn.QP().PostSend([]rdma.SendWR{wr}); err != nil {
		if !errors.Is(err, rdma.ErrQueueFull) {
			w.failf("posting: %w", err)
		}
		return
	}
	s.ops = append(s.ops, o)
}

func (s *side) completions() {
	var wcs [16]rdma.WC
	for n := s.cq.Poll(wcs[:]); n > 0; n = s.cq.Poll(wcs[:]) {
		for i := range wcs[:n] {
			s.c.w.note(uint64(s.c.n), wcs[i].ID, uint64(wcs[i].Status))
			if wcs[i].ID&recvID != 0 {
				s.received(&wcs[i])
			} else {
				s.complete(&wcs[i])
			}
		}
	}
}

// compare holds the peer's memory against the model: what requests that did not succeed
// were to change may be either way.
func (s *side) compare(got []byte) {
	w := s.c.w
	open := s.ops[slices.IndexFunc(append(slices.Clone(s.ops), &op{}), func(o *op) bool { return !o.success }):]
	for i := range memory {
		if got[i] == s.model[i] {
			continue
		}
		if !slices.ContainsFunc(open, func(o *op) bool {
			at := uint32(i) - o.e.Offset
			return (o.e.Op == rdma.OpWrite || o.e.Op == rdma.OpWriteImm) && uint32(i) >= o.e.Offset && at < o.e.Size &&
				o.data[at] == got[i]
		}) {
			w.failf("connection %d side %d: byte %d of the peer's memory is %#x, should be %#x", s.c.n, s.i, i, got[i],
				s.model[i])
			return
		}
	}
	for k := range words {
		at := memory + 8*k
		v := binary.NativeEndian.Uint64(got[at:])
		may := []uint64{binary.NativeEndian.Uint64(s.model[at:])}
		for _, o := range open {
			if (o.e.Op == rdma.OpCompareSwap || o.e.Op == rdma.OpFetchAdd) && int(o.e.Offset) == at {
				may = append(may, o.change(may[len(may)-1]))
			}
		}
		if !slices.Contains(may, v) {
			w.failf("connection %d side %d: word %d of the peer's memory is %#x, should be of %#x", s.c.n, s.i, k, v, may)
		}
	}
}

// close gives back what the side has.
func (s *side) close() {
	if s.closed {
		return
	}
	s.closed = true
	s.submit(func() {
		if s.conn != nil {
			s.conn.Close()
		}
		for _, m := range s.mrs {
			m.Close()
		}
	})
}
