package counters

import (
	"github.com/rstored/rstored/rdma"
	"github.com/rstored/rstored/rdma/roce"
	"github.com/rstored/rstored/rdma/verbs"
)

// DeviceFaults are the counters of a device that tell of a peer, or of the network,
// doing what it should not. A NAK that was sent ended the connection, as did one that
// was received, but for those of sequence errors, which are how loss is repaired.
func DeviceFaults(st *roce.Stats) map[string]uint64 {
	return map[string]uint64{
		"rdma_nak_invalid_request_sent":      st.RC.TxNAKInvalid,
		"rdma_nak_remote_access_sent":        st.RC.TxNAKAccess,
		"rdma_nak_remote_operation_sent":     st.RC.TxNAKOperation,
		"rdma_nak_invalid_request_received":  st.RC.RxNAKInvalid,
		"rdma_nak_remote_access_received":    st.RC.RxNAKAccess,
		"rdma_nak_remote_operation_received": st.RC.RxNAKOperation,
		"rdma_bad_response":                  st.RC.RxBadResponse,
		"rdma_retries_exceeded":              st.RC.RetryExceeded,
		"rdma_rnr_retries_exceeded":          st.RC.RNRRetryExceeded,
		"rdma_packet_of_other_peer":          st.RC.DropPeer,
		"rdma_packet_of_unknown_qp":          st.DropUnknownQPN,
		"rdma_packet_of_other_partition":     st.RC.DropPKey + st.UD.DropPKey + st.DropPKey,
		"rdma_packet_with_bad_icrc":          st.ICRCErrors,
		"rdma_packet_malformed": st.DropMalformed + st.DropVersion + st.DropOpcode +
			st.RC.DropOpcode + st.UD.DropOpcode,
		"rdma_packet_of_bad_gsi":         st.DropGSI + st.DropQKey,
		"cm_refused_after_access_errors": st.RefusedAfterAccessErrors,
		"cm_malformed":                   st.CM.DropMalformed,
		"cm_full":                        st.CM.DropFull,
	}
}

// KernelFaults are the counters of a device of the kernel that tell of a peer, or of the network,
// doing what it should not, by the names of DeviceFaults where they are the same.
func KernelFaults(st *verbs.Stats) map[string]uint64 {
	f := &st.Failed
	return map[string]uint64{
		"rdma_nak_invalid_request_received":  f[rdma.RemInvReqErr],
		"rdma_nak_remote_access_received":    f[rdma.RemAccessErr],
		"rdma_nak_remote_operation_received": f[rdma.RemOpErr],
		"rdma_bad_response":                  f[rdma.BadRespErr],
		"rdma_retries_exceeded":              f[rdma.RetryExcErr],
		"rdma_rnr_retries_exceeded":          f[rdma.RNRRetryExcErr],
		"rdma_local_error": f[rdma.LocLenErr] + f[rdma.LocQPOpErr] + f[rdma.LocProtErr] +
			f[rdma.LocAccessErr] + f[rdma.MWBindErr] + f[rdma.FatalErr] + f[rdma.GeneralErr],
	}
}
