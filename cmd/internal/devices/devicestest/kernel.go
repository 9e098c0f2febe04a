package devicestest

import (
	"fmt"
	"io/fs"
	"net/netip"
	"sync"
	"testing/fstest"

	"github.com/rstored/rstored/cmd/internal/devices"
	"github.com/rstored/rstored/rdma"
	"github.com/rstored/rstored/rdma/provider"
	"github.com/rstored/rstored/rdma/roce"
	"github.com/rstored/rstored/rdma/sysfs"
	"github.com/rstored/rstored/rdma/verbs"
)

// Kernel is a host whose kernel has RDMA devices, each with one address, that come and go. They are
// devices in user space with the methods of a device of the kernel.
type Kernel struct {
	mu        sync.Mutex
	available error
	devices   map[string]netip.Addr
	leaving   map[string]bool // being removed, without an event to the users
	open      map[*device]bool
	opens     int
}

// SetAvailable sets the error of a provider that cannot be used, or nil.
func (k *Kernel) SetAvailable(err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.available = err
}

// Opens returns how often a device was opened, or could not be.
func (k *Kernel) Opens() int {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.opens
}

// NewKernel makes a host without devices.
func NewKernel() *Kernel {
	return &Kernel{devices: make(map[string]netip.Addr), leaving: make(map[string]bool), open: make(map[*device]bool)}
}

// Add is "rdma link add".
func (k *Kernel) Add(name, addr string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.devices[name] = netip.MustParseAddr(addr)
	delete(k.leaving, name)
}

// Leave is "rdma link delete" of a soft device, which waits for its users.
func (k *Kernel) Leave(name string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.leaving[name] = true
}

// Remove is "rdma link delete".
func (k *Kernel) Remove(name string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.devices, name)
	for d := range k.open {
		if d.name == name {
			close(d.removed)
			delete(k.open, d)
		}
	}
}

// Open implements fs.FS: what sysfs has of the devices.
func (k *Kernel) Open(name string) (fs.File, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	sys := fstest.MapFS{}
	for n, a := range k.devices {
		a16 := a.As16()
		for file, text := range map[string]string{
			"node_type": "1: CA", "ports/1/state": "4: ACTIVE", "ports/1/link_layer": "Ethernet",
			"ports/1/gids/1": netip.AddrFrom16(a16).StringExpanded(),
		} {
			sys["class/infiniband/"+n+"/"+file] = &fstest.MapFile{Data: []byte(text + "\n")}
		}
		if !k.leaving[n] {
			sys["class/infiniband_verbs/uverbs_"+n+"/ibdev"] = &fstest.MapFile{Data: []byte(n + "\n")}
		}
	}
	sys["class/infiniband_verbs/abi_version"] = &fstest.MapFile{Data: []byte("6\n")}
	return sys.Open(name)
}

// Opener opens the devices of the host.
func (k *Kernel) Opener() *devices.Opener {
	h := &provider.Host{
		Sys: k, Source: roce.SourceFor, Interfaces: func() ([]sysfs.Interface, error) { return nil, nil },
		Available: func() error {
			k.mu.Lock()
			defer k.mu.Unlock()
			return k.available
		},
	}
	return &devices.Opener{Host: h, Open: func(c provider.Config) (rdma.Device, error) {
		if c.Kind == provider.Soft {
			return h.Open(c)
		}
		k.mu.Lock()
		defer k.mu.Unlock()
		k.opens++
		if a, ok := k.devices[c.Device]; !ok || a != c.Addr {
			return nil, fmt.Errorf("%s, %v: %w", c.Device, c.Addr, verbs.ErrNoDevice)
		}
		d, err := roce.Open(roce.Config{Addr: c.Addr, OnFailure: func(r roce.Record) {
			c.Verbs.OnFailure(verbs.Record{
				Outcome: r.Outcome, Device: c.Device, Transport: verbs.RoCEv2, Local: r.Local, Remote: r.Remote,
				Reason: uint16(r.Reason), Err: r.Err, Note: r.Note,
				Established: r.Established, LocalQPN: r.LocalQPN,
			})
		}})
		if err != nil {
			return nil, err
		}
		v := &device{Device: d, k: k, soft: d, name: c.Device, removed: make(chan struct{})}
		k.open[v] = true
		return v, nil
	}}
}

// device is a device of such a kernel.
type device struct {
	rdma.Device
	k       *Kernel
	soft    *roce.Device
	name    string
	removed chan struct{}
}

func (d *device) Name() string             { return d.name }
func (d *device) Removed() <-chan struct{} { return d.removed }

func (d *device) Info() verbs.Info {
	return verbs.Info{Name: d.name, Port: 1, Transport: verbs.RoCEv2, PathMTU: d.soft.MTU(), Firmware: "7.1"}
}

func (d *device) Stats() verbs.Stats {
	st := verbs.Stats{Completions: 1000, Wakeups: 7}
	st.Failed[rdma.RetryExcErr] = 3
	return st
}

// Limits implements rdma.Limited.
func (d *device) Limits() rdma.Limits {
	lim := rdma.LimitsOf(d.soft)
	lim.QPs, lim.RegionBytes = QPMax, 32<<20
	return lim
}

// QPMax is the number of queue pairs of a device.
const QPMax = 3

func (d *device) QPs() []verbs.QPInfo {
	var out []verbs.QPInfo
	for _, q := range d.soft.QPs() {
		out = append(out, verbs.QPInfo{QPN: q.QPN, State: q.State, Local: q.Local, Remote: q.Remote, SendDepth: q.SendDepth})
	}
	return out
}

func (d *device) Close() error {
	d.k.mu.Lock()
	delete(d.k.open, d)
	d.k.mu.Unlock()
	return d.soft.Close()
}

// OpenNow returns how many devices are open.
func (k *Kernel) OpenNow() int {
	k.mu.Lock()
	defer k.mu.Unlock()
	return len(k.open)
}
