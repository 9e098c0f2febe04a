package perf

import (
	"errors"
	"fmt"
	"math"
	"net/netip"

	"github.com/rstored/rstored/rdma"
)

// session is the server's end of one connection. Its fields belong to the loop, except the first
// four.
type session struct {
	s      *Server
	l      *Listener
	key    runKey
	loop   rdma.Loop
	client netip.AddrPort
	req    request
	end    *end
	seq    uint32 // of the last msgGo
	going  bool   // messages are posted or in flight
	kind   Kind   // why the server ended it
	why    string // the reason as text
	closed bool
	cancel []func() // of timers
}

// depthRDMA is the number of READs and atomics in flight in each direction, the maximum of the
// providers.
const depthRDMA = 16

var connParams = rdma.ConnParams{ResponderResources: depthRDMA, InitiatorDepth: depthRDMA}

// open accepts a request, or returns why it is refused.
func (x *session) open(r rdma.ConnRequest) *refusal {
	p := x.req.plan()
	mem, err := newBuffers(x.l.dev, x.s.arena, &p, true)
	if err != nil {
		x.s.forget(x)
		return &refusal{RefusedMemory, err.Error()}
	}
	drop := func() {
		mem.release()
		x.s.forget(x)
	}
	if x.end, err = newEnd(x.l.dev, x.loop, p, true, mem); err != nil {
		drop()
		return &refusal{RefusedMemory, err.Error()}
	}
	e := x.end
	e.peer, e.message, e.failed = x.req.Mem, x.message, x.failed
	if p.posts(true) {
		e.size(p.size)
	}
	answer := reply{
		Size: x.req.Size, Mem: mem.remote(),
		Idle: uint32(x.s.limits.IdleTimeout.Milliseconds()), Duration: uint32(x.s.limits.MaxDuration.Milliseconds()),
	}
	params := connParams
	params.PrivateData = answer.encode()
	if a, ok := r.(rdma.Annotated); ok {
		a.Annotate(func() rdma.Note { return rdma.Note{Why: x.why, Detail: x.kind} })
	}
	if _, err = r.Accept(e.config(), params, e.prepare, x.event); err != nil {
		drop()
		x.s.n.add(RefusedMemory)
		x.s.log.Warn("a measurement was refused", "client", x.client.String(), "error", err)
		return nil // Accept has sent a REJ
	}
	x.s.n.accepted.Add(1)
	x.s.log.Info("measuring", "client", x.client.String(), "operation", p.op.String(), "latency", p.latency,
		"bidirectional", p.bidirectional, "size", p.size, "depth", p.depth, "qps", x.req.QPs)
	x.after(rdma.Time(x.s.limits.MaxDuration), func() {
		x.stop(EndedDuration, fmt.Sprintf("the measurement took more than %v", x.s.limits.MaxDuration))
	})
	x.watch()
	return nil
}

func (x *session) after(d rdma.Time, f func()) { x.cancel = append(x.cancel, x.loop.After(d, f)) }

// watch checks the idle timeout.
func (x *session) watch() {
	idle := rdma.Time(x.s.limits.IdleTimeout)
	x.end.heard = false
	x.cancel = x.cancel[:1] // the previous timer has expired
	x.after(idle, func() {
		if !x.end.heard {
			x.stop(EndedIdle, fmt.Sprintf("the client said nothing for %v", x.s.limits.IdleTimeout))
			return
		}
		x.watch()
	})
}

// event handles an event of the connection.
func (x *session) event(_ rdma.Conn, e rdma.ConnEvent) {
	if e.Kind == rdma.EventEstablished {
		return
	}
	x.s.log.Info("measured", "client", x.client.String(), "end", fmt.Sprint(e.Err))
	x.close()
}

// failed ends the session after an error of its end.
func (x *session) failed(err error) {
	kind := EndedFailed
	if errors.Is(err, errOrder) || errors.Is(err, errFlooded) || errors.Is(err, errMalformed) ||
		errors.As(err, new(versionError)) {
		kind = EndedMisused
	}
	x.stop(kind, err.Error())
}

// stop ends the session, and counts the reason.
func (x *session) stop(kind Kind, why string) {
	if x.closed {
		return
	}
	x.s.n.add(kind)
	x.kind, x.why = kind, why
	x.s.log.Warn("a measurement was ended", "client", x.client.String(), "why", why)
	x.close()
}

// close ends the session. Its memory is freed when the device does not use it any more.
func (x *session) close() {
	if x.closed {
		return
	}
	x.closed = true
	for _, cancel := range x.cancel {
		cancel()
	}
	x.end.close(func() {
		x.end.mem.release()
		x.s.forget(x)
	})
}

var errOrder = errors.New("a message that does not fit the measurement")

// message handles a message of the client. A message that is illegal now ends the session.
func (x *session) message(m *message) {
	e := x.end
	switch m.kind {
	case msgAlive:
	case msgGo:
		fits := m.Size > 0 && m.Size <= x.req.Size && (!e.plan.op.Atomic() || m.Size == AtomicSize)
		if !e.plan.bidirectional || x.going || !fits {
			e.fail(errOrder)
			return
		}
		x.going, x.seq = true, m.Seq
		e.left = m.Count
		if m.Count == 0 {
			e.left = math.MaxUint64
		}
		size := int(m.Size)
		e.size(size)
		e.gauge.begin(size, m.Count)
		e.idle = x.report
		e.post()
	case msgStop:
		if x.going && m.Seq == x.seq {
			e.left = 0
			if e.under == 0 && e.idle != nil {
				e.idle = nil
				x.report()
			}
		}
	default:
		e.fail(errOrder)
	}
}

// report sends the server's measurement.
func (x *session) report() {
	x.going = false
	d := x.end.gauge.direction()
	x.end.say(&message{msgReport, messageBody{
		Seq: x.seq, Size: uint32(x.end.gauge.size), Count: d.Iterations, Elapsed: uint64(d.Elapsed), Peak: uint64(d.Peak),
	}})
}
