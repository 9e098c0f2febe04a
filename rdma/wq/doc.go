// Package wq holds the work queues that the engines of queue pairs share: a ring, a queue
// of receives, and the shared receive queue. Nothing in it is safe for concurrent use.
package wq
