package daemon

import (
	"context"
	"io"

	"github.com/rstored/rstored/cmd/internal/control"
)

// Ports implements control.Backend.
func (d *Daemon) Ports() []control.Port { return d.ports.List() }

// AddPort implements control.Backend.
func (d *Daemon) AddPort(spec control.PortSpec) (p control.Port, err error) {
	err = d.whileServing(func() (err error) { p, err = d.ports.Add(spec); return err })
	return p, err
}

// RemovePort implements control.Backend.
func (d *Daemon) RemovePort(spec control.PortSpec) error {
	return d.whileServing(func() error { return d.ports.Remove(spec) })
}

// Devices implements control.Backend.
func (d *Daemon) Devices() []control.Device { return d.devices.Status() }

// QPs implements control.Backend.
func (d *Daemon) QPs() []control.QP { return d.devices.QPs() }

// PKeys implements control.Backend.
func (d *Daemon) PKeys() []control.PKey { return d.devices.PKeys() }

// AddPKey implements control.Backend.
func (d *Daemon) AddPKey(key string) error {
	return d.whileServing(func() error { return d.devices.AddPKey(key) })
}

// RemovePKey implements control.Backend.
func (d *Daemon) RemovePKey(key string) error {
	return d.whileServing(func() error { return d.devices.RemovePKey(key) })
}

// Capture implements control.Backend.
func (d *Daemon) Capture(ctx context.Context, spec control.CaptureSpec, w io.Writer) error {
	return d.devices.Capture(ctx, spec, w)
}

// whileServing makes a change, or returns why there can be none any more.
func (d *Daemon) whileServing(change func() error) error {
	if err := d.mayChange(); err != nil {
		return err
	}
	defer d.mu.Unlock()
	return change()
}
