//go:build rdmacore && linux && cgo

package verbs

import (
	"errors"
	"syscall"
	"testing"

	"github.com/rstored/rstored/rdma"
)

// TestRefusedDMABuf: three errors are distinguished: dma-bufs are not supported, the descriptor is
// no dma-buf, and there is no memory.
func TestRefusedDMABuf(t *testing.T) {
	for _, c := range []struct {
		err  error
		want error
	}{
		{syscall.EOPNOTSUPP, rdma.ErrUnsupported},      // the driver
		{syscall.ENOSYS, rdma.ErrUnsupported},          // libibverbs
		{syscall.EPROTONOSUPPORT, rdma.ErrUnsupported}, // kernels before 5.12
		{syscall.EINVAL, rdma.ErrInvalidWR},
		{syscall.EBADF, rdma.ErrInvalidWR},
		{syscall.ENOMEM, rdma.ErrNoResources},
		{nil, rdma.ErrNoResources},
	} {
		if err := (&dmabuf{3, 4096}).refused("dev0", 10, c.err); !errors.Is(err, c.want) ||
			c.err != nil && !errors.Is(err, c.err) {
			t.Errorf("%v: %v", c.err, err)
		}
	}
}
