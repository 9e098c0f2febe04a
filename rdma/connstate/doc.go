// Package connstate has what the connections of all providers share: the phases of a connection,
// the checks and bounds of its parameters, and the decision whether its end is a failure that
// deserves a record. A provider embeds Conn. The package does no IO, and knows nothing of packets
// and drivers.
//
// Begin reading at Phase. A Conn belongs to the loop of its connection. The functions may be called
// from any goroutine.
//
//	if err := connstate.CheckDial(local, &p, privateMax); err != nil {
//		return err
//	}
//	c.Params = connstate.Bound(p.Params, most)
//	c.Deliver(c, rdma.ConnEvent{Kind: rdma.ConnEstablished})
package connstate
