// Package wq has the work queues that the engines rdma/rc and rdma/ud share: a growing ring, a
// receive queue, and the shared receive queue. It knows nothing of packets. Begin with Queue.
//
// Nothing in it is safe for concurrent use: a queue belongs to the loop of its queue pairs. In the
// steady state nothing is allocated.
//
//	q := wq.Queue{Most: 64, SGEs: 1}
//	err := q.Post([]rdma.RecvWR{{ID: 1, SGL: sgl}}, 0) // the user posts
//	var r wq.Recv
//	q.Take(&r)                        // a message begins
//	wq.Scatter(r.SGL, 0, payload)     // its payload arrives
package wq
