package torture

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"

	"github.com/rstored/rstored/rdma"
	"github.com/rstored/rstored/rdma/link"
	"github.com/rstored/rstored/rdma/roce"
	"github.com/rstored/rstored/rdma/sim"
)

const (
	port      = 7
	depth     = 64 // send requests and receives of a queue pair
	reads     = 4  // RDMA READs and atomics at once, each way
	settleMax = 300 * rdma.Second
)

// world is a plan being carried out.
type world struct {
	plan  *Plan
	net   *sim.Network
	rnd   *rand.Rand // of what the plan does not say
	hosts []*host
	conns map[int]*connection // by number, the latest
	all   []*connection
	start rdma.Time
	err   error

	weather      Event
	weatherUntil rdma.Time
	digest       uint64
}

// host is a device, and what the plan does to it.
type host struct {
	w      *world
	n      int
	addr   netip.Addr
	dev    *roce.Device
	link   *sim.Link
	lives  int       // how often it came up
	frozen rdma.Time // until then
	back   rdma.Time // when it comes up again; 0 while it is up
	cut    []rdma.Time
}

// faultyLink is a host's link: what comes in may be cut off, or short.
type faultyLink struct {
	*sim.Link
	h *host
}

// Recv implements link.Link.
func (l faultyLink) Recv(rx *link.Rx, deadline rdma.Time) (int, error) {
	_, err := l.Link.Recv(rx, deadline)
	w := l.h.w
	kept := rx.D[:0]
	for _, d := range rx.D {
		if from := w.host(d.Src); from != nil && w.net.Now() < l.h.cut[from.n] {
			continue
		}
		if w.net.Now() < w.weatherUntil && w.rnd.Float64() < w.weather.Truncate {
			d.Data = d.Data[:w.rnd.IntN(len(d.Data))]
		}
		kept = append(kept, d)
	}
	rx.D = kept
	return len(kept), err
}

// Result is what a run was like.
type Result struct {
	Digest                     uint64 // of everything that happened: the same each time
	Connections, Broken        int
	Requests, Succeeded, Reads int // Reads: of those that succeeded, READs and atomics
	Messages                   int // received
	Packets, Retransmitted     uint64
	Virtual                    rdma.Time
}

// Run carries a plan out, and returns the first thing that was not as it must be.
func Run(p *Plan) (result Result, err error) {
	w := &world{plan: p, rnd: rand.New(rand.NewPCG(p.Seed, 1)), conns: make(map[int]*connection)}
	w.net = sim.New(sim.Config{Seed: p.Seed, MTU: p.MTU})
	if p.Port.Rate > 0 {
		w.net.Via(w.net.NewBottleneck(p.Port), netip.Addr{}, netip.Addr{})
	}
	w.start = w.net.Now()
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("panic: %v", r)
		}
	}()
	for i := range p.Hosts {
		h := &host{
			w: w, n: i, addr: netip.AddrFrom16([16]byte{0x20, 0x01, 0x0d, 0xb8, 15: byte(1 + i)}),
			cut: make([]rdma.Time, p.Hosts),
		}
		w.hosts = append(w.hosts, h)
		if err := h.up(); err != nil {
			return result, err
		}
	}
	for _, e := range p.Events {
		w.until(w.start+e.At, func() bool { return w.err != nil })
		w.do(e)
	}
	w.finish()
	return w.result(), w.err
}

func (w *world) result() Result {
	r := Result{Digest: w.digest, Connections: len(w.all), Packets: w.net.Stats.Sent, Virtual: w.net.Now() - w.start}
	for _, h := range w.hosts {
		r.Retransmitted += h.dev.Stats().RC.TxRetransmits
	}
	for _, c := range w.all {
		for _, s := range c.side {
			if s == nil {
				continue
			}
			r.Messages += s.gotten
			r.Requests += len(s.ops)
			if s.failed {
				r.Broken++
			}
			for _, o := range s.ops {
				if o.success {
					r.Succeeded++
					if o.sink != nil {
						r.Reads++
					}
				}
			}
		}
	}
	return r
}

func (w *world) host(a netip.Addr) *host {
	for _, h := range w.hosts {
		if h.addr == a {
			return h
		}
	}
	return nil
}

