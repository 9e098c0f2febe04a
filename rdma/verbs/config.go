package verbs

import (
	"errors"
	"log/slog"
	"net/netip"
)

// ErrNotBuilt is what Open returns in a program that was built without the provider.
var ErrNotBuilt = errors.New(
	"verbs: this program was built without rdma-core (build tag rdmacore): install the package rstored-rdma")

// Config says which device is opened.
type Config struct {
	// Addr is a local IP address of an interface with an RDMA device: what the device listens on
	// and connects from.
	Addr netip.Addr
	// Device is the kernel's name of the device, such as mlx5_0 or rxe0. With Addr it must be
	// the one that has the address; without, the first address of its interface is taken.
	Device string
	// Loops is the number of loops; 0 means 1.
	Loops int
	// Logger receives what an operator should know; nil for none.
	Logger *slog.Logger
	// NoSpin makes loops sleep at once when there is nothing to do. Otherwise a busy loop polls for
	// completions before it sleeps, for as long as a sleep costs: 50 to 200 µs. It polls for a
	// shorter time if that finds no completions.
	NoSpin bool
	// OnFailure, if set, gets the record of each connection that ended badly and of each refused
	// request. It is called on a loop, after the last event.
	OnFailure func(Record)
	// BusyPoll makes loops poll for completions all the time while they have queue pairs, as
	// perftest does. Each loop then takes a processor. BusyPoll overrides NoSpin.
	BusyPoll bool
}
