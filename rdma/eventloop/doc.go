// Package eventloop has the parts that the event loops of all providers share:
//
//	Inbox    functions that other goroutines submit
//	Timers   deadlines and functions to run later
//	Batch    what a turn collects and then handles in one go
//
// The package knows no device and reads no clock. Begin reading at Inbox and Timers. Inbox says
// which of its methods other goroutines may call; all else belongs to the loop. A provider
// implements rdma.Loop with it:
//
//	func (l *loop) Submit(fn func()) bool {
//		queued, first := l.inbox.Put(fn)
//		if first {
//			l.wake()
//		}
//		return queued
//	}
package eventloop
