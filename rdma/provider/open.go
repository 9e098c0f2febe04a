package provider

import (
	"errors"
	"fmt"
	"log/slog"
	"syscall"

	"github.com/rstored/rstored/rdma"
	"github.com/rstored/rstored/rdma/roce"
	"github.com/rstored/rstored/rdma/sysfs"
	"github.com/rstored/rstored/rdma/verbs"
)

// Config describes a device to open.
type Config struct {
	Choice
	// Loops is the number of loops, a power of two with Soft; 0 means 1.
	Loops  int
	Logger *slog.Logger
	// BusyPoll makes the loops of a kernel device poll for completions instead of sleeping. Soft
	// ignores it.
	BusyPoll bool
	// Soft has the other settings of a device in user space. Its address, shards and logger are
	// overwritten by the fields above.
	Soft roce.Config
	// Verbs has the other settings of a kernel device. The fields above overwrite it likewise.
	Verbs verbs.Config
}

// Kernel is a device of the kernel: an rdma.Device with a name, which the kernel can remove.
type Kernel interface {
	rdma.Device
	// Name is the kernel's name of the device.
	Name() string
	// Removed is closed when the device is unusable: the kernel has removed it, or its address
	// has moved to another one. Close is still to be called.
	Removed() <-chan struct{}
}

// Informant is implemented by a Kernel that reports its state and counters. Its methods must not
// be called on a loop.
type Informant interface {
	Info() verbs.Info
	Stats() verbs.Stats
	QPs() []verbs.QPInfo
}

var _ Kernel = (*verbs.Device)(nil)

// Open opens a device as chosen: a *roce.Device, or a Kernel.
func (h *Host) Open(c Config) (rdma.Device, error) {
	if c.Kind == Verbs {
		v := c.Verbs
		v.Addr, v.Device, v.Loops, v.Logger = c.Addr, c.Device, c.Loops, c.Logger
		v.BusyPoll = v.BusyPoll || c.BusyPoll
		d, err := verbs.Open(v)
		if err != nil {
			return nil, err
		}
		return d, nil
	}
	s := c.Soft
	s.Addr, s.Shards, s.Logger = c.Addr, c.Loops, c.Logger
	d, err := roce.Open(s)
	if err != nil {
		return nil, h.explain(err)
	}
	return d, nil
}

// port is the UDP port of RoCEv2.
const port = 4791

// explain adds to the error of a taken port that the kernel has UDP port 4791, and what to do.
func (h *Host) explain(err error) error {
	rxe := h.RXE()
	if !errors.Is(err, syscall.EADDRINUSE) || rxe == "" {
		return err
	}
	remove := fmt.Sprintf("remove it ('rstorectl device remove %s' for each such device, then 'rmmod %s')", rxe,
		sysfs.RXEDriver)
	if rxe == sysfs.RXEDriver {
		remove = fmt.Sprintf("unload it ('rmmod %s')", rxe)
	}
	take := "take the provider verbs on the address of such a device"
	if h.Available() != nil {
		take = "install the package rstored-rdma and " + take
	}
	return fmt.Errorf("UDP port %d is the kernel's, on all addresses: its software RoCE has it (%s); %s, or %s: %w", port,
		rxe, take, remove, syscall.EADDRINUSE)
}
