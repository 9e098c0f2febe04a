package postmortem

import (
	"errors"
	"fmt"
	"net/netip"
	"reflect"
	"strings"
	"testing"

	"github.com/rstored/rstored/cmd/internal/control"
	"github.com/rstored/rstored/rdma"
	"github.com/rstored/rstored/rdma/perf"
	"github.com/rstored/rstored/rdma/verbs"
	"github.com/rstored/rstored/rpcrdma"
)

var (
	kernelLocal  = netip.MustParseAddrPort("10.0.0.1:20049")
	kernelRemote = netip.MustParseAddrPort("10.0.0.9:40000")
)

// TestKernelHints: each way to fail on a device of the kernel has its hint.
func TestKernelHints(t *testing.T) {
	failed := func(s rdma.Status) verbs.Summary { return verbs.Summary{Failed: verbs.Request{Status: s}} }
	for _, tc := range []struct {
		r    verbs.Record
		want string
	}{
		{verbs.Record{Outcome: rdma.Broken, Err: fmt.Errorf("it ended: %w", rdma.ErrRemoved)}, "rstorectl device list"},
		{verbs.Record{Outcome: rdma.Broken, Err: rdma.ErrAddrChanged}, "/proc/net/bonding/BOND"},
		{verbs.Record{Outcome: rdma.Refused, Reason: 28, Note: rdma.Note{Why: "there are 1024 connections " +
			"already"}}, "no room for one more client"},
		{verbs.Record{Outcome: rdma.Refused, Reason: 28, Note: rdma.Note{Why: "responder resources 0"}}, "serve RDMA READ"},
		{
			verbs.Record{Outcome: rdma.Refused, Reason: 3, Err: fmt.Errorf("%w: a queue pair", rdma.ErrNoResources)},
			"LimitMEMLOCK",
		},
		{verbs.Record{Outcome: rdma.Refused, Err: errors.New("answering")}, "dmesg"},
		{
			verbs.Record{Outcome: rdma.Refused, Reason: 28, Note: rdma.Note{Detail: perf.RefusedClient}},
			"clients in the perf section",
		},
		{verbs.Record{Outcome: rdma.Dropped, Note: rdma.Note{Detail: perf.EndedIdle}}, "idle_timeout"},
		{verbs.Record{Outcome: rdma.Dropped, Note: rdma.Note{Why: "the client took no reply and served no RDMA READ " +
			"for 1m0s"}}, "slow_timeout"},
		{verbs.Record{Outcome: rdma.Dropped, Note: rdma.Note{Why: "it sends nonsense"}}, "tcpdump"},
		{verbs.Record{Outcome: rdma.Rejected, Reason: 10}, "connects again"},
		{verbs.Record{Outcome: rdma.Rejected, Reason: 28}, "dmesg"},
		{verbs.Record{Outcome: rdma.Unconfirmed, Transport: verbs.RoCEv2, Software: true}, "UDP port 4791 does " +
			"not get through: look at the firewalls of both"},
		{verbs.Record{Outcome: rdma.Unreachable, Transport: verbs.RoCEv2}, "rdma statistic show"},
		{verbs.Record{Outcome: rdma.Unconfirmed, Transport: verbs.IWARP}, "TCP port 20049"},
		{verbs.Record{Outcome: rdma.Unconfirmed, Transport: verbs.InfiniBand}, "subnet manager"},
		{verbs.Record{Outcome: rdma.Unconfirmed, Transport: verbs.RoCEv1}, "VLAN"},
		{
			verbs.Record{Outcome: rdma.Broken, Async: "IBV_EVENT_PORT_ERR", Summary: failed(rdma.RetryExcErr)},
			"port of card0 went down",
		},
		{verbs.Record{Outcome: rdma.Broken, Async: "IBV_EVENT_QP_ACCESS_ERR"}, "not open to it"},
		{verbs.Record{Outcome: rdma.Broken, Async: "IBV_EVENT_QP_FATAL"}, "card0 has failed"},
		{verbs.Record{
			Outcome: rdma.Broken, Async: "IBV_EVENT_COMM_EST", Transport: verbs.RoCEv2, Software: true,
			Summary: failed(rdma.RetryExcErr),
		}, "10.0.0.9 stopped answering: it is down, was killed, or UDP port 4791"},
		{verbs.Record{Outcome: rdma.Broken, Summary: failed(rdma.RNRRetryExcErr)}, "no receives"},
		{verbs.Record{Outcome: rdma.Broken, Summary: failed(rdma.RemAccessErr)}, "'soft' mounts"},
		{verbs.Record{Outcome: rdma.Broken, Summary: failed(rdma.RemOpErr)}, "client's RDMA device failed"},
		{verbs.Record{Outcome: rdma.Broken, Summary: failed(rdma.LocProtErr)}, "should not happen"},
		{verbs.Record{Outcome: rdma.Broken, Transport: verbs.IWARP, Err: errors.New("the device ended it")}, "in the middle"},
		{
			verbs.Record{Outcome: rdma.Broken, Transport: verbs.RoCEv2, Err: errors.New("the device ended it")},
			"what happened to the device",
		},
	} {
		tc.r.Device, tc.r.Local, tc.r.Remote = "card0", kernelLocal, kernelRemote
		if h := kernelHint(&tc.r); !strings.Contains(h, tc.want) {
			t.Errorf(
				"%s, reason %d, %v, %s, %v: %q; want %q",
				tc.r.Outcome,
				tc.r.Reason,
				tc.r.Err,
				tc.r.Async,
				tc.r.Summary.Failed.Status,
				h,
				tc.want,
			)
		}
	}
}

