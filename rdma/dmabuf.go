package rdma

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// DMABuf is memory of another device, exported by its driver as a dma-buf, with the address space
// that stands for it. See DMABufRegisterer.
type DMABuf struct {
	FD     int // owned by the DMABuf
	Offset uint64
	// Names is address space for the memory. Touching it faults if it is not Mapped.
	Names []byte
	// Mapped: the processor can access the memory by Names. It has to synchronize with devices
	// that use the memory at the same time (DMA_BUF_IOCTL_SYNC).
	Mapped bool
}

// OpenDMABuf makes a DMABuf of n bytes of a dma-buf, from offset on. offset is a multiple of the
// page size. The caller owns fd and may close it. Close the DMABuf after all its registrations.
func OpenDMABuf(fd int, offset int64, n int, mapped bool) (*DMABuf, error) {
	if n <= 0 || offset < 0 || offset%int64(unix.Getpagesize()) != 0 {
		return nil, fmt.Errorf("rdma: invalid part of a dma-buf: %d bytes at %d", n, offset)
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

// Close unmaps the address space and closes the descriptor.
func (b *DMABuf) Close() error {
	if b.Names == nil {
		return ErrClosed
	}
	err := errors.Join(unix.Munmap(b.Names), unix.Close(b.FD))
	b.Names, b.FD = nil, -1
	return err
}
