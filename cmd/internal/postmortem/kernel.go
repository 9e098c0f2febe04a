package postmortem

import (
	"encoding/hex"
	"errors"
	"fmt"
	"strings"

	"github.com/rstored/rstored/cmd/internal/config"
	"github.com/rstored/rstored/cmd/internal/control"
	"github.com/rstored/rstored/rdma"
	"github.com/rstored/rstored/rdma/cm"
	"github.com/rstored/rstored/rdma/perf"
	"github.com/rstored/rstored/rdma/provider"
	"github.com/rstored/rstored/rdma/verbs"
	"github.com/rstored/rstored/rdma/wire"
)

// kernelRecord is of a device of the kernel.
type kernelRecord struct{ verbs.Record }

func (r *kernelRecord) note() *rdma.Note { return &r.Note }

func (r *kernelRecord) because() string {
	return because(r.Outcome, cm.Reason(r.Reason), r.Err, r.Note.Why)
}

func (r *kernelRecord) refusal() (refusal, bool) {
	return refusal{r.Local, r.Remote, r.Reason, r.Note.Why, r.because()}, r.Outcome == rdma.Refused
}

func (r *kernelRecord) established() bool { return r.Established }

func (r *kernelRecord) fill(p *control.PostMortem) {
	p.Device, p.Provider, p.Peer, p.Local = r.Device+"/"+r.Local.Addr().
		String(),
		string(
			provider.Verbs,
		), r.Remote.String(), r.Local.String()
	p.Outcome, p.Reason, p.Reject, p.Hint = string(r.Outcome), r.because(), r.Reason, kernelHint(&r.Record)
	p.PathMTUMax = int(r.PathMTUMax)
	p.Events = &control.PostMortemEvents{
		Transport: string(r.Transport),
		CM:        r.Event,
		CMStatus:  r.EventStatus,
		Async:     r.Async,
	}
	if r.Async != "" {
		p.Events.AsyncUS = r.before(r.AsyncAt)
	}
	if q := r.REQ; q != nil {
		p.Request = &control.PostMortemREQ{
			Port: r.Local.Port(), QPN: q.QPN, PathMTU: int(q.PathMTU), ResponderResources: q.ResponderResources,
			InitiatorDepth: q.InitiatorDepth,
			RetryCount:     q.RetryCount, RNRRetryCount: q.RNRRetryCount, PrivateData: hex.EncodeToString(q.Private),
			Private: postMortemPrivate(q.Private),
		}
	}
	if r.LocalQPN != 0 {
		p.Connection = r.connection()
	}
}

// before returns how long before the end of the connection a time was, in microseconds.
func (r *kernelRecord) before(at rdma.Time) int64 { return int64((r.Ended - at) / rdma.Microsecond) }

// did describes what happened to requests.
var did = [...]string{verbs.Posted: "posted", verbs.Received: "received", verbs.Failed: "failed"}

func (r *kernelRecord) connection() *control.PostMortemConn {
	s := &r.Summary
	p := &control.PostMortemConn{
		Established: r.Established, AgeMillis: int64(r.Age / rdma.Millisecond), QPN: r.LocalQPN, RemoteQPN: r.RemoteQPN,
		PathMTU:     int(r.PathMTU),
		ReadsServed: r.ReadsServed, ReadsStarted: r.ReadsStarted, AckTimeout: r.AckTimeout, RetryCount: r.RetryCount,
		RNRRetryCount: r.RNRRetryCount,
		Work: &control.PostMortemWork{
			Posted: s.Posted, PostedBytes: s.PostedBytes, Received: s.Received, ReceivedBytes: s.ReceivedBytes,
			Outstanding: s.Outstanding, Flushed: s.Flushed, Receives: s.Receives,
		},
	}
	if s.Outstanding > 0 {
		p.Work.OldestUS = r.before(s.Oldest)
	}
	if f := s.Failed; f.Status != rdma.Success {
		p.Status = f.Status.String()
		p.Failed = &control.PostMortemFailed{
			BeforeUS: r.before(f.At),
			Op:       f.Op.String(),
			Code:     uint8(f.Status),
			Vendor:   f.Vendor,
		}
	}
	for _, k := range r.Recent {
		e := control.PostMortemRequest{
			BeforeUS: r.before(k.At),
			Did:      did[k.Did],
			Op:       k.Op.String(),
			Count:    int(k.Count),
			Bytes:    k.Bytes,
		}
		if k.Did == verbs.Failed {
			e.Status, e.Vendor = k.Status.String(), k.Vendor
		}
		p.Requests = append(p.Requests, e)
	}
	return p
}

// kernelReport is the advice for a failure that should not be possible.
const kernelReport = "this should not happen: look at the kernel's log (dmesg) here and there, record it with " +
	"tcpdump and report it with this entry"

