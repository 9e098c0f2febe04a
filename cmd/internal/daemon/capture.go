package daemon

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/rstored/rstored/cmd/internal/capture"
	"github.com/rstored/rstored/cmd/internal/control"
	"github.com/rstored/rstored/rdma/roce"
	"go.uber.org/zap"
)

// errKernelPackets is why there is no capture of a device of the kernel.
func errKernelPackets(v *device) error {
	return fmt.Errorf("the packets of %s, a device of the kernel, do not pass through rstored: 'tcpdump -i %s' "+
		"shows those of cards whose driver lets it, 'tcpdump -i INTERFACE' on its network interface those of rxe "+
		"and siw",
		v.name(), v.kernel.Name())
}

// Capture implements control.Backend.
func (d *Daemon) Capture(ctx context.Context, spec control.CaptureSpec, w io.Writer) error {
	dev, err := d.findDevice(spec.Device)
	if err != nil {
		return err
	}
	if dev.soft == nil {
		return errKernelPackets(dev)
	}
	o := capture.Options{Peer: spec.Peer.Unmap(), QPN: spec.QPN, Packets: spec.Packets, Snap: spec.Snap}
	if spec.QPN != 0 {
		list := dev.soft.QPs()
		i := slices.IndexFunc(list, func(q roce.QPInfo) bool { return q.QPN == spec.QPN })
		if i < 0 {
			return fmt.Errorf("queue pair %#x of %s: %w", spec.QPN, dev.addr, control.ErrNotFound)
		}
		o.Remote, o.RemoteQPN = list[i].Remote.Addr().Unmap(), list[i].RemoteQPN
	}
	missed, err := dev.capture.Run(ctx, w, o, dev.gone,
		func() { d.log.Info("capture started", zap.Stringer("device", dev.addr)) })
	if errors.Is(err, capture.ErrRunning) {
		return fmt.Errorf("a capture of %s is running; %w", dev.addr, control.ErrConflict)
	}
	d.log.Info("capture ended", zap.Stringer("device", dev.addr), zap.Uint64("batches_missed", missed))
	return err
}
