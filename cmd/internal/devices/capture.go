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

// Capture writes packets of devices in user space to w as a pcap file, until ctx ends, the devices
// are closed, or it has written as many as spec asks for. Without a name in spec it captures those
// of all devices in user space, or with a queue pair of the device that has it.
func (s *Set) Capture(ctx context.Context, spec control.CaptureSpec, w io.Writer) error {
	list, err := s.captured(spec)
	if err != nil {
		return err
	}
	o := capture.Options{Peer: spec.Peer.Unmap(), QPN: spec.QPN, Packets: spec.Packets, Snap: spec.Snap}
	if spec.QPN != 0 {
		q := findQP(list[0], spec.QPN)
		if q == nil { // it has just ended
			return fmt.Errorf("queue pair %#x: %w", spec.QPN, control.ErrNotFound)
		}
		o.Remote, o.RemoteQPN = q.Remote.Addr().Unmap(), q.RemoteQPN
	}
	var from []capture.Device
	var names []string
	for _, v := range list {
		from = append(from, capture.Device{Slot: v.capture, Closed: v.closed})
		names = append(names, v.Choice.Addr.String())
	}
	missed, err := capture.Run(ctx, w, o, from, func() { s.Log.Info("capture started", zap.Strings("devices", names)) })
	if errors.Is(err, capture.ErrRunning) {
		return fmt.Errorf("a capture of %v is running; %w", names, control.ErrConflict)
	}
	s.Log.Info("capture ended", zap.Strings("devices", names), zap.Uint64("batches_missed", missed))
	return err
}

// captured returns the devices of a capture: one if the capture is of a queue pair, at least one
// otherwise.
func (s *Set) captured(spec control.CaptureSpec) ([]*Device, error) {
	list := s.soft()
	if spec.Device != "" || len(list) == 0 {
		v, err := s.find(spec.Device)
		if err != nil {
			return nil, err
		}
		if v.Soft == nil {
			return nil, fmt.Errorf("the packets of %s, a device of the kernel, do not pass through rstored: 'tcpdump -i %s' "+
				"shows those of cards whose driver lets it, 'tcpdump -i INTERFACE' on its network interface those of rxe "+
				"and siw", v.Name(), v.Kernel.Name())
		}
		list = []*Device{v}
	}
	if spec.QPN == 0 {
		return list, nil
	}
	var with []*Device
	for _, v := range list {
		if findQP(v, spec.QPN) != nil {
			with = append(with, v)
		}
	}
	switch len(with) {
	case 0:
		return nil, fmt.Errorf("queue pair %#x: %w", spec.QPN, control.ErrNotFound)
	case 1:
		return with, nil
	}
	return nil, fmt.Errorf("%d devices have a queue pair %#x; name one of %v", len(with), spec.QPN, s.Names())
}

// findQP is a queue pair of a device in user space, or nil.
func findQP(v *Device, qpn uint32) *roce.QPInfo {
	list := v.Soft.QPs()
	if i := slices.IndexFunc(list, func(q roce.QPInfo) bool { return q.QPN == qpn }); i >= 0 {
		return &list[i]
	}
	return nil
}