// kernelHint says what to change so that it does not happen again.
func kernelHint(r *verbs.Record) string {
	if k, ok := r.Note.Detail.(perf.Kind); ok && k != "" {
		return perfHint(k)
	}
	switch {
	case errors.Is(r.Err, rdma.ErrRemoved):
		return "the device was removed, by its driver or by 'rdma link delete'; the port is served again when it " +
			"is back ('rstorectl port list', 'rstorectl device list')"
	case errors.Is(r.Err, rdma.ErrAddrChanged):
		return "a bond changed its active interface, and clients connect again by the new one: see why it did " +
			"('cat /proc/net/bonding/BOND', dmesg)"
	case r.Outcome == rdma.Refused:
		return kernelRefusal(r)
	case r.Outcome == rdma.Rejected && r.Reason == uint16(cm.StaleConnection):
		return "the peer remembers an earlier connection; it passes when the client connects again"
	case r.Outcome == rdma.Rejected:
		return "look at the peer's kernel log (dmesg) for why it rejected the connection"
	case r.Outcome == rdma.Unconfirmed, r.Outcome == rdma.Unreachable:
		return fmt.Sprintf("nothing came back from %v: %s", r.Remote.Addr(), way(r))
	case r.Outcome == rdma.Dropped && strings.Contains(r.Note.Why, idleWhy):
		return idleHint
	case r.Outcome == rdma.Dropped:
		return kernelReport
	}
	switch r.Async {
	case "IBV_EVENT_PORT_ERR":
		return fmt.Sprintf("the port of %s went down: cable, switch or interface ('rdma link', 'ip link')", r.Device)
	case "IBV_EVENT_QP_ACCESS_ERR":
		return "the client used memory of ours that was not open to it (R_Key, address or length); " + kernelReport
	case "IBV_EVENT_QP_FATAL", "IBV_EVENT_DEVICE_FATAL":
		return fmt.Sprintf("%s has failed: see the kernel's log (dmesg) here", r.Device)
	}
	return kernelBreak(r)
}

// kernelBreak describes a broken connection by the request that failed.
func kernelBreak(r *verbs.Record) string {
	switch r.Summary.Failed.Status {
	case rdma.RetryExcErr:
		return fmt.Sprintf("%v stopped answering: it is down, was killed, or %s", r.Remote.Addr(), way(r))
	case rdma.RNRRetryExcErr:
		return "the client posted no receives for our messages; look at its kernel log (dmesg)"
	case rdma.RemAccessErr:
		return "the client refused access to memory that it had offered: 'soft' mounts and killed processes take " +
			"it back early; if it happens without, " + kernelReport
	case rdma.RemOpErr:
		return "the client's RDMA device failed; look at its kernel log (dmesg)"
	case rdma.Success:
		if r.Transport == verbs.IWARP {
			return "the client ended the connection in the middle, as killed processes and 'umount -f' do, or " +
				"refused access to memory; if it happens without, look at its kernel log (dmesg)"
		}
		return "see the server's log, and the kernel's (dmesg), for what happened to the device"
	}
	return kernelReport
}

// way returns what probably blocks the path to the peer.
func way(r *verbs.Record) string {
	switch {
	case r.Transport == verbs.InfiniBand:
		return "the subnet manager has no path to it ('ibping', 'sminfo')"
	case r.Transport == verbs.IWARP:
		return fmt.Sprintf(
			"TCP port %d does not get through: look at the firewalls of both hosts, and between",
			r.Local.Port(),
		)
	case r.Transport == verbs.RoCEv1:
		return "it is in another VLAN, which RoCE v1 does not leave"
	case r.Software:
		return fmt.Sprintf(
			"UDP port %d does not get through: look at the firewalls of both hosts, and between",
			wire.Port,
		)
	}
	return fmt.Sprintf(
		"UDP port %d does not get through: look at the switches and firewalls between (those of the hosts do not "+
			"see a card's packets), and at 'rdma statistic show'",
		wire.Port,
	)
}

// kernelRefusal describes a request that a user of the device has refused. Where nothing listens,
// the kernel refuses by itself and there is no record.
func kernelRefusal(r *verbs.Record) string {
	switch {
	case strings.Contains(r.Note.Why, "responder resources"):
		return "the client must serve RDMA READ: a client that sets responder resources to 0 cannot write files"
	case errors.Is(r.Err, rdma.ErrNoResources):
		return fmt.Sprintf(
			"%s, or the memory that may be locked, has no room for one more: see 'rstorectl connections', 'rdma "+
				"resource show', and LimitMEMLOCK",
			r.Device,
		)
	case r.Reason == uint16(cm.ConsumerDefined):
		return fmt.Sprintf(
			"the server has no room for one more client: see 'rstorectl connections' for who is connected; file "+
				"systems are mounted with port=%d",
			config.RDMAPort,
		)
	}
	return kernelReport
}