// failf notes the first thing that is wrong.
func (w *world) failf(format string, args ...any) {
	if w.err == nil {
		w.err = fmt.Errorf("after %.6f s: %w", float64(w.net.Now()-w.start)/float64(rdma.Second), fmt.Errorf(format, args...))
	}
}

func (w *world) note(v ...uint64) {
	for _, x := range v {
		w.digest = (w.digest ^ x) * 0x100000001b3
	}
}

// up starts a host's device.
func (h *host) up() error {
	l, err := h.w.net.Open(h.addr)
	if err != nil {
		return err
	}
	h.link = l
	h.lives++
	random := rand.New(rand.NewPCG(h.w.plan.Seed, uint64(100*h.lives+h.n)))
	h.dev, err = roce.NewWithLink(l, roce.Config{
		Random: random.Uint32, AckTimeout: 14, // 67 ms, so that the retries of a dead peer are over in a second
		Wrap: func(_ int, l link.Link) link.Link { return faultyLink{l.(*sim.Link), h} },
	})
	if err != nil {
		return err
	}
	_, err = h.dev.Listen(port, h.accept)
	h.back = 0
	return err
}

// crash loses the host with all that is on it, and says goodbye to nobody.
func (h *host) crash(back rdma.Time) error {
	for _, c := range h.w.all {
		for _, s := range c.side {
			if s != nil && s.host == h {
				s.crashed = true
			}
		}
	}
	h.back = back
	return h.link.Close()
}

// until turns everything until the time has come or done says so.
func (w *world) until(end rdma.Time, done func() bool) {
	for w.err == nil && !done() {
		now := w.net.Now()
		if now < w.weatherUntil {
			e := &w.weather
			w.net.Set(sim.Config{Loss: e.Loss, Duplicate: e.Duplicate, Reorder: e.Reorder, Corrupt: e.Corrupt})
		} else {
			w.net.Set(sim.Config{})
		}
		next := end
		sooner := func(at rdma.Time) {
			if at != 0 && at < next {
				next = max(at, now)
			}
		}
		sooner(w.net.Next())
		if now < w.weatherUntil {
			sooner(w.weatherUntil)
		}
		for _, h := range w.hosts {
			switch {
			case h.back != 0 && now >= h.back:
				if err := h.up(); err != nil {
					w.failf("host %d does not come up: %w", h.n, err)
				}
				next = now
				continue
			case h.back != 0:
				sooner(h.back)
				continue
			case now < h.frozen:
				sooner(h.frozen)
				continue
			}
			if err := h.dev.Turn(); err != nil {
				w.failf("host %d: %w", h.n, err)
				return
			}
			switch at := h.dev.Deadline(); {
			case at < 0:
				sooner(now + rdma.Microsecond)
			case at > 0:
				sooner(max(at, now+1))
			}
		}
		sooner(w.net.Next())
		if now >= end {
			return
		}
		w.net.Advance(next)
	}
}

// do carries out an event.
func (w *world) do(e Event) {
	if w.err != nil {
		return
	}
	now := w.net.Now()
	h := w.hosts[e.Host]
	switch e.Kind {
	case Connect:
		if c := w.conns[e.Conn]; c == nil || c.over() {
			w.connect(e)
		}
	case Post:
		if c := w.conns[e.Conn]; c != nil {
			if s := c.of(e.Back); s.usable() {
				s.post(e)
			}
		}
	case Disconnect:
		if c := w.conns[e.Conn]; c != nil {
			if s := c.of(e.Back); s.usable() {
				c.ended = true
				s.submit(s.conn.Disconnect)
			}
		}
	case Cut:
		w.hosts[e.Peer].cut[e.Host] = now + e.For
		if e.Back {
			h.cut[e.Peer] = now + e.For
		}
	case Freeze:
		h.frozen = max(h.frozen, now+e.For)
	case Jump:
		for _, h := range w.hosts {
			h.frozen = max(h.frozen, now+e.For)
		}
	case Crash:
		if h.back == 0 {
			if err := h.crash(now + e.For); err != nil {
				w.failf("%w", err)
			}
		}
	case Weather:
		w.weather, w.weatherUntil = e, now+e.For
	}
}

