package devices

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"

	"go.uber.org/zap"

	"github.com/rstored/rstored/cmd/internal/capture"
	"github.com/rstored/rstored/cmd/internal/control"
	"github.com/rstored/rstored/rdma/roce"
)

// Capture writes packets of a device in user space to w as a pcap file, until ctx ends, the device
// is closed, or it has written as many as spec asks for.
func (s *Set) Capture(ctx context.Context, spec control.CaptureSpec, w io.Writer) error {
	v, err := s.find(spec.Device)
	if err != nil {
		return err
	}
	if v.Soft == nil {
		return fmt.Errorf("the packets of %s, a device of the kernel, do not pass through rstored: 'tcpdump -i %s' "+
			"shows those of cards whose driver lets it, 'tcpdump -i INTERFACE' on its network interface those of rxe "+
			"and siw", v.Name(), v.Kernel.Name())
	}
	o := capture.Options{Peer: spec.Peer.Unmap(), QPN: spec.QPN, Packets: spec.Packets, Snap: spec.Snap}
	addr := v.Choice.Addr
	if spec.QPN != 0 {
		list := v.Soft.QPs()
		i := slices.IndexFunc(list, func(q roce.QPInfo) bool { return q.QPN == spec.QPN })
		if i < 0 {
			return fmt.Errorf("queue pair %#x of %s: %w", spec.QPN, addr, control.ErrNotFound)
		}
		o.Remote, o.RemoteQPN = list[i].Remote.Addr().Unmap(), list[i].RemoteQPN
	}
	missed, err := v.capture.Run(ctx, w, o, v.closed,
		func() { s.Log.Info("capture started", zap.Stringer("device", addr)) })
	if errors.Is(err, capture.ErrRunning) {
		return fmt.Errorf("a capture of %s is running; %w", addr, control.ErrConflict)
	}
	s.Log.Info("capture ended", zap.Stringer("device", addr), zap.Uint64("batches_missed", missed))
	return err
}
