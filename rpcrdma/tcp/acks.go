package tcp

import (
	"net"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/rstored/rstored/rpcrdma/rpc"
)

// acks knows which replies of a connection the client's host has acknowledged, of those that are kept for
// retransmissions. The kernel says how much of what was written is not acknowledged, when it is asked.
type acks struct {
	socket syscall.RawConn // nil if it is no socket of TCP

	mu      sync.Mutex
	written uint64 // without what TLS adds, so that acked is too small rather than too large
	waiting []unacked
}

// unacked is a reply that ends with the byte end of what was written.
type unacked struct {
	end   uint64
	reply rpc.Delivery
}

func newAcks(c net.Conn) *acks {
	a := new(acks)
	if t, ok := c.(*net.TCPConn); ok {
		a.socket, _ = t.SyscallConn()
	}
	return a
}

// wrote counts n bytes, which end with the replies of batch.
func (a *acks) wrote(n int64, batch []*call) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.written += uint64(n)
	for _, k := range batch {
		if d := k.Delivery(); d.Wanted() && a.socket != nil {
			a.waiting = append(a.waiting, unacked{a.written, d})
		}
	}
}

// Settle implements rpc.Settler. It is called before the connection is closed, too, as nothing can be learned
// afterwards.
func (a *acks) Settle() {
	a.mu.Lock()
	var acked []unacked
	if len(a.waiting) > 0 {
		if n := a.unsent(); n >= 0 && uint64(n) <= a.written {
			i := 0
			for i < len(a.waiting) && a.waiting[i].end <= a.written-uint64(n) {
				i++
			}
			acked, a.waiting = a.waiting[:i:i], a.waiting[i:]
		}
	}
	a.mu.Unlock()
	for _, u := range acked {
		u.reply.Delivered()
	}
}

// unsent is how many bytes of what was written the client's host has not acknowledged, or -1 if that cannot be
// known any more.
func (a *acks) unsent() int {
	n := -1
	_ = a.socket.Control(func(fd uintptr) {
		if v, err := unix.IoctlGetInt(int(fd), unix.SIOCOUTQ); err == nil {
			n = v
		}
	})
	return n
}