// finish lets everything heal and looks at what is left.
func (w *world) finish() {
	w.weatherUntil = 0
	heal := w.net.Now()
	for _, h := range w.hosts {
		heal = max(heal, h.frozen, h.back)
		clear(h.cut)
	}
	w.until(heal, func() bool { return false })
	// Whatever is up is used once more: what is not really up finds out.
	for _, c := range w.all {
		for _, s := range c.side {
			if s.usable() {
				s.post(Event{Kind: Post, Op: rdma.OpWrite, Size: 8, Cut: 3, Seed: 1})
			}
		}
	}
	settled := func() bool {
		for _, c := range w.all {
			for _, s := range c.side {
				if s != nil && !s.settled() {
					return false
				}
			}
		}
		return true
	}
	w.until(w.net.Now()+settleMax, settled)
	for _, c := range w.all {
		c.check()
	}
	if w.err != nil {
		return
	}
	for _, h := range w.hosts {
		for _, c := range w.all {
			for _, s := range c.side {
				if s != nil && s.host == h && !s.crashed {
					s.close()
				}
			}
		}
	}
	w.until(w.net.Now()+20*rdma.Second, func() bool { return false })
	for _, h := range w.hosts {
		st := h.dev.Stats()
		if st.QPs != 0 || st.Regions != 0 {
			w.failf("host %d keeps %d queue pairs and %d regions", h.n, st.QPs, st.Regions)
		}
		w.note(st.RC.TxPackets, st.RC.RxPackets, st.RC.TxRetransmits)
	}
	w.note(w.net.Stats.Sent, w.net.Stats.Delivered, uint64(w.net.Now()))
}

// connection is one Connect.
type connection struct {
	w     *world
	n     int
	event Event
	side  [2]*side // the active one, and the other once it has accepted
	ended bool     // by a Disconnect
}

// of is the side that acts.
func (c *connection) of(back bool) *side {
	if back {
		return c.side[1]
	}
	return c.side[0]
}

func (c *connection) over() bool {
	for _, s := range c.side {
		if s != nil && !s.crashed && !s.down {
			return false
		}
	}
	return true
}

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

// op is a request that was posted.
type op struct {
	e       Event
	data    []byte // what a WRITE or SEND carries
	sink    []byte // where a READ or atomic puts it
	done    bool
	success bool
}

func (s *side) usable() bool {
	return s != nil && s.up && !s.down && !s.closed && !s.crashed && s.host.back == 0 && s.c.w.net.Now() >= s.host.frozen
}

func (s *side) peer() *side { return s.c.side[1-s.i] }

func (w *world) connect(e Event) {
	h := w.hosts[e.Host]
	if h.back != 0 || w.net.Now() < h.frozen {
		return
	}
	c := &connection{w: w, n: len(w.all), event: e}
	w.all = append(w.all, c)
	w.conns[e.Conn] = c
	s, qc, err := c.newSide(0, h)
	if err != nil {
		w.failf("%w", err)
		return
	}
	private := binary.BigEndian.AppendUint32(nil, uint32(c.n))
	// On the device's loop, which knows the time.
	h.dev.Loops()[0].Submit(func() {
		s.conn, err = h.dev.Dial(h.dev.Loops()[0], rdma.DialParams{
			Remote: netip.AddrPortFrom(w.hosts[e.Peer].addr, port), QP: qc,
			Params:  rdma.ConnParams{PrivateData: private, ResponderResources: reads, InitiatorDepth: reads},
			Prepare: s.prepare, On: s.on,
		})
		if err != nil {
			w.failf("dialing: %w", err)
		}
	})
}

func (h *host) accept(r rdma.ConnRequest) {
	w := h.w
	n := int(binary.BigEndian.Uint32(r.PrivateData()))
	if n >= len(w.all) || w.all[n].side[1] != nil {
		r.Reject(28, nil) // of an earlier life
		return
	}
	s, qc, err := w.all[n].newSide(1, h)
	if err == nil {
		s.conn, err = r.Accept(qc, rdma.ConnParams{ResponderResources: reads, InitiatorDepth: reads}, s.prepare, s.on)
	}
	if err != nil {
		w.failf("accepting: %w", err)
	}
}

