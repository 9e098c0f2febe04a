//go:build rdmacore && linux && cgo

package verbs

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"fmt"
	"net/netip"
	"os"

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
	for s := bufio.NewScanner(f); s.Scan(); {
		if n, ok := queued(s.Bytes(), local, remote); ok {
			return n > 0
		}
	}
	return false
}

// queued is how many bytes wait to be read according to a line of that table, if it is that of a connection.
func queued(line []byte, local, remote netip.AddrPort) (n uint32, ok bool) {
	// number, local and remote address, state, bytes to be sent and to be read
	fields := bytes.Fields(line)
	if len(fields) < 5 || string(fields[1]) != tableAddr(local) || string(fields[2]) != tableAddr(remote) {
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
