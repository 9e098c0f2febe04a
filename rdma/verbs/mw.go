//go:build rdmacore && linux

package verbs

// #include "shim.h"
import "C"

import "github.com/rstored/rstored/rdma"

// mw is a memory window. It implements rdma.MW.
type mw struct{}

func (w *mw) free() {}

// AllocMW implements rdma.PD.
func (p *pd) AllocMW() (rdma.MW, error) { return nil, rdma.ErrUnsupported }

// AllocMR implements rdma.PD.
func (p *pd) AllocMR(int) (rdma.FastMR, error) { return nil, rdma.ErrUnsupported }

func (q *qp) checkBind(*rdma.SendWR) error { return rdma.ErrUnsupported }

func (q *qp) bind(*rdma.SendWR, *C.struct_rs_send) *mw { return nil }
