package postmortem

import (
	"errors"
	"fmt"
	"strings"

	"github.com/rstored/rstored/cmd/internal/config"
	"github.com/rstored/rstored/rdma"
	"github.com/rstored/rstored/rdma/cm"
	"github.com/rstored/rstored/rdma/perf"
	"github.com/rstored/rstored/rdma/rc"
	"github.com/rstored/rstored/rdma/roce"
	"github.com/rstored/rstored/rdma/wire"
)

const (
	// report is the advice for a failure that should not be possible.
	report = "this should not happen: record it with 'rstorectl capture -w roce.pcap' and report it with this entry"
	// packetMargin is what an interface MTU has beyond a path MTU, as the Linux CM
	// chooses the latter.
	packetMargin = 96
)

// A client that neither takes replies nor gives data is dropped after slow_timeout, by rpcrdma.
const (
	idleWhy  = "took no reply"
	idleHint = "the client hangs, was killed or cut off, or is slower than slow_timeout allows: look at it, and " +
		"at the network between; slow_timeout in the configuration gives it more time"
)

// hint says what to change so that it does not happen again.
func hint(r *roce.Record) string {
	peer := r.Remote.Addr()
	if k, ok := r.Note.Detail.(perf.Kind); ok && k != "" {
		return perfHint(k)
	}
	switch r.Outcome {
	case rdma.Refused:
		return refusalHint(r)
	case rdma.Rejected:
		switch r.Reason {
		case cm.Timeout:
			return fmt.Sprintf(
				"our answer did not reach %v in time: see that UDP port %d gets through from here to there "+
					"(firewalls of both hosts, and between)",
				peer,
				wire.Port,
			)
		case cm.StaleConnection:
			return "the peer remembers an earlier connection; it passes when the client connects again"
		}
		return "look at the peer's kernel log (dmesg) for why it rejected the connection"
	case rdma.Unconfirmed, rdma.Unreachable:
		return fmt.Sprintf(
			"UDP port %d does not get through between here and %v, or only one way: look at the firewalls of both "+
				"hosts, and between",
			wire.Port,
			peer,
		)
	case rdma.Dropped:
		if strings.Contains(r.Note.Why, idleWhy) {
			return idleHint
		}
		return report
	}
	return breakHint(r)
}

func refusalHint(r *roce.Record) string {
	switch r.Reason {
	case cm.InvalidMTU:
		if r.REQ == nil || rdma.MTUFromCode(r.REQ.MTU) == 0 {
			return report
		}
		return fmt.Sprintf(
			"the client's interface takes larger packets than ours: 'ip link set dev IFACE mtu %d' for the "+
				"interface of %v here (it has %d), or 'mtu %d' for the client's, then mount again",
			int(rdma.MTUFromCode(r.REQ.MTU))+packetMargin,
			r.Local.Addr(),
			r.InterfaceMTU,
			r.InterfaceMTU,
		)
	case cm.InvalidServiceID:
		if r.Local.Port() == 0 {
			return "the client asked for something other than an RDMA-CM port; nothing here serves that"
		}
		return fmt.Sprintf(
			"'rstorectl port list' shows what is served; mount with port=%d, or 'rstorectl port add rdma %v'",
			config.RDMAPort,
			r.Local,
		)
	case cm.InvalidGID:
		return "the request names other addresses than its packets have: RoCE does not pass address translation " +
			"(NAT); give both hosts a network without, such as the host's network for a container"
	case cm.InvalidTransport, cm.UnsupportedRequest:
		return "the client is no RDMA-CM client of reliable connections; mount with proto=rdma"
	case cm.NoResources:
		return "too many connections are being set up, or no queue pair is free: see 'rstorectl connections' for who " +
			"has them"
	case cm.ConsumerDefined:
		if strings.Contains(r.Note.Why, "responder resources") {
			return "the client must serve RDMA READ: a client that sets responder resources to 0 cannot write files"
		}
		return "the server has no room for one more client: see 'rstorectl connections' for who is connected"
	}
	return report
}

// perfHint is for measurements, which the server refused or ended.
func perfHint(k perf.Kind) string {
	switch k {
	case perf.RefusedClient:
		return "clients in the perf section of the configuration lists those that may measure"
	case perf.RefusedVersion:
		return "rstored and the client's rstorectl are too far apart; bring both to one version"
	case perf.RefusedMalformed:
		return fmt.Sprintf("this is the port of 'rstorectl perf'; mount with port=%d", config.RDMAPort)
	case perf.RefusedLimit, perf.RefusedFull, perf.RefusedMemory:
		return "the perf section of the configuration has the bounds; or measure with less, see 'rstorectl perf --help'"
	case perf.EndedIdle:
		return "the client was killed, or the network to it ended; if it runs, raise idle_timeout in the perf section"
	case perf.EndedDuration:
		return "measure for a shorter time, or raise max_duration in the perf section"
	}
	return report
}

func breakHint(r *roce.Record) string {
	peer := r.Remote.Addr()
	switch r.Summary.Status {
	case rdma.Success: // we refused something of the peer's, or the device failed
	case rdma.RetryExcErr:
		if r.TooBig != nil || r.Summary.Narrow() {
			return fmt.Sprintf(
				"packets of %d bytes do not fit the way to %v ('ping -M do -s %d %v' tries): set one MTU on all "+
					"interfaces, switches and tunnels between, or 'ip link set dev IFACE mtu' to what the way "+
					"carries for the interface of %v here, then mount again",
				int(r.PathMTU)+packetMargin,
				peer,
				int(r.PathMTU)+packetMargin-28,
				peer,
				r.Local.Addr(),
			)
		}
		return fmt.Sprintf(
			"%v stopped answering: it is down, UDP port %d is filtered since, or packets of %d bytes do not get "+
				"through ('ping -M do -s %d %v' tries)",
			peer,
			wire.Port,
			int(r.PathMTU)+packetMargin,
			int(r.PathMTU)+packetMargin-28,
			peer,
		)
	case rdma.RNRRetryExcErr:
		return "the client posted no receives for our messages; look at its kernel log (dmesg)"
	case rdma.RemAccessErr:
		return "the client refused access to memory that it had offered: 'soft' mounts and killed processes take " +
			"it back early; if it happens without, " + report
	case rdma.RemOpErr:
		return "the client's RDMA device failed; look at its kernel log (dmesg)"
	default:
		return report
	}
	if errors.Is(r.Err, rc.ErrPeerStopped) {
		return "packets were lost on the way, and the client did not send them again when asked: rdma_rxe of the " +
			"Linux kernel stops there. The client connects anew by itself; find out where packets are lost " +
			"('ethtool -S', 'tc -s qdisc' and the switch's counters)"
	}
	switch r.Summary.TxNAK.Last.Syndrome {
	case wire.NAKRemoteAccess:
		return "the client used memory of ours that was not open to it (R_Key, address or length); " + report
	case wire.NAKInvalidRequest, wire.NAKRemoteOp:
		return report
	}
	return "see the server's log for what happened to the device"
}
