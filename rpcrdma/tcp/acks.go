package tcp

import (
	"net"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/rstored/rstored/rpcrdma/rpc"
)

// acks finds out which replies of a connection the client's host has acknowledged, so that the
// reply cache can free them. The ioctl SIOCOUTQ returns how many of the written bytes are not
// acknowledged.
type acks struct {
	socket syscall.RawConn // nil if the connection is not a TCP socket

	mu      sync.Mutex
	written uint64 // without what TLS adds, so that acked is too small rather than too large
	waiting []unacked
}

// unacked is a reply whose last byte is byte number end of the stream.
type unacked struct {
	end   uint64
	reply rpc.Delivery
}

// newAcks makes the acks of a connection. If it is not a TCP socket (tests, pipes), no reply is
// ever reported, and the cache retains entries for their full age.
func newAcks(c net.Conn) *acks {
	a := new(acks)
	if t, ok := c.(*net.TCPConn); ok {
		a.socket, _ = t.SyscallConn()
	}
	return a
}

// wrote counts n written bytes, with the replies of batch at their end.
//
//	written      0 ........ 900 | reply A ends at 1000 | reply B ends at 1200
//	SIOCOUTQ     150 bytes are not acknowledged: byte 1050 is
//	Settle       reports A, retains B
//
// With TLS the wire has more bytes than written counts, so fewer replies are reported, never more.
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

// Settle implements rpc.Settler. It reports the acknowledged replies, without mu: Delivered takes
// the mutex of the cache. It is also called before the socket is closed, because there is no
// answer afterwards. An acknowledgement of TCP says that the client's kernel has the bytes, also
// if the client's program has not read them. For the Linux client both are the same: its kernel
// is the NFS client.
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

// unsent is the number of written bytes that the client's host has not acknowledged, or -1 if
// that is unknown.
func (a *acks) unsent() int {
	n := -1
	_ = a.socket.Control(func(fd uintptr) {
		if v, err := unix.IoctlGetInt(int(fd), unix.SIOCOUTQ); err == nil {
			n = v
		}
	})
	return n
}

// Ended implements rpc.Settler. The peer has closed its side or reset the connection.
func (a *acks) Ended() bool {
	ended := false
	if a.socket == nil {
		return false
	}
	err := a.socket.Control(func(fd uintptr) {
		p := [1]unix.PollFd{{Fd: int32(fd), Events: unix.POLLRDHUP}}
		n, err := unix.Poll(p[:], 0)
		ended = err == nil && n > 0 && p[0].Revents != 0
	})
	return ended || err != nil // closed on our side
}
