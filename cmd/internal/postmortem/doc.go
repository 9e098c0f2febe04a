// Package postmortem keeps failure records of RDMA connections: of each connection that ended
// badly, and of each connection request that was refused. It says in plain words what happened and
// what to change. Log holds the records and is safe for use by several goroutines.
//
// The providers of RDMA devices (rdma/roce, rdma/verbs) make the records, rpcrdma adds the calls
// that the connection carried, and the control interface prints the result. The package knows
// nothing of the daemon.
//
// Read log.go first, then soft.go and kernel.go for the two providers. hints.go has the advice.
//
//	var failures postmortem.Log
//	d, err := roce.Open(roce.Config{Addr: addr, OnFailure: failures.Soft})
//	for _, p := range failures.List() {
//		fmt.Println(p.Peer, p.Outcome, p.Reason)
//	}
package postmortem
