//go:build rdmacore && linux && cgo

package verbs

// #include "shim.h"
import "C"

import (
	"errors"
	"fmt"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/rstored/rstored/rdma"
)

// dmabuf is the memory of a region that belongs to another device.
type dmabuf struct {
	fd     int // a copy, which the region closes
	offset uint64
}

var _ rdma.DMABufRegisterer = (*pd)(nil)

// RegisterDMABuf implements rdma.DMABufRegisterer.
func (p *pd) RegisterDMABuf(fd int, offset uint64, names []byte, access rdma.Access) (rdma.MR, error) {
	if access&rdma.WindowBind != 0 {
		// The kernel refuses the flag.
		return nil, fmt.Errorf("%w: memory windows of a dma-buf", rdma.ErrUnsupported)
	}
	own, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("%w: %d is not a descriptor of a dma-buf: %w", rdma.ErrInvalidWR, fd, err)
	}
	m := &mr{pd: p, dma: &dmabuf{own, offset}}
	if err := p.add(m, names, access); err != nil {
		_ = unix.Close(own)
		return nil, err
	}
	return m, nil
}

// window registers a part of the memory as another region. mu is held.
func (m *mr) window(buf []byte, access rdma.Access) (rdma.MR, error) {
	return m.pd.RegisterDMABuf(m.dma.fd, m.dma.offset+uint64(rdma.Offset(buf, m.buf)), buf, access)
}

// open registers the memory. Peers and work requests name it by the addresses of names.
func (b *dmabuf) open(p *pd, names []byte, access rdma.Access) (*C.struct_ibv_mr, error) {
	at := C.uint64_t(uintptr(unsafe.Pointer(unsafe.SliceData(names))))
	x, err := C.rs_reg_dmabuf_mr(p.pd, C.uint64_t(b.offset), C.uint64_t(len(names)), at, C.int(b.fd), p.d.access(access))
	if x != nil {
		return x, nil
	}
	return nil, b.refused(p.d.name, len(names), err)
}

// refused is why a device does not register n bytes.
func (b *dmabuf) refused(name string, n int, err error) error {
	switch {
	// EOPNOTSUPP is of libibverbs or the driver, ENOSYS of an old libibverbs, EPROTONOSUPPORT of an
	// old kernel.
	case errors.Is(err, syscall.EOPNOTSUPP), errors.Is(err, syscall.ENOSYS), errors.Is(err, syscall.EPROTONOSUPPORT):
		return fmt.Errorf("%w: %s, by its driver, libibverbs or the kernel, registers no dma-bufs: %w", rdma.ErrUnsupported,
			name, err)
	case errors.Is(err, syscall.EBADF), errors.Is(err, syscall.EINVAL):
		return fmt.Errorf("%w: %s does not register %d bytes at %d of descriptor %d, which may be no dma-buf: %w",
			rdma.ErrInvalidWR, name, n, b.offset, b.fd, err)
	}
	return fmt.Errorf("%w: %s does not register %d bytes of a dma-buf: %w", rdma.ErrNoResources, name, n, cause(err))
}

// close closes the descriptor. b is nil for memory of the host.
func (b *dmabuf) close() {
	if b != nil {
		_ = unix.Close(b.fd)
	}
}
