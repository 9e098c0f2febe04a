//go:build rdmacore && linux && cgo

package verbs

// #include "shim.h"
import "C"

import (
	"fmt"
	"net/netip"
	"unsafe"

	"github.com/rstored/rstored/rdma"
)

var states = [...]uint32{
	rdma.StateReset: C.IBV_QPS_RESET, rdma.StateInit: C.IBV_QPS_INIT, rdma.StateRTR: C.IBV_QPS_RTR,
	rdma.StateRTS: C.IBV_QPS_RTS,
	rdma.StateSQD: C.IBV_QPS_SQD, rdma.StateSQE: C.IBV_QPS_SQE, rdma.StateErr: C.IBV_QPS_ERR,
}

// legal reports whether a user may request a transition (IBTA 10.3.1).
//
//	RESET --> INIT --> RTR --> RTS <--> SQD
//	                            ^
//	                            +------ SQE (UD: after a failed send)
//	every state --> ERR, RESET
func legal(from, to rdma.QPState) bool {
	switch to {
	case rdma.StateReset, rdma.StateErr:
		return true
	case rdma.StateInit:
		return from == rdma.StateReset || from == rdma.StateInit
	case rdma.StateRTR:
		return from == rdma.StateInit
	case rdma.StateRTS:
		return from == rdma.StateRTR || from == rdma.StateRTS || from == rdma.StateSQD || from == rdma.StateSQE
	case rdma.StateSQD:
		return from == rdma.StateRTS || from == rdma.StateSQD
	}
	return false
}

// Modify implements rdma.QP. Which attributes a transition takes depends on the type of the queue
// pair (IBTA 11.2.4.2). The kernel refuses a transition if one is missing or too many:
//
//	to     RC                                             UD
//	INIT   port, P_Key index, access flags                port, P_Key index, Q_Key
//	RTR    path, MTU, peer's QPN and first PSN,           nothing
//	       READs served at once, RNR timer
//	RTS    first PSN, timeout, retries, READs started     first PSN
//	SQD    an event when the queue has drained            the same
//
// librdmacm makes these transitions for connections. An iWARP queue pair becomes connected together
// with its TCP connection, so only librdmacm can connect it.
func (q *qp) Modify(a rdma.QPAttr) error {
	if q.dead {
		return rdma.ErrClosed
	}
	if !legal(q.state, a.State) {
		return fmt.Errorf("%w: %v to %v", rdma.ErrBadTransition, q.state, a.State)
	}
	d := q.l.dev
	if a.State == rdma.StateSQD && d.quirks.noSQD {
		return fmt.Errorf("%w: %s does not go on by itself after SQD", rdma.ErrUnsupported, d.name)
	}
	connects := a.State == rdma.StateInit || a.State == rdma.StateRTR ||
		a.State == rdma.StateRTS && q.state == rdma.StateRTR
	if connects && d.iwarp {
		return fmt.Errorf("%w: an iWARP queue pair is connected by the connection manager alone", rdma.ErrUnsupported)
	}
	attr := C.struct_ibv_qp_attr{qp_state: states[a.State]}
	mask := C.int(C.IBV_QP_STATE)
	switch a.State {
	case rdma.StateInit:
		if a.PKey != 0 && a.PKey&0x7fff != defaultPKey&0x7fff {
			return fmt.Errorf("%w: partition %#04x", rdma.ErrUnsupported, a.PKey)
		}
		attr.port_num = C.uint8_t(d.port)
		mask |= C.IBV_QP_PORT | C.IBV_QP_PKEY_INDEX
		if q.typ == rdma.UD {
			q.qkey, attr.qkey = a.QKey, C.uint32_t(a.QKey)
			mask |= C.IBV_QP_QKEY
		} else {
			access := a.Access
			if access == 0 {
				access = rdma.LocalWrite | rdma.RemoteWrite | rdma.RemoteRead | rdma.RemoteAtomic
			}
			if !d.limits.Atomics { // the kernel refuses the flag
				access &^= rdma.RemoteAtomic
			}
			attr.qp_access_flags = C.uint(access)
			mask |= C.IBV_QP_ACCESS_FLAGS
		}
	case rdma.StateRTR:
		if q.typ == rdma.UD {
			break
		}
		if err := d.path(&attr.ah_attr, a.RemoteAddr, a.TrafficClass); err != nil {
			return err
		}
		attr.path_mtu = uint32(a.PathMTU.Code())
		attr.dest_qp_num, attr.rq_psn = C.uint32_t(a.DestQPN), C.uint32_t(a.RQPSN)
		attr.max_dest_rd_atomic, attr.min_rnr_timer = C.uint8_t(a.MaxDestRd), C.uint8_t(a.MinRNRTimer)
		mask |= C.IBV_QP_AV | C.IBV_QP_PATH_MTU | C.IBV_QP_DEST_QPN | C.IBV_QP_RQ_PSN |
			C.IBV_QP_MAX_DEST_RD_ATOMIC | C.IBV_QP_MIN_RNR_TIMER
	case rdma.StateRTS:
		if q.state != rdma.StateRTR {
			break
		}
		attr.sq_psn = C.uint32_t(a.SQPSN)
		mask |= C.IBV_QP_SQ_PSN
		if q.typ == rdma.UD {
			break
		}
		attr.timeout, attr.retry_cnt, attr.rnr_retry = C.uint8_t(a.AckTimeout), C.uint8_t(a.RetryCount),
			C.uint8_t(a.RNRRetryCount)
		attr.max_rd_atomic = C.uint8_t(a.MaxRdAtomic)
		mask |= C.IBV_QP_TIMEOUT | C.IBV_QP_RETRY_CNT | C.IBV_QP_RNR_RETRY | C.IBV_QP_MAX_QP_RD_ATOMIC
	case rdma.StateSQD:
		if q.state == rdma.StateRTS {
			attr.en_sqd_async_notify = 1
			mask |= C.IBV_QP_EN_SQD_ASYNC_NOTIFY
		}
	}
	if e := C.rs_modify_qp(q.qp, &attr, mask); e != 0 {
		return fmt.Errorf("%s: queue pair %d from %v to %v: %w", d.name, q.Num(), q.state, a.State, errno(e))
	}
	if a.State == rdma.StateErr {
		q.inError()
		return nil
	}
	q.state = a.State
	return nil
}

// path fills in the path to an address. On RoCE, the GID of the peer is its IP address.
func (d *Device) path(ah *C.struct_ibv_ah_attr, to netip.Addr, class uint8) error {
	if d.ib {
		return fmt.Errorf("%w: InfiniBand's paths are found by the connection manager alone", rdma.ErrUnsupported)
	}
	if d.gid < 0 {
		return fmt.Errorf("%w: %s has no GID for %v", rdma.ErrUnsupported, d.name, d.addr)
	}
	b := to.As16()
	*(*[16]byte)(unsafe.Pointer(&ah.grh.dgid)) = b
	ah.grh.sgid_index = C.uint8_t(d.gid)
	ah.grh.hop_limit = 64
	ah.grh.traffic_class = C.uint8_t(class)
	ah.is_global = 1
	ah.port_num = C.uint8_t(d.port)
	return nil
}