func (c *connection) newSide(i int, h *host) (*side, rdma.QPConfig, error) {
	s := &side{c: c, i: i, host: h, model: make([]byte, targets)}
	c.side[i] = s
	var err error
	if s.pd, err = h.dev.AllocPD(); err != nil {
		return nil, rdma.QPConfig{}, err
	}
	register := func(n int, a rdma.Access) rdma.MR {
		m, e := s.pd.Register(make([]byte, n), a)
		if e != nil {
			err = errors.Join(err, e)
			return nil
		}
		s.mrs = append(s.mrs, m)
		return m
	}
	s.target = register(targets, rdma.LocalWrite|rdma.RemoteWrite|rdma.RemoteRead|rdma.RemoteAtomic)
	s.source = register(1, 0)
	s.sink = register(depth*sendMax, rdma.LocalWrite)
	s.cq, _ = h.dev.CreateCQ(h.dev.Loops()[0], rdma.CQOptions{Depth: 2*depth + 1, OnEvent: s.completions})
	cfg := rdma.QPConfig{
		PD: s.pd, SendCQ: s.cq, RecvCQ: s.cq,
		Caps: rdma.QPCaps{MaxSendWR: depth, MaxRecvWR: depth, MaxSendSGE: 2, MaxRecvSGE: 2, MaxInline: inlineMax},
	}
	if c.w.plan.Shared && err == nil {
		s.srq, err = h.dev.CreateSRQ(h.dev.Loops()[0], rdma.SRQConfig{PD: s.pd, MaxWR: depth, MaxSGE: 2})
		cfg.SRQ = s.srq
	}
	return s, cfg, err
}

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

// complete takes the completion of a request.
func (s *side) complete(wc *rdma.WC) {
	w := s.c.w
	id := int(wc.ID)
	if id >= len(s.ops) || id < s.completed || s.ops[id].done {
		w.failf("connection %d side %d: request %d completed again, or never was", s.c.n, s.i, id)
		return
	}
	for ; s.completed < id; s.completed++ {
		o := s.ops[s.completed]
		if !o.e.Quiet || s.failed {
			w.failf("connection %d side %d: request %d completed before request %d", s.c.n, s.i, id, s.completed)
			return
		}
		s.succeeded(s.completed)
	}
	o := s.ops[id]
	o.done = true
	if wc.Status != rdma.Success {
		if s.failed && wc.Status != rdma.WRFlushErr {
			w.failf("connection %d side %d: request %d failed (%v) after one before it", s.c.n, s.i, id, wc.Status)
		}
		switch wc.Status {
		case rdma.WRFlushErr, rdma.RetryExcErr:
		default:
			w.failf("connection %d side %d: request %d ended with %v", s.c.n, s.i, id, wc.Status)
		}
		s.failed = true
		s.completed++
		return
	}
	if s.failed || o.e.Quiet {
		w.failf("connection %d side %d: request %d succeeded after a failure, or was not to tell", s.c.n, s.i, id)
	}
	s.succeeded(id)
	s.completed++
}

// succeeded brings the model to where request id has been carried out, and checks what
// it brought.
func (s *side) succeeded(id int) {
	o := s.ops[id]
	o.done, o.success = true, true
	w := s.c.w
	at := o.e.Offset
	switch o.e.Op {
	case rdma.OpWrite, rdma.OpWriteImm:
		copy(s.model[at:], o.data)
	case rdma.OpRead:
		for i, b := range o.sink {
			if b != s.model[int(at)+i] && !s.later(id, at+uint32(i), b) {
				w.failf("connection %d side %d: READ %d of %d bytes at %d has %#x in byte %d, and %#x is there", s.c.n, s.i, id,
					o.e.Size, at, b, i, s.model[int(at)+i])
				return
			}
		}
	case rdma.OpCompareSwap, rdma.OpFetchAdd:
		old := binary.NativeEndian.Uint64(s.model[at:])
		if got := binary.NativeEndian.Uint64(o.sink); got != old {
			w.failf("connection %d side %d: atomic %d found %#x, and %#x was there", s.c.n, s.i, id, got, old)
			return
		}
		binary.NativeEndian.PutUint64(s.model[at:], o.change(old))
	}
}

// change is what an atomic makes of a word.
func (o *op) change(old uint64) uint64 {
	compare, swapAdd := o.e.Seed>>32, o.e.Seed&0xffffffff
	switch {
	case o.e.Op == rdma.OpFetchAdd:
		return old + swapAdd
	case old == compare:
		return swapAdd
	}
	return old
}

