package postmortem

import (
	"encoding/hex"

	"github.com/rstored/rstored/cmd/internal/control"
	"github.com/rstored/rstored/rdma"
	"github.com/rstored/rstored/rdma/cm"
	"github.com/rstored/rstored/rdma/provider"
	"github.com/rstored/rstored/rdma/rc"
	"github.com/rstored/rstored/rdma/roce"
	"github.com/rstored/rstored/rdma/wire"
	"github.com/rstored/rstored/rpcrdma"
)

// softRecord is the failure record of a connection on a device in user space.
type softRecord struct{ roce.Record }

func (r *softRecord) note() *rdma.Note { return &r.Note }

func (r *softRecord) refusal() (refusal, bool) {
	return refusal{r.Local, r.Remote, uint16(r.Reason), r.Note.Why, reasonOf(&r.Record)}, r.Outcome == rdma.Refused
}

func (r *softRecord) established() bool { return r.Established }

func (r *softRecord) fill(p *control.PostMortem) {
	p.Device, p.Provider, p.Peer, p.Local = r.Local.Addr().
		String(),
		string(
			provider.Soft,
		), r.Remote.String(), r.Local.String()
	p.Outcome, p.Reason, p.Reject, p.Hint = string(r.Outcome), reasonOf(&r.Record), uint16(r.Reason), hint(&r.Record)
	p.InterfaceMTU, p.PathMTUMax = r.InterfaceMTU, int(r.PathMTUMax)
	if r.REQ != nil {
		p.Request = postMortemREQ(r.REQ)
	}
	if r.LocalQPN != 0 {
		p.Connection = postMortemConn(&r.Record)
	}
}

// reasonOf returns the reason in words: that of the connection's user, of the transport, and the
// reject reason, as far as there are any.
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
	return &control.PostMortemPrivate{
		Send:               said.Send,
		Receive:            said.Receive,
		RemoteInvalidation: said.RemoteInvalidation,
	}
}

func postMortemConn(r *roce.Record) *control.PostMortemConn {
	p := &control.PostMortemConn{
		Established: r.Established, AgeMillis: int64(r.Age / rdma.Millisecond),
		QPN: r.LocalQPN, PSN: r.LocalPSN, PathMTU: int(r.PathMTU), ReadsServed: r.ReadsServed, ReadsStarted: r.ReadsStarted,
		AckTimeout: r.AckTimeout, RetryCount: r.RetryCount, RNRRetryCount: r.RNRRetryCount,
		TxPackets: r.Summary.TxPackets, RxPackets: r.Summary.RxPackets,
		NAKSent: postMortemNAK(r.Summary.TxNAK), NAKReceived: postMortemNAK(r.Summary.RxNAK),
		RNRSent: postMortemNAK(r.Summary.TxRNR), RNRReceived: postMortemNAK(r.Summary.RxRNR),
	}
	if r.Summary.Status != rdma.Success {
		p.Status = r.Summary.Status.String()
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
	p := &control.PostMortemNAK{
		Count:    n.Count,
		Syndrome: n.First.Syndrome,
		Text:     rc.SyndromeText(n.First.Syndrome),
		PSN:      uint32(n.First.PSN),
	}
	if n.Last != n.First {
		p.LastText, p.LastPSN = rc.SyndromeText(n.Last.Syndrome), uint32(n.Last.PSN)
	}
	return p
}
