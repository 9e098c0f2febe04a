package fusefs

import (
	"context"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/rstored/rstored/nfs/client"
)

// pool is the memory for the data of a mount: blocks of maxTransfer bytes, registered with the
// client once. The code that takes a block owns it until it calls put.
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

// get returns a block. It waits if there is none.
func (p *pool) get(ctx context.Context) ([]byte, error) {
	select {
	case b := <-p.free:
		return b, nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// put returns a block to the pool. b may be the first part of the block.
func (p *pool) put(b []byte) { p.free <- b[:maxTransfer] }

func (p *pool) close() { p.mem.Close() }

// readAheadKB is how far the kernel reads ahead for a mount, in KiB. With this value one request of
// the kernel has maxTransfer bytes.
const readAheadKB = maxTransfer >> 10

// setReadAhead raises the kernel's readahead for a mount, if this process has the right to.
// Otherwise the kernel asks for 128 KiB at a time.
func setReadAhead(dir string) {
	var st unix.Stat_t
	if unix.Stat(dir, &st) != nil {
		return
	}
	name := fmt.Sprintf("/sys/class/bdi/%d:%d/read_ahead_kb", unix.Major(st.Dev), unix.Minor(st.Dev))
	_ = os.WriteFile(name, []byte(fmt.Sprint(readAheadKB)), 0)
}
