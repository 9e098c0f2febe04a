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
	"github.com/rstored/rstored/rdma/connstate"
)

// siw of Linux sends its MPA reply before the queue pair takes over the socket. Data that the peer
// sends in between stays in the socket until more arrives. A peer that waits for an answer sends no
// more, so both sides would wait for ever.

// siwSilence is how long a peer that has connected to siw may be silent before the socket is
// checked.
const siwSilence = 20 * rdma.Millisecond

// checkUnread makes the peer send something if the socket has data that the kernel has not read. A
// goroutine reads the table of sockets, because that may take a while.
func (c *conn) checkUnread() {
	if c.received || c.Phase != connstate.Established || c.Params.InitiatorDepth == 0 {
		return
	}
	l, local, remote := c.l, c.LocalAddr, c.RemoteAddr
	go func() {
		if unread(local, remote) {
			l.Submit(c.nudge)
		}
	}()
}

// nudge sends a READ of no bytes, which the peer answers without memory (RFC 5040 section 5.2). We
// may send, because the peer has sent its first message (RFC 5044 section 7.1.2).
func (c *conn) nudge() {
	if !c.received && c.Phase == connstate.Established && !c.q.dead {
		c.q.readNothing()
	}
}

// siw copies up to 32 bytes from one element behind the header. It copies wrong bytes if the
// element crosses the end of a page (siw_try_1seg of Linux 6.1), unless it sends within the call
// that posts the request.
const (
	siwShort = 32
	siwPage  = 4096 // pages may be larger, and none ends elsewhere
)

// cut returns the list of a request as siw can send it: short elements are cut in two where a page
// ends. For a SEND or WRITE these are our pages, and the parts are two elements. For a READ these
// are pages of the peer, which uses siw too, and the parts are two requests. The list is valid
// until the next call.
//
//	24 bytes at offset 4090 of a page    6 bytes and 18 bytes
//	64 bytes at offset 4090              one element: not copied behind the header
func (l *loop) cut(w *rdma.SendWR) []rdma.SGE {
	if !l.dev.quirks.siw || w.Flags&rdma.Inline != 0 {
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

// unread reports whether a TCP connection has received data that nobody has read, according to the
// kernel's table of connections.
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

// queued is the number of unread bytes in a line of that table. It reports false if the line is
// about other addresses, which are in the form of tableAddr.
func queued(line []byte, local, remote string) (n uint32, ok bool) {
	// number, local and remote address, state, bytes to be sent and to be read
	fields := bytes.Fields(line)
	if len(fields) < 5 || string(fields[1]) != local || string(fields[2]) != remote {
		return 0, false
	}
	_, err := fmt.Sscanf(string(fields[4]), "%08X:%08X", new(uint32), &n)
	return n, err == nil
}

// tableAddr is an address in the form of that table: words in the host's order, and a port.
func tableAddr(a netip.AddrPort) (out string) {
	for b := a.Addr().Unmap().AsSlice(); len(b) >= 4; b = b[4:] {
		out += fmt.Sprintf("%08X", binary.NativeEndian.Uint32(b))
	}
	return out + fmt.Sprintf(":%04X", a.Port())
}
