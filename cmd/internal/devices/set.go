package devices

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/rstored/rstored/cmd/internal/capture"
	"github.com/rstored/rstored/cmd/internal/config"
	"github.com/rstored/rstored/cmd/internal/control"
	"github.com/rstored/rstored/cmd/internal/counters"
	"github.com/rstored/rstored/cmd/internal/postmortem"
	"github.com/rstored/rstored/cmd/internal/sockets"
	"github.com/rstored/rstored/cmd/internal/state"
	"github.com/rstored/rstored/cmd/internal/telemetry"
	"github.com/rstored/rstored/cmd/internal/upgrade"
	"github.com/rstored/rstored/rdma"
	"github.com/rstored/rstored/rdma/cm"
	"github.com/rstored/rstored/rdma/provider"
	"github.com/rstored/rstored/rdma/roce"
	"github.com/rstored/rstored/rdma/verbs"
)

// Opener chooses RDMA devices, and opens them. Tests have their own.
type Opener struct {
	Host *provider.Host
	Open func(provider.Config) (rdma.Device, error)
}

// System opens the devices of this host.
func System() *Opener {
	h := provider.System()
	return &Opener{Host: h, Open: h.Open}
}

// Config is what a Set works with.
type Config struct {
	*Opener
	Settings func() *config.Config
	State    *state.Store
	Sockets  *sockets.Set
	Failures *postmortem.Log
	Counters *counters.Transports
	Log      *telemetry.Log
	// From is the old process of an upgrade, or nil. The devices in user space that it has handed
	// over continue here, with their connections.
	From *upgrade.Predecessor
}

// Set is the set of open devices.
type Set struct {
	Config
	// OnRemoval is called when the kernel has taken a device away. It returns false to be called
	// again later. It is set before the first Acquire.
	OnRemoval func(*Device) (done bool)

	mu       sync.Mutex
	open     map[key]*Device
	starting bool // until Started
}

// key tells devices apart.
type key struct {
	kind provider.Kind
	addr netip.Addr
}

// Device is an open RDMA device, shared by the ports of its address. Either Soft or Kernel is nil.
type Device struct {
	rdma.Device
	Soft   *roce.Device
	Kernel provider.Kernel
	Choice provider.Choice

	set     *Set
	capture *capture.Slot // of Soft
	closed  chan struct{}
	shares  int // guarded by Set.mu
}

// New makes a set without devices.
func New(cfg Config) *Set {
	return &Set{Config: cfg, open: make(map[key]*Device), starting: true}
}

// Name is the name that users see: the address, or the kernel's name and the address.
func (v *Device) Name() string {
	if v.Kernel != nil {
		return v.Kernel.Name() + "/" + v.Choice.Addr.String()
	}
	return v.Choice.Addr.String()
}

// ledgerSize is room for 4096 connections of a device, in the state directory.
const ledgerSize = 4096 * cm.LedgerRecord

// Acquire opens a device, or takes a share of one that is open. Each share is released once.
func (s *Set) Acquire(c provider.Choice) (*Device, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	at := key{c.Kind, c.Addr}
	if v := s.open[at]; v != nil {
		v.shares++
		return v, nil
	}
	v := &Device{Choice: c, set: s, closed: make(chan struct{}), shares: 1}
	open := s.openSoft
	if c.Kind == provider.Verbs {
		open = s.openKernel
	}
	if err := open(v); err != nil {
		return nil, err
	}
	s.open[at] = v
	s.Log.Debug("RDMA device opened", zap.String("device", v.Name()), zap.String("provider", string(c.Kind)))
	return v, nil
}

func (s *Set) openKernel(v *Device) error {
	rd, err := s.Open(provider.Config{
		Choice: v.Choice, Loops: s.Settings().Shards, Logger: s.Log.Slog("verbs"),
		Verbs: verbs.Config{OnFailure: s.Failures.Kernel},
	})
	if err != nil {
		return err
	}
	v.Device, v.Kernel = rd, rd.(provider.Kernel)
	go v.watchRemoval()
	return nil
}

