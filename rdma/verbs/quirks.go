//go:build rdmacore && linux && cgo

package verbs

// #include "shim.h"
import "C"

import "fmt"

// quirks are the properties of a driver that libibverbs does not report, and on which the loop has
// to act. software is true for rdma_rxe and siw, the kernel's drivers without hardware.
type quirks struct {
	software bool
	rxe      bool // rdma_rxe: RoCE v2 in software
	siw      bool // iWARP in software
	// disorder: requests complete in another order than they were posted. siw completes a request
	// that it has sent while READs before it wait for their data. So each request needs a
	// completion of its own.
	disorder bool
	// noFlush: the device does not complete requests that are posted in ERR, so PostSend and
	// PostRecv complete them (siw).
	noFlush bool
	// noSQD: a queue pair in SQD does not go on when it returns to RTS.
	noSQD bool
	// noSQE: a failed send of datagrams leaves the queue pair in ERR, not in SQE.
	noSQE bool
	// fixedCQs: completion queues cannot be resized (siw).
	fixedCQs bool
	// noReadRights: a peer can READ all memory that is registered in its domain. siw checks that
	// there is a region, not that the region allows READs.
	noReadRights bool
	// lastWQESilent: the driver has no event IBV_EVENT_QP_LAST_WQE_REACHED. Its receives are all in
	// the completion queue when the queue pair is in ERR.
	lastWQESilent bool
}

// quirksOf are the quirks of a device that is on no bus (software), or speaks iWARP.
func quirksOf(software, iwarp bool) quirks {
	siw := software && iwarp
	return quirks{
		software: software, rxe: software && !iwarp, siw: siw,
		disorder: siw, noFlush: siw, fixedCQs: siw, noReadRights: siw,
		noSQD: software || iwarp, noSQE: software, lastWQESilent: software,
	}
}

// The kernel gives each queue of siw the lowest free offset at which the program maps it. One of
// these offsets is the value by which libsiw means "no queue" (SIW_INVAL_UOBJ_KEY). The queue that
// begins there fails without a reason. All queues after it fail too, because they get the same
// offset.
const (
	siwNoOffset = 0x90000
	siwCQE      = 32 // bytes of an entry of a completion queue
)

// occupy makes the first queue of a context of siw. It covers the offsets from 0 to beyond
// siwNoOffset, so no other queue begins there. It takes a MiB.
func (h *hca) occupy() error {
	var err error
	if h.first, err = C.rs_create_cq(h.ctx, siwNoOffset/siwCQE+1, 0, nil); h.first == nil {
		return fmt.Errorf("verbs: creating siw's first completion queue: %w", cause(err))
	}
	return nil
}
