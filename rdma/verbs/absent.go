//go:build !rdmacore || !linux || !cgo

package verbs

import "github.com/rstored/rstored/rdma"

// Device is an RDMA device of the kernel. There is none in this program.
type Device struct{ rdma.Device }

// Available reports why there is no provider.
func Available() error { return ErrNotBuilt }

// Open returns ErrNotBuilt.
func Open(Config) (*Device, error) { return nil, ErrNotBuilt }

// Name is the kernel's name of the device.
func (*Device) Name() string { return "" }

// Removed is closed when the device can be used no more.
func (*Device) Removed() <-chan struct{} { return nil }

// Limits is what the device offers.
func (*Device) Limits() rdma.Limits { return rdma.Limits{} }

// Info is what the device is.
func (*Device) Info() Info { return Info{} }

// Stats counts what has happened since the device was opened.
func (*Device) Stats() Stats { return Stats{} }

// QPs lists the queue pairs.
func (*Device) QPs() []QPInfo { return nil }