// openSoft opens a device in user space. Its loops begin when this process may serve.
func (s *Set) openSoft(v *Device) error {
	ledger, err := s.State.Memory("connections-"+v.Choice.Addr.String(), ledgerSize)
	if err != nil {
		return err
	}
	from, err := s.restored(v.Choice.Addr)
	if err != nil {
		return err
	}
	cfg := s.Settings()
	shards := cfg.Shards
	if from != nil {
		// The old process has handed over one socket for each of its shards. The number of a queue pair
		// decides its shard, so the number of shards stays.
		shards = from.Shards
	}
	v.capture = new(capture.Slot)
	rd, err := s.Open(provider.Config{Choice: v.Choice, Loops: shards, Logger: s.Log.Slog("roce"), Soft: roce.Config{
		From: from, Wrap: v.capture.Wrap, Ledger: ledger, OnFailure: s.Failures.Soft, PKeys: s.pkeyTable(),
		CNPDSCP: uint8(cfg.RDMACNPDSCP), LocalICRC: cfg.RDMALocalICRC, Sockets: s.Sockets, Starting: s.starting,
	}})
	if err != nil {
		return err
	}
	v.Device, v.Soft = rd, rd.(*roce.Device)
	if from != nil {
		s.From.WhenServing(v.Soft.Start)
	}
	return nil
}

// removalPoll is the interval at which watchRemoval looks for a device of the kernel in sysfs. The
// removal of a soft device (rxe, siw) waits for its users without an event to them.
const removalPoll = time.Second

// watchRemoval calls OnRemoval once the kernel takes the device away. It ends when the device is
// closed.
func (v *Device) watchRemoval() {
	t := time.NewTicker(removalPoll)
	defer t.Stop()
	events, gone := v.Kernel.Removed(), false
	for {
		select {
		case <-v.closed:
			return
		case <-events:
			events, gone = nil, true
		case <-t.C:
			gone = gone || !v.set.Host.Usable(v.Kernel.Name())
		}
		if gone && v.set.OnRemoval(v) {
			return
		}
	}
}

// Find returns an open device with a local address, or nil. It takes no share: when the last port of
// the device closes, the connections that the caller has made end.
func (s *Set) Find(local netip.Addr) rdma.Device {
	s.mu.Lock()
	defer s.mu.Unlock()
	for at, v := range s.open {
		if at.addr == local {
			return v.Device
		}
	}
	return nil
}

// Release gives a share back. The last one closes the device.
func (v *Device) Release() error {
	s := v.set
	s.mu.Lock()
	defer s.mu.Unlock()
	if v.shares--; v.shares > 0 {
		return nil
	}
	s.forget(v)
	close(v.closed)
	_, faults := v.counters()
	s.Counters.AddErrors(faults)
	return v.Close()
}

// Forget takes a device that was removed off the list, so that Acquire opens its successor. The
// shares of the device stay.
func (s *Set) Forget(v *Device) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.forget(v)
}

func (s *Set) forget(v *Device) {
	if at := (key{v.Choice.Kind, v.Choice.Addr}); s.open[at] == v {
		delete(s.open, at)
	}
}

// Started says that every port of the start is open: from now on devices refuse requests for other
// ports.
func (s *Set) Started() {
	s.mu.Lock()
	s.starting = false
	s.mu.Unlock()
	for _, v := range s.soft() {
		v.Soft.Started()
	}
}

// List returns the open devices, ordered by address.
func (s *Set) List() []*Device {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.SortedFunc(maps.Values(s.open), func(a, b *Device) int {
		return cmp.Or(a.Choice.Addr.Compare(b.Choice.Addr), cmp.Compare(a.Choice.Kind, b.Choice.Kind))
	})
}

// soft returns the devices of List in user space.
func (s *Set) soft() []*Device {
	return slices.DeleteFunc(s.List(), func(v *Device) bool { return v.Soft == nil })
}

// Names returns the names of the devices of List.
func (s *Set) Names() []string {
	out := []string{}
	for _, v := range s.List() {
		out = append(out, v.Name())
	}
	return out
}

// find returns the device with a name or an address, or the only device if name is empty.
func (s *Set) find(name string) (*Device, error) {
	var found []*Device
	for _, v := range s.List() {
		switch {
		case v.Name() == name:
			return v, nil
		case name == "", v.Choice.Addr.String() == name, v.Kernel != nil && v.Kernel.Name() == name:
			found = append(found, v)
		}
	}
	switch names := s.Names(); {
	case len(found) == 1:
		return found[0], nil
	case len(names) == 0:
		return nil, errors.New("no RDMA device is open")
	case len(found) == 0:
		return nil, fmt.Errorf("device %q: %w; there are %v", name, control.ErrNotFound, names)
	default:
		return nil, fmt.Errorf("there are %d devices; name one of %v", len(found), names)
	}
}
