package rpcrdma

import "github.com/rstored/rstored/rdma"

// regions are memory regions without memory, left by finished calls. A call that reuses one does
// not allocate, and reregistering is cheaper than registering. They belong to a loop.
//
//	Register, or take --call--> open to the peer --put--> invalid, in the list --take--> ...
type regions []rdma.Reregisterer

// take reregisters an unused region for b. It returns nil and no error if there is none.
func (r *regions) take(b []byte, access rdma.Access) (rdma.MR, error) {
	n := len(*r)
	if n == 0 {
		return nil, nil
	}
	mr := (*r)[n-1]
	*r = (*r)[:n-1]
	if err := mr.Reregister(b, access); err != nil {
		mr.Close()
		return nil, err
	}
	return mr, nil
}

// put invalidates regions and retains them, most at the most; it closes the rest. After put the
// peer cannot reach the memory any more. The list is bounded so that a burst of large replies
// does not leave regions behind for ever.
func (r *regions) put(mrs []rdma.MR, most int) {
	for _, m := range mrs {
		if mr, ok := m.(rdma.Reregisterer); ok && len(*r) < most && mr.Reregister(nil, 0) == nil {
			*r = append(*r, mr)
			continue
		}
		m.Close()
	}
}

// close closes all regions.
func (r *regions) close() {
	for _, m := range *r {
		m.Close()
	}
	*r = nil
}
