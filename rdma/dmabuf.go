package rdma

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// DMABuf is memory of another device that its driver gives away as a dma-buf, and the address space that
// stands for it, see DMABufRegisterer.
type DMABuf struct {
	FD     int // the DMABuf's own
	Offset uint64
	// Names is address space for the memory. If it is not Mapped it is no more than that: touching it is a fault.
	Names []byte
	// Mapped: the processor reaches the memory by Names. Who does while devices do too tells the driver
	// (DMA_BUF_IOCTL_SYNC).
	Mapped bool
}

// OpenDMABuf takes n bytes of a dma-buf, from offset on, which is a multiple of the size of a page. The descriptor stays
// the caller's, who may close it. Close the DMABuf when nothing is registered of it any more.
func OpenDMABuf(fd int, offset int64, n int, mapped bool) (*DMABuf, error) {
	if n <= 0 || offset < 0 || offset%int64(unix.Getpagesize()) != 0 {
		return nil, fmt.Errorf("rdma: a dma-buf of %d bytes from %d on", n, offset)
	}
	own, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("rdma: the descriptor of a dma-buf: %w", err)
	}
	b := &DMABuf{FD: own, Offset: uint64(offset), Mapped: mapped}
	if mapped {
		b.Names, err = unix.Mmap(own, offset, n, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	} else {
		b.Names, err = unix.Mmap(-1, 0, n, unix.PROT_NONE, unix.MAP_PRIVATE|unix.MAP_ANON|unix.MAP_NORESERVE)
	}
	if err != nil {
		_ = unix.Close(own)
		return nil, fmt.Errorf("rdma: addresses for %d bytes of a dma-buf: %w", n, err)
	}
	return b, nil
}

// Close gives addresses and descriptor back.
func (b *DMABuf) Close() error {
	if b.Names == nil {
		return ErrClosed
	}
	err := errors.Join(unix.Munmap(b.Names), unix.Close(b.FD))
	b.Names, b.FD = nil, -1
	return err
}
