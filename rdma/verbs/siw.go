//go:build rdmacore && linux && cgo

package verbs

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"fmt"
	"net/netip"
	"os"
	"unsafe"

	"github.com/rstored/rstored/rdma"
)

// siw of Linux sends the MPA reply to a caller before it puts the queue pair in charge of the socket. What the caller
// sends in between waits in the socket until more arrives, which it does not where the caller waits for an answer.

// lull is how long a peer that has connected to siw may say nothing before somebody looks whether it has.
const lull = 20 * rdma.Millisecond

// overlooked has the peer nudged if it has said something that the kernel does not see. Reading the table of sockets may take
// a while where there are many.
func (c *conn) overlooked() {
	if c.heard || c.phase != established || c.params.InitiatorDepth == 0 {
		return
	}
	l, local, remote := c.l, c.local, c.remote
	go func() {
		if unread(local, remote) {
			l.Submit(c.nudge)
		}
	}()
}

// nudge asks the peer for a READ of no bytes, which it answers whatever memory it has (RFC 5040 section 5.2), and
// whose completion nobody sees. The peer has sent something, and may be sent to (RFC 5044 section 7.1.2).
func (c *conn) nudge() {
	if !c.heard && c.phase == established && !c.q.dead {
		c.q.readNothing()
	}
}

// What siw sends of 32 bytes or fewer from memory of one element goes into the same piece as its header. Where the end of a
// page lies within, siw copies wrong bytes (siw_try_1seg of Linux 6.1), unless it sends them before the call that
// posts the request has come back.
const (
	siwShort = 32
	siwPage  = 4096 // pages may be larger, and none ends elsewhere
)

// cut is a request's list as siw is to have it: short data is cut in two where a page ends, that of SENDs and WRITEs here, which
// go as two elements, and that of READs at the peer, which has siw too: they go as two requests. It is valid until
// the next call.
func (l *loop) cut(w *rdma.SendWR) []rdma.SGE {
	if !l.dev.siw || w.Flags&rdma.Inline != 0 {
		return w.SGL
	}
	l.cuts = l.cuts[:0]
	full, addr := 0, w.RemoteAddr
	for _, e := range w.SGL {
		if len(e.Buf) == 0 {
			continue
		}
		full++
		if w.Op != rdma.OpRead {
			addr = uint64(uintptr(unsafe.Pointer(unsafe.SliceData(e.Buf))))
		}
		if left := siwPage - int(addr%siwPage); len(e.Buf) <= siwShort && left < len(e.Buf) {
			l.cuts = append(l.cuts, rdma.SGE{Buf: e.Buf[:left], LKey: e.LKey})
			e.Buf = e.Buf[left:]
			addr += uint64(left)
		}
		l.cuts = append(l.cuts, e)
		addr += uint64(len(e.Buf))
	}
	if len(l.cuts) == full || full > 1 && w.Op != rdma.OpRead {
		return w.SGL
	}
	return l.cuts
}

// unread reports whether the kernel's table of TCP connections has something that has arrived on one and
// that nobody has read.
func unread(local, remote netip.AddrPort) bool {
	name := "/proc/self/net/tcp6"
	if remote.Addr().Unmap().Is4() {
		name = "/proc/self/net/tcp"
	}
	f, err := os.Open(name)
	if err != nil {
		return false
	}
	defer f.Close()
	from, to := tableAddr(local), tableAddr(remote)
	for s := bufio.NewScanner(f); s.Scan(); {
		if n, ok := queued(s.Bytes(), from, to); ok {
			return n > 0
		}
	}
	return false
}

// queued is how many bytes wait to be read according to a line of that table, if it is that of a connection between two
// addresses as tableAddr has them.
func queued(line []byte, local, remote string) (n uint32, ok bool) {
	// number, local and remote address, state, bytes to be sent and to be read
	fields := bytes.Fields(line)
	if len(fields) < 5 || string(fields[1]) != local || string(fields[2]) != remote {
		return 0, false
	}
	_, err := fmt.Sscanf(string(fields[4]), "%08X:%08X", new(uint32), &n)
	return n, err == nil
}

// tableAddr is how that table has an address: words in the host's order, and a port.
func tableAddr(a netip.AddrPort) (out string) {
	for b := a.Addr().Unmap().AsSlice(); len(b) >= 4; b = b[4:] {
		out += fmt.Sprintf("%08X", binary.NativeEndian.Uint32(b))
	}
	return out + fmt.Sprintf(":%04X", a.Port())
}
