package fusefs

import (
	"context"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/rstored/rstored/nfs/client"
)

// pool is the memory of the data of a mount: blocks of maxTransfer bytes, registered with the
// client once. A block is owned by who took it until it calls put.
type pool struct {
	mem  *client.Memory
	free chan []byte
	size int // blocks in all
}

// poolLeast is the least number of blocks. Fewer could not keep the network busy.
const poolLeast = 8

func newPool(c *client.Client, bytes int) (*pool, error) {
	n := max(bytes/maxTransfer, poolLeast)
	mem, err := c.Register(make([]byte, n*maxTransfer))
	if err != nil {
		return nil, err
	}
	p := &pool{mem: mem, free: make(chan []byte, n), size: n}
	for i := range n {
		p.free <- mem.Bytes()[i*maxTransfer : (i+1)*maxTransfer : (i+1)*maxTransfer]
	}
	return p, nil
}

// tryGet returns a block, or nil if fewer than spare blocks would be left.
func (p *pool) tryGet(spare int) []byte {
	if len(p.free) <= spare {
		return nil
	}
	select {
	case b := <-p.free:
		return b
	default:
		return nil
	}
}

// get returns a block, and waits for one.
func (p *pool) get(ctx context.Context) ([]byte, error) {
	select {
	case b := <-p.free:
		return b, nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// put gives a block back. b may be a part of it that begins where it begins.
func (p *pool) put(b []byte) { p.free <- b[:maxTransfer] }

func (p *pool) close() { p.mem.Close() }

// readAheadKB is the reading ahead of the kernel for a mount, in KiB: so much that one request of
// the kernel is one of maxTransfer.
const readAheadKB = maxTransfer >> 10

// setReadAhead raises the kernel's reading ahead for a mount, if this process may. Without it the
// kernel asks for 128 KiB at a time.
func setReadAhead(dir string) {
	var st unix.Stat_t
	if unix.Stat(dir, &st) != nil {
		return
	}
	name := fmt.Sprintf("/sys/class/bdi/%d:%d/read_ahead_kb", unix.Major(st.Dev), unix.Minor(st.Dev))
	_ = os.WriteFile(name, []byte(fmt.Sprint(readAheadKB)), 0)
}