// messages reports whether the request takes a receive of the peer.
func (o *op) messages() bool {
	return o.e.Op == rdma.OpSend || o.e.Op == rdma.OpSendImm || o.e.Op == rdma.OpWriteImm
}

// before is the number of messages among the requests before id.
func (s *side) before(id int) (n int) {
	for _, o := range s.ops[:id] {
		if o.messages() {
			n++
		}
	}
	return n
}

// later reports whether a WRITE that was posted behind request id puts b there: the data
// of a READ may be fetched as late as that (IBTA 9.6, no order without a fence).
func (s *side) later(id int, at uint32, b byte) bool {
	for _, o := range s.ops[id+1:] {
		if (o.e.Op == rdma.OpWrite || o.e.Op == rdma.OpWriteImm) && at >= o.e.Offset && at-o.e.Offset < o.e.Size &&
			o.data[at-o.e.Offset] == b {
			return true
		}
	}
	return false
}

// received takes a message of the peer: they come whole, in order, once.
func (s *side) received(wc *rdma.WC) {
	w := s.c.w
	slot := wc.ID &^ recvID
	if wc.Status != rdma.Success {
		if wc.Status != rdma.WRFlushErr {
			w.failf("connection %d side %d: a receive ended with %v", s.c.n, s.i, wc.Status)
		}
		return
	}
	p := s.peer()
	n := s.gotten
	s.gotten++
	var o *op
	for _, x := range p.ops {
		if x.messages() {
			if n == 0 {
				o = x
				break
			}
			n--
		}
	}
	if o == nil {
		w.failf("connection %d side %d: message %d was never sent", s.c.n, s.i, s.gotten-1)
		return
	}
	b := s.sink.Bytes()[slot*sendMax : (slot+1)*sendMax]
	want := wc.Op == rdma.WCRecvWithImm
	switch {
	case want != (o.e.Op == rdma.OpWriteImm), wc.ByteLen != o.e.Size:
		w.failf("connection %d side %d: message %d is of %d bytes, want %d", s.c.n, s.i, s.gotten-1, wc.ByteLen, o.e.Size)
	case !want && !bytes.Equal(b[:wc.ByteLen], o.data):
		w.failf("connection %d side %d: message %d has other bytes", s.c.n, s.i, s.gotten-1)
	case (o.e.Op != rdma.OpSend) != (wc.Flags&rdma.WithImm != 0), o.e.Op != rdma.OpSend && wc.Imm != uint32(o.e.Seed):
		w.failf("connection %d side %d: message %d has the immediate %#x", s.c.n, s.i, s.gotten-1, wc.Imm)
	}
	again := func() {
		if s.usable() {
			if err := s.receive(slot); err != nil {
				w.failf("%w", err)
			}
		}
	}
	if w.rnd.IntN(3) == 0 {
		again()
	} else {
		s.host.dev.Loops()[0].After(rdma.Time(w.rnd.Int64N(int64(3*rdma.Millisecond))), again)
	}
}

// settled reports whether nothing more is going to happen to the side's requests.
func (s *side) settled() bool {
	if s.crashed {
		return true
	}
	if !s.up && !s.down {
		return false
	}
	for i := s.completed; i < len(s.ops); i++ {
		if !s.ops[i].e.Quiet || s.down && s.failed {
			return false
		}
	}
	return true
}

// check holds what is left against the model.
func (c *connection) check() {
	w := c.w
	for i, s := range c.side {
		if s == nil || w.err != nil {
			continue
		}
		if !s.settled() {
			o := s.ops[min(s.completed, max(len(s.ops)-1, 0)):]
			w.failf("connection %d side %d: up %t, down %t, %d requests wait for ever", c.n, i, s.up, s.down, len(o))
			return
		}
		p := s.peer()
		if p == nil || p.crashed || s.crashed {
			continue
		}
		if sent := s.before(len(s.ops)); p.gotten > sent {
			w.failf("connection %d side %d: %d messages came, %d were sent", c.n, 1-i, p.gotten, sent)
		}
		succeeded := 0
		for _, o := range s.ops[:s.completed] {
			if o.success && o.messages() {
				succeeded++
			}
		}
		if p.gotten < succeeded {
			w.failf("connection %d side %d: %d messages succeeded, %d came", c.n, i, succeeded, p.gotten)
		}
		s.compare(p.target.Bytes())
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