// TestKernelPostMortem: all that a device of the kernel has left is told.
func TestKernelPostMortem(t *testing.T) {
	const end = 20 * rdma.Second
	before := func(us int64) rdma.Time { return end - rdma.Time(us)*rdma.Microsecond }
	fault := verbs.Request{
		At:     before(1),
		Count:  1,
		Did:    verbs.Failed,
		Op:     rdma.WCWrite,
		Status: rdma.RetryExcErr,
		Vendor: 0x81,
	}
	r := kernelRecord{verbs.Record{
		Outcome: rdma.Broken, Device: "card0", Transport: verbs.RoCEv2, Local: kernelLocal, Remote: kernelRemote,
		Err: errors.New("RDMA request failed: transport retry counter exceeded"),
		REQ: &verbs.REQ{
			QPN: 17, PathMTU: 1024, ResponderResources: 16, InitiatorDepth: 2, RetryCount: 6, RNRRetryCount: 7,
			Private: append(
				rpcrdma.PrivateMessage{RemoteInvalidation: true, Send: 4096, Receive: 8192}.Append(nil),
				0,
				0,
			),
		},
		Event: "RDMA_CM_EVENT_ESTABLISHED", EventStatus: -110, Async: "IBV_EVENT_PORT_ERR", AsyncAt: before(5_000_000),
		PathMTUMax:  4096,
		Established: true, Age: 90 * rdma.Second, LocalQPN: 99, RemoteQPN: 17, PathMTU: 1024, ReadsServed: 1,
		ReadsStarted: 16, AckTimeout: 14, RetryCount: 6, RNRRetryCount: 7,
		Summary: verbs.Summary{
			Posted:        8,
			PostedBytes:   9,
			Received:      3,
			ReceivedBytes: 300,
			Flushed:       2,
			Outstanding:   4,
			Oldest:        before(4_000),
			Receives:      30,
			Failed:        fault,
		},
		Recent: []verbs.Request{
			{At: before(7_000), Did: verbs.Received, Op: rdma.WCRecv, Count: 1, Bytes: 120},
			{At: before(6_000), Op: rdma.WCWrite, Count: 3, Bytes: 3000},
			fault,
		},
		Ended: end,
	}}
	want := control.PostMortem{
		Device: "card0/10.0.0.1", Provider: "verbs", Peer: kernelRemote.String(), Local: kernelLocal.String(),
		Outcome: "broken",
		Reason:  "RDMA request failed: transport retry counter exceeded", Hint: kernelHint(&r.Record), PathMTUMax: 4096,
		Events: &control.PostMortemEvents{
			Transport: "RoCE v2",
			CM:        "RDMA_CM_EVENT_ESTABLISHED",
			CMStatus:  -110,
			Async:     "IBV_EVENT_PORT_ERR",
			AsyncUS:   5_000_000,
		},
		Request: &control.PostMortemREQ{
			Port: 20049, QPN: 17, PathMTU: 1024, ResponderResources: 16, InitiatorDepth: 2, RetryCount: 6,
			RNRRetryCount: 7, PrivateData: "f6ab0e18010103070000",
			Private: &control.PostMortemPrivate{Send: 4096, Receive: 8192, RemoteInvalidation: true},
		},
		Connection: &control.PostMortemConn{
			Established: true, AgeMillis: 90_000, QPN: 99, RemoteQPN: 17, PathMTU: 1024, ReadsServed: 1,
			ReadsStarted: 16, AckTimeout: 14, RetryCount: 6, RNRRetryCount: 7,
			Status: "transport retry counter " +
				"exceeded", Failed: &control.PostMortemFailed{BeforeUS: 1, Op: "WRITE", Code: 12, Vendor: 0x81},
			Work: &control.PostMortemWork{
				Posted:        8,
				PostedBytes:   9,
				Received:      3,
				ReceivedBytes: 300,
				Outstanding:   4,
				OldestUS:      4_000,
				Flushed:       2,
				Receives:      30,
			},
			Requests: []control.PostMortemRequest{
				{BeforeUS: 7_000, Did: "received", Op: "RECV", Count: 1, Bytes: 120},
				{BeforeUS: 6_000, Did: "posted", Op: "WRITE", Count: 3, Bytes: 3000},
				{
					BeforeUS: 1,
					Did:      "failed",
					Op:       "WRITE",
					Count:    1,
					Status:   "transport retry counter exceeded",
					Vendor:   0x81,
				},
			},
		},
	}
	var got control.PostMortem
	r.fill(&got)
	if !reflect.DeepEqual(got, want) {
		t.Errorf(
			"%+v\n%+v\n%+v, not\n%+v\n%+v\n%+v",
			got,
			got.Request,
			got.Connection,
			want,
			want.Request,
			want.Connection,
		)
	}
}
