package postmortem

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/rstored/rstored/rdma"
	"github.com/rstored/rstored/rdma/cm"
	"github.com/rstored/rstored/rdma/link"
	"github.com/rstored/rstored/rdma/perf"
	"github.com/rstored/rstored/rdma/rc"
	"github.com/rstored/rstored/rdma/roce"
	"github.com/rstored/rstored/rdma/wire"
)

// TestHints: each way to fail has its hint.
func TestHints(t *testing.T) {
	nak := func(s uint8) rc.Summary { return rc.Summary{TxNAK: rc.NAKs{Count: 1, Last: rc.NAK{Syndrome: s}}} }
	failed := func(s rdma.Status) rc.Summary { return rc.Summary{Status: s} }
	for _, tc := range []struct {
		r    roce.Record
		want string
	}{
		{
			roce.Record{Outcome: rdma.Refused, Reason: cm.InvalidMTU, REQ: &cm.REQ{MTU: 5}, InterfaceMTU: 1500},
			"mtu 4192' for the interface of 10.0.0.1",
		},
		{roce.Record{Outcome: rdma.Refused, Reason: cm.InvalidMTU, REQ: &cm.REQ{}}, "should not happen"},
		{roce.Record{Outcome: rdma.Refused, Reason: cm.InvalidServiceID}, "rstorectl port list"},
		{roce.Record{Outcome: rdma.Refused, Reason: cm.InvalidGID}, "NAT"},
		{roce.Record{Outcome: rdma.Refused, Reason: cm.InvalidTransport}, "proto=rdma"},
		{roce.Record{Outcome: rdma.Refused, Reason: cm.NoResources}, "rstorectl connections"},
		{roce.Record{Outcome: rdma.Refused, Reason: cm.ConsumerDefined, Note: rdma.Note{Why: "there are 1024 " +
			"connections already"}}, "no room for one more"},
		{roce.Record{Outcome: rdma.Refused, Reason: cm.InvalidMTU}, "should not happen"},
		{
			roce.Record{Outcome: rdma.Refused, Reason: cm.ConsumerDefined, Note: rdma.Note{Detail: perf.RefusedClient}},
			"clients in the perf section",
		},
		{
			roce.Record{Outcome: rdma.Refused, Reason: cm.ConsumerDefined, Note: rdma.Note{Detail: perf.RefusedVersion}},
			"one version",
		},
		{
			roce.Record{Outcome: rdma.Refused, Reason: cm.ConsumerDefined, Note: rdma.Note{Detail: perf.RefusedMalformed}},
			"port=20049",
		},
		{
			roce.Record{Outcome: rdma.Refused, Reason: cm.ConsumerDefined, Note: rdma.Note{Detail: perf.RefusedFull}},
			"the bounds",
		},
		{roce.Record{Outcome: rdma.Dropped, Note: rdma.Note{Detail: perf.EndedIdle}}, "idle_timeout"},
		{roce.Record{Outcome: rdma.Dropped, Note: rdma.Note{Why: "the client took no reply and served no RDMA READ " +
			"for 1m0s"}}, "slow_timeout"},
		{roce.Record{Outcome: rdma.Dropped, Note: rdma.Note{Detail: perf.EndedDuration}}, "max_duration"},
		{roce.Record{Outcome: rdma.Dropped, Note: rdma.Note{Detail: perf.EndedMisused}}, "rstorectl capture"},
		{
			roce.Record{Outcome: rdma.Broken, Note: rdma.Note{Detail: perf.Kind("")}, Summary: failed(rdma.RetryExcErr)},
			"stopped answering",
		},
		{roce.Record{Outcome: rdma.Rejected, Reason: cm.Timeout}, "UDP port 4791"},
		{roce.Record{Outcome: rdma.Rejected, Reason: cm.StaleConnection}, "connects again"},
		{roce.Record{Outcome: rdma.Rejected, Reason: cm.NoQP}, "dmesg"},
		{roce.Record{Outcome: rdma.Unconfirmed}, "UDP port 4791"},
		{roce.Record{Outcome: rdma.Dropped}, "rstorectl capture"},
		{roce.Record{Outcome: rdma.Broken, PathMTU: 1024, Summary: failed(rdma.RetryExcErr)}, "ping -M do -s 1092 10.0.0.9"},
		{roce.Record{
			Outcome: rdma.Broken, PathMTU: 4096,
			Summary: rc.Summary{Status: rdma.RetryExcErr, RxPackets: 9, FullSent: true},
		}, "packets of 4192 bytes do not fit the way"},
		{roce.Record{
			Outcome: rdma.Broken, PathMTU: 4096,
			Summary: rc.Summary{Status: rdma.RetryExcErr, RxPackets: 9, FullSent: true, FullArrived: true},
		}, "stopped answering"},
		{
			roce.Record{Outcome: rdma.Broken, PathMTU: 4096, Summary: failed(rdma.RetryExcErr), TooBig: &link.TooBigError{}},
			"set one MTU",
		},
		{roce.Record{Outcome: rdma.Broken, Summary: failed(rdma.RNRRetryExcErr)}, "no receives"},
		{roce.Record{Outcome: rdma.Broken, Summary: failed(rdma.RemAccessErr)}, "rstorectl capture"},
		{roce.Record{Outcome: rdma.Broken, Summary: failed(rdma.RemOpErr)}, "device failed"},
		{roce.Record{Outcome: rdma.Broken, Summary: failed(rdma.RemInvReqErr)}, "rstorectl capture"},
		{roce.Record{Outcome: rdma.Broken, Summary: nak(wire.NAKRemoteAccess)}, "not open to it"},
		{roce.Record{Outcome: rdma.Broken, Summary: nak(wire.NAKInvalidRequest)}, "rstorectl capture"},
		{roce.Record{Outcome: rdma.Broken, Err: errors.New("the interface went")}, "server's log"},
		{roce.Record{
			Outcome: rdma.Broken, Err: fmt.Errorf("the connection failed: %w", rc.ErrPeerStopped),
			Summary: nak(wire.NAKSequence),
		}, "rdma_rxe"},
	} {
		tc.r.Local, tc.r.Remote = netip.MustParseAddrPort("10.0.0.1:20049"), netip.MustParseAddrPort("10.0.0.9:40000")
		if h := hint(&tc.r); !strings.Contains(h, tc.want) {
			t.Errorf("%s, reason %v, %+v: %q; want %q", tc.r.Outcome, tc.r.Reason, tc.r.Summary, h, tc.want)
		}
	}
}
