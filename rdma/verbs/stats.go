//go:build rdmacore && linux && cgo

package verbs

// #include "shim.h"
import "C"

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"

	"github.com/rstored/rstored/rdma"
)

// counters are the counters of a loop. The loop writes them, and any goroutine reads them.
type counters struct {
	postsSend, postsRecv, sends, recvs, completions, polls, wakeups, async, cm atomic.Uint64
	accepted, dialed, refused, disconnected                                    atomic.Uint64
	qps                                                                        atomic.Int64
	failed                                                                     [FailedMax]atomic.Uint64
}

// failure counts a completion with an error.
func (c *counters) failure(s rdma.Status) {
	if int(s) < len(c.failed) {
		c.failed[s].Add(1)
	}
}

// Stats counts what has happened since the device was opened. It may be called from any goroutine.
func (d *Device) Stats() (s Stats) {
	for _, l := range d.loops {
		n := &l.n
		for to, from := range map[*uint64]*atomic.Uint64{
			&s.PostsSend: &n.postsSend, &s.PostsRecv: &n.postsRecv, &s.SendRequests: &n.sends, &s.RecvRequests: &n.recvs,
			&s.Completions: &n.completions, &s.Polls: &n.polls, &s.Wakeups: &n.wakeups, &s.AsyncEvents: &n.async,
			&s.CMEvents: &n.cm, &s.Accepted: &n.accepted, &s.Dialed: &n.dialed, &s.Refused: &n.refused,
			&s.Disconnected: &n.disconnected,
		} {
			*to += from.Load()
		}
		s.QPs += uint64(max(n.qps.Load(), 0))
		for i := range n.failed {
			s.Failed[i] += n.failed[i].Load()
		}
	}
	d.mu.Lock()
	s.Regions = uint64(len(d.mrs))
	d.mu.Unlock()
	return s
}

// Info describes the device.
func (d *Device) Info() Info {
	i := Info{Name: d.name, Port: d.port, Transport: d.kind, GIDIndex: d.gid, PathMTU: d.mtu, NUMA: d.numa}
	i.Firmware = line(filepath.Join("/sys/class/infiniband", d.name, "fw_ver"))
	return i
}

// transport is the protocol of the device.
func (d *Device) transport() Transport {
	switch {
	case d.iwarp:
		return IWARP
	case d.ib:
		return InfiniBand
	case d.gid >= 0 && line(filepath.Join("/sys/class/infiniband", d.name, "ports", strconv.Itoa(d.port),
		"gid_attrs/types", strconv.Itoa(d.gid))) == "IB/RoCE v1":
		return RoCEv1
	}
	return RoCEv2
}

// line is the content of a file of sysfs, empty if there is no such file.
func line(name string) string {
	b, err := os.ReadFile(name)
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}

// QPs lists the queue pairs. It waits for the loops, so it must not be called on one.
func (d *Device) QPs() (out []QPInfo) {
	for _, l := range d.loops {
		got := make(chan []QPInfo, 1)
		if l.Submit(func() { got <- l.queuePairs() }) {
			out = append(out, <-got...)
		}
	}
	return out
}

func (l *loop) queuePairs() []QPInfo {
	out := make([]QPInfo, 0, len(l.qps))
	for _, q := range l.qps {
		i := QPInfo{
			QPN: q.Num(), Type: q.typ, State: q.state, Loop: l.index, Age: l.now - q.since, PathMTU: l.dev.mtu,
			SendDepth: q.caps.MaxSendWR, SendQueued: int(q.sqTail - q.sqHead), RecvDepth: q.caps.MaxRecvWR,
			RecvQueued: q.rq.posted(),
		}
		if q.srq != nil {
			i.RecvDepth, i.RecvQueued = len(q.srq.slots.ids), q.srq.Len()
		}
		if c := q.conn; c != nil {
			i.Active, i.Local, i.Remote, i.PathMTU, i.PKey = c.Active, c.LocalAddr, c.RemoteAddr, c.MTU, c.pkey
			i.ReadsStarted, i.ReadsServed = c.Params.InitiatorDepth, c.Params.ResponderResources
		}
		if !l.dev.iwarp {
			var attr C.struct_ibv_qp_attr
			if C.rs_query_qp(q.qp, &attr, C.IBV_QP_DEST_QPN) == 0 {
				i.RemoteQPN = uint32(attr.dest_qp_num)
			}
		}
		out = append(out, i)
	}
	return out
}
