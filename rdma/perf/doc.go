// Package perf measures bandwidth and latency between two hosts, as perftest
// (ib_write_bw, ib_write_lat and the others) does, over any rdma.Device.
//
// A Server answers, Run measures. Everything that they have to agree on is in the
// private data of the connection manager: the REQ says what is measured and with how
// much, the REP where the server's memory is, and a REJ why not, in words. Each queue
// pair is a connection of its own, and knows nothing of the others.
//
// # Who posts
//
// For READ, WRITE and atomics the client posts and the server is passive. In a test
// of latency the server answers each SEND, or each WRITE with immediate, by one of the
// same length. In a bidirectional test of bandwidth both post. There, and nowhere else,
// a few messages on the queue pair itself begin and end the server's half, see message.
//
// # Concurrency
//
// All of it happens in callbacks on the loop of the connection. Run blocks and may be
// called from any goroutine, as may the methods of Server and Listener. Once a test
// runs, nothing is allocated.
package perf
