// Package perf measures bandwidth and latency between two hosts, as perftest
// (ib_write_bw, ib_write_lat and the others) does, over any rdma.Device. It knows no
// provider and nothing of RPC. Begin reading at Options, then at Server and Run.
//
// A Server answers, Run measures. The parameters are in the private data of the connection manager:
// the REQ has the operation and its sizes, the REP the memory of the server, and a REJ the reason
// as text. Each queue pair is a connection of its own, independent of the others.
//
// # Who posts
//
// For READ, WRITE and atomics the client posts and the server is passive. In a test of latency the
// server answers each SEND, and each WRITE with immediate, by one of the same length. In a
// bidirectional test of bandwidth both post. Only there, control messages on the queue pair begin
// and end the server's half:
//
//	client                                  server
//	REQ  request       ------------------>
//	                   <------------------  REP  reply, or REJ with a text
//	msgGo              ------------------>  posts messages
//	messages           <----------------->  messages
//	msgStop            ------------------>  posts no more messages
//	                   <------------------  msgReport
//	msgAlive           ------------------>  resets the idle timeout
//
// # Concurrency
//
// Everything happens in callbacks on the loop of the connection. Run blocks. It may be called from
// any goroutine, as may the methods of Server and Listener. While a test runs, nothing is
// allocated.
package perf
