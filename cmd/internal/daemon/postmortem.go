package daemon

import (
	"encoding/hex"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/rstored/rstored/cmd/internal/control"
	"github.com/rstored/rstored/rdma"
	"github.com/rstored/rstored/rdma/cm"
	"github.com/rstored/rstored/rdma/provider"
	"github.com/rstored/rstored/rdma/rc"
	"github.com/rstored/rstored/rdma/roce"
	"github.com/rstored/rstored/rdma/wire"
	"github.com/rstored/rstored/rpcrdma"
)

// failuresMax is how many post-mortems are kept.
const failuresMax = 64

// failureLog keeps what is left of connections that ended badly. It takes them on the
// loops of the devices, as they are; they are put into words for who asks.
type failureLog struct {
	mu    sync.Mutex
	cases []failure // the latest last
}

// failureRecord is what a provider records of a failed connection.
type failureRecord interface {
	// refusal says what a request that was refused has in common with others.
	refusal() (refusal, bool)
	// established says that there was a connection.
	established() bool
	// fill puts it into words.
	fill(*control.PostMortem)
	note() *rdma.Note
}

type refusal struct {
	local, remote netip.AddrPort
	reason        uint16
	why           string // of its user
	words         string // all of it
}

// same reports whether a client was refused again.
func (a refusal) same(b refusal) bool {
	return a.local == b.local && a.remote.Addr() == b.remote.Addr() && a.reason == b.reason && a.why == b.why
}

type failure struct {
	failureRecord
	first, last time.Time
	count       int
}

func count(cases []failure, is func(failure) bool) (n int) {
	for _, c := range cases {
		if is(c) {
			n++
		}
	}
	return n
}

func (m *failureLog) add(r failureRecord) {
	now := time.Now()
	m.mu.Lock()
	defer m.mu.Unlock()
	c := failure{failureRecord: r, first: now, last: now, count: 1}
	// A client that is refused comes again every few seconds. It must not drive
	// out everything else.
	if k, refused := r.refusal(); refused {
		if i := slices.IndexFunc(m.cases, func(o failure) bool { x, ok := o.refusal(); return ok && x.same(k) }); i >= 0 {
			c.first, c.count = m.cases[i].first, m.cases[i].count+1
			m.cases = slices.Delete(m.cases, i, i+1)
		}
	}
	if len(m.cases) == failuresMax {
		// Connections that never were can be had by anybody, under any number of names: they leave half to the others.
		oldest := 0
		if never := func(c failure) bool { return !c.established() }; count(m.cases, never) > failuresMax/2 {
			oldest = slices.IndexFunc(m.cases, never)
		}
		m.cases = slices.Delete(m.cases, oldest, oldest+1)
	}
	m.cases = append(m.cases, c)
}

// PostMortems implements control.Backend.
func (d *Daemon) PostMortems() []control.PostMortem {
	d.failures.mu.Lock()
	cases := slices.Clone(d.failures.cases)
	d.failures.mu.Unlock()
	slices.Reverse(cases)
	out := make([]control.PostMortem, len(cases))
	for i := range cases {
		out[i] = d.postMortem(&cases[i])
	}
	return out
}

func (d *Daemon) postMortem(c *failure) control.PostMortem {
	p := control.PostMortem{Time: c.last, First: c.first, Count: c.count}
	c.fill(&p)
	if o, ok := c.note().Detail.(rpcrdma.FailureDetail); ok {
		p.RPC = &control.PostMortemCalls{
			Calls: o.Calls, InProgress: o.InProgress, RDMAWriteBytes: o.RDMAWriteBytes, RDMAReadBytes: o.RDMAReadBytes,
			InlineIn: o.InlineIn, InlineOut: o.InlineOut, First: d.postMortemCall(o.First), Last: d.postMortemCall(o.Last),
		}
	}
	return p
}

// softRecord is of a device in user space.
type softRecord struct{ roce.Record }

func (r *softRecord) note() *rdma.Note { return &r.Note }

func (r *softRecord) refusal() (refusal, bool) {
	return refusal{r.Local, r.Remote, uint16(r.Reason), r.Note.Why, reasonOf(&r.Record)}, r.Outcome == rdma.Refused
}

func (r *softRecord) established() bool { return r.Established }

func (r *softRecord) fill(p *control.PostMortem) {
	p.Device, p.Provider, p.Peer, p.Local = r.Local.Addr().String(), string(provider.Soft), r.Remote.String(), r.Local.String()
	p.Outcome, p.Reason, p.Reject, p.Hint = string(r.Outcome), reasonOf(&r.Record), uint16(r.Reason), hint(&r.Record)
	p.InterfaceMTU, p.PathMTUMax = r.InterfaceMTU, int(r.PathMTUMax)
	if r.REQ != nil {
		p.Request = postMortemREQ(r.REQ)
	}
	if r.LocalQPN != 0 {
		p.Connection = postMortemConn(&r.Record)
	}
}

