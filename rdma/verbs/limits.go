//go:build rdmacore && linux && cgo

package verbs

// #include "shim.h"
import "C"

import (
	"fmt"
	"sort"

	"github.com/rstored/rstored/rdma"
)

// queryLimits asks the device for its limits. Devices do not report the limit of inline data, see
// inline.
func (d *Device) queryLimits() error {
	var lim C.struct_rs_limits
	if e := C.rs_query_device(d.ctx, &lim); e != 0 {
		return fmt.Errorf("verbs: asking %s for its limits: %w", d.name, errno(e))
	}
	const type2 = C.IBV_DEVICE_MEM_WINDOW_TYPE_2A | C.IBV_DEVICE_MEM_WINDOW_TYPE_2B
	d.limits = rdma.Limits{
		QPs: int(lim.max_qp), CQs: int(lim.max_cq), SRQs: int(lim.max_srq), MRs: int(lim.max_mr), PDs: int(lim.max_pd),
		MWs: int(lim.max_mw), WRs: int(lim.max_qp_wr), SGEs: int(lim.max_sge), CQEs: int(lim.max_cqe),
		RdAtomic:    min(int(lim.max_qp_rd_atom), int(lim.max_qp_init_rd_atom), 255),
		RegionBytes: uint64(lim.max_mr_size),
		Atomics:     lim.atomic_cap != C.IBV_ATOMIC_NONE, Datagrams: !d.iwarp, IWARP: d.iwarp,
		Windows: lim.max_mw > 0 && lim.cap_flags&type2 != 0,
	}
	d.readSGEs = max(int(lim.max_sge_rd), 1)
	return nil
}

// inlineMax is the most inline data of a request, whatever the device takes.
const inlineMax = 512

// inline is the most inline data of a request that the device takes, up to inlineMax. Devices do
// not report it, so queue pairs are made to find out.
func (d *Device) inline() (int, error) {
	p, err := C.rs_alloc_pd(d.ctx)
	if p == nil {
		return 0, fmt.Errorf("verbs: allocating a protection domain of %s: %w", d.name, cause(err))
	}
	defer C.rs_dealloc_pd(p)
	c, err := C.rs_create_cq(d.ctx, 1, 0, nil)
	if c == nil {
		return 0, fmt.Errorf("verbs: creating a completion queue of %s: %w", d.name, cause(err))
	}
	defer C.rs_destroy_cq(c)
	has := func(n int) bool {
		init := C.struct_rs_qp_init{
			pd: p, send_cq: c, recv_cq: c, _type: C.IBV_QPT_RC, send_wr: 1, recv_wr: 1, send_sge: 1, recv_sge: 1,
			inline_data: C.int(n),
		}
		q := C.rs_create_qp(nil, &init)
		if q == nil {
			return false
		}
		C.rs_destroy_qp(nil, q)
		return int(init.inline_data) >= n
	}
	if has(inlineMax) {
		return inlineMax, nil
	}
	return sort.Search(inlineMax-1, func(n int) bool { return !has(n + 1) }), nil
}
