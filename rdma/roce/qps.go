package roce

import (
	"cmp"
	"net/netip"
	"slices"

	"github.com/rstored/rstored/rdma"
	"github.com/rstored/rstored/rdma/rc"
	"github.com/rstored/rstored/rdma/wire"
)

// QPInfo is a queue pair as it is at one moment.
type QPInfo struct {
	QPN       uint32
	Type      rdma.QPType
	State     rdma.QPState
	Loop      int // index of the shard it lives on
	Age       rdma.Time
	Active    bool // we asked for the connection
	Local     netip.AddrPort
	Remote    netip.AddrPort // invalid for a queue pair without a connection
	RemoteQPN uint32
	PathMTU   rdma.MTU
	PKey      uint16
	NoICRC    bool // packets to and from a peer on this host, without ICRC

	NextPSN     wire.PSN  // of the next request
	AckedPSN    wire.PSN  // the oldest that is not acknowledged
	ExpectedPSN wire.PSN  // of the peer's next request
	RTT         rdma.Time // smoothed; 0 if there was none to measure

	SendDepth, SendQueued int // requests that the send queue takes, and has
	RecvDepth, RecvQueued int
	ReadsStarted          uint8 // READs and atomics that we may have in flight
	ReadsServed           uint8 // and the peer
	AckTimeout            uint8 // code: 4.096 us * 2^n
	RetryCount            uint8
	RNRRetryCount         uint8

	Counters rc.Counters
}

// QPs lists the queue pairs by number. It must not be called on a loop of a device that
// has several.
func (d *Device) QPs() []QPInfo {
	var all []QPInfo
	for _, s := range d.shards {
		done := make(chan []QPInfo, 1)
		if d.manual {
			done <- s.list()
		} else if !s.Submit(func() { done <- s.list() }) {
			continue
		}
		all = append(all, <-done...)
	}
	slices.SortFunc(all, func(a, b QPInfo) int { return cmp.Compare(a.QPN, b.QPN) })
	return all
}

// list describes the queue pairs of the shard. On the loop.
func (s *shard) list() []QPInfo {
	list := make([]QPInfo, 0, len(s.qps)+len(s.uds))
	for _, q := range s.uds {
		list = append(list, q.info())
	}
	for _, q := range s.qps {
		a := q.rc.Attr()
		i := QPInfo{
			QPN: q.num, State: q.rc.State(), Loop: s.index, Age: s.now - q.since,
			Local: netip.AddrPortFrom(s.dev.ip, 0), RemoteQPN: a.DestQPN, PathMTU: a.PathMTU, PKey: a.PKey,
			NoICRC:    q.rc.OmitsICRC(),
			SendDepth: q.caps.MaxSendWR, RecvDepth: q.caps.MaxRecvWR,
			ReadsStarted: a.MaxRdAtomic, ReadsServed: a.MaxDestRd,
			AckTimeout: a.AckTimeout, RetryCount: a.RetryCount, RNRRetryCount: a.RNRRetryCount,
			Counters: *q.rc.Counters(),
		}
		i.NextPSN, i.AckedPSN, i.ExpectedPSN, i.RTT = q.rc.Cursor()
		i.SendQueued, i.RecvQueued = q.rc.Outstanding()
		if c := q.conn; c != nil {
			i.Active, i.Local, i.Remote = c.Active, c.LocalAddr, c.RemoteAddr
		}
		list = append(list, i)
	}
	return list
}

// HWCounters names the counters as the Linux kernel's drivers name theirs, in
// /sys/class/infiniband/DEVICE/ports/1/hw_counters: rdma_rxe, and mlx5 for what rxe does not count.
// Administrators know these names. The set of names does not change.
func HWCounters(c *rc.Counters) map[string]uint64 {
	return map[string]uint64{
		"sent_pkts":                      c.TxPackets,
		"rcvd_pkts":                      c.RxPackets,
		"sent_bytes":                     c.TxBytesSend + c.TxBytesWrite + c.TxBytesReadResponse,
		"rcvd_bytes":                     c.RxBytesSend + c.RxBytesWrite + c.RxBytesReadResponse,
		"retransmits":                    c.TxRetransmits,
		"local_ack_timeout_err":          c.AckTimeouts,
		"implied_nak_seq_err":            c.ReadReissues,
		"packet_seq_err":                 c.RxNAKSequence,
		"out_of_sequence":                c.RxOutOfSequence,
		"duplicate_request":              c.RxDuplicate,
		"rcvd_rnr_err":                   c.RxRNR,
		"send_rnr_err":                   c.TxRNR,
		"retry_exceeded_err":             c.RetryExceeded,
		"rnr_retry_exceeded_err":         c.RNRRetryExceeded,
		"req_remote_invalid_request":     c.RxNAKInvalid,
		"req_remote_access_errors":       c.RxNAKAccess,
		"req_remote_operational_errors":  c.RxNAKOperation,
		"resp_remote_invalid_request":    c.TxNAKInvalid,
		"resp_remote_access_errors":      c.TxNAKAccess,
		"resp_remote_operational_errors": c.TxNAKOperation,
		"bad_resp_err":                   c.RxBadResponse,
		"np_ecn_marked_roce_packets":     c.RxECN,
		"np_cnp_sent":                    c.TxCNP,
		"rp_cnp_handled":                 c.CNPHandled,
	}
}