// reasonOf says why in words: what the connection's user said, the transport,
// and the reject reason, as far as they have something to say.
func reasonOf(r *roce.Record) string { return because(r.Outcome, r.Reason, r.Err, r.Note.Why) }

func because(outcome rdma.Outcome, reason cm.Reason, err error, why string) string {
	s := why
	if err != nil && s == "" {
		s = err.Error()
	} else if err != nil {
		s = err.Error() + " (" + s + ")"
	}
	switch {
	case outcome != rdma.Refused || reason == 0:
	case s == "":
		s = reason.String()
	default:
		s = reason.String() + ": " + s
	}
	return s
}

func postMortemREQ(q *cm.REQ) *control.PostMortemREQ {
	port, _ := cm.ServicePort(q.ServiceID)
	p := &control.PostMortemREQ{
		ServiceID: q.ServiceID, Port: port, QPN: q.QPN, PSN: q.PSN, PathMTU: int(rdma.MTUFromCode(q.MTU)),
		ResponderResources: q.ResponderResources, InitiatorDepth: q.InitiatorDepth,
		AckTimeout: q.Primary.AckTimeout, RetryCount: q.RetryCount, RNRRetryCount: q.RNRRetryCount,
		LocalGID: q.Primary.LocalGID.String(), RemoteGID: q.Primary.RemoteGID.String(),
		PrivateData: hex.EncodeToString(q.Private[cm.IPHeaderLen:]),
	}
	p.Private = postMortemPrivate(q.Private[cm.IPHeaderLen:])
	return p
}

func postMortemPrivate(b []byte) *control.PostMortemPrivate {
	said, ok := rpcrdma.ParsePrivate(b)
	if !ok {
		return nil
	}
	return &control.PostMortemPrivate{Send: said.Send, Receive: said.Receive, RemoteInvalidation: said.RemoteInvalidation}
}

func postMortemConn(r *roce.Record) *control.PostMortemConn {
	p := &control.PostMortemConn{
		Established: r.Established, AgeMillis: int64(r.Age / rdma.Millisecond),
		QPN: r.LocalQPN, PSN: r.LocalPSN, PathMTU: int(r.PathMTU), ReadsServed: r.ReadsServed, ReadsStarted: r.ReadsStarted,
		AckTimeout: r.AckTimeout, RetryCount: r.RetryCount, RNRRetryCount: r.RNRRetryCount,
		TxPackets: r.Seen.TxPackets, RxPackets: r.Seen.RxPackets,
		NAKSent: postMortemNAK(r.Seen.TxNAK), NAKReceived: postMortemNAK(r.Seen.RxNAK),
		RNRSent: postMortemNAK(r.Seen.TxRNR), RNRReceived: postMortemNAK(r.Seen.RxRNR),
	}
	if r.Seen.Status != rdma.Success {
		p.Status = r.Seen.Status.String()
	}
	for _, k := range r.Recent {
		e := control.PostMortemPackets{
			BeforeUS: int64((r.Ended - k.At) / rdma.Microsecond), Sent: k.Out, Opcode: k.Op.String(),
			PSN: uint32(k.PSN), Count: int(k.Count), Bytes: k.Bytes, AckReq: k.AckReq,
		}
		if k.Op.Is(wire.HasAETH) {
			e.AETH = rc.SyndromeText(k.Syndrome)
		}
		p.Recent = append(p.Recent, e)
	}
	return p
}

func postMortemNAK(n rc.NAKs) *control.PostMortemNAK {
	if n.Count == 0 {
		return nil
	}
	p := &control.PostMortemNAK{Count: n.Count, Syndrome: n.First.Syndrome, Text: rc.SyndromeText(n.First.Syndrome), PSN: uint32(n.First.PSN)}
	if n.Last != n.First {
		p.LastText, p.LastPSN = rc.SyndromeText(n.Last.Syndrome), uint32(n.Last.PSN)
	}
	return p
}

func (d *Daemon) postMortemCall(c rpcrdma.RPC) *control.PostMortemCall {
	if c == (rpcrdma.RPC{}) {
		return nil
	}
	p := &control.PostMortemCall{Program: c.Prog, Version: c.Vers, Procedure: c.Proc, Flavor: uint32(c.Flavor)}
	if c.HasUID {
		p.UID = &c.UID
	}
	for _, g := range d.served {
		if g.Prog == c.Prog && g.Vers == c.Vers && int(c.Proc) < len(g.Procs) {
			p.Name = g.Name + "." + g.Procs[c.Proc].Name
		}
	}
	return p
}
