package daemon

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"go.uber.org/zap"

	"github.com/rstored/rstored/cmd/internal/capture"
	"github.com/rstored/rstored/cmd/internal/control"
	"github.com/rstored/rstored/cmd/internal/counters"
	"github.com/rstored/rstored/cmd/internal/ops"
	"github.com/rstored/rstored/nfs/nfs3"
	"github.com/rstored/rstored/nfs/nfs4"
	"github.com/rstored/rstored/nfs/nlm"
	"github.com/rstored/rstored/nfs/portmap"
	"github.com/rstored/rstored/rdma"
	"github.com/rstored/rstored/rdma/cm"
	"github.com/rstored/rstored/rdma/provider"
	"github.com/rstored/rstored/rdma/roce"
	"github.com/rstored/rstored/rdma/verbs"
	"github.com/rstored/rstored/rpcrdma/rpc"
)

// opener chooses RDMA devices, and opens them.
type opener struct {
	host *provider.Host
	open func(provider.Config) (rdma.Device, error)
}

func systemOpener() *opener {
	h := provider.System()
	return &opener{host: h, open: h.Open}
}

// providers are those that the program has.
func (o *opener) providers() []control.Provider {
	list := []control.Provider{{Name: string(provider.Soft)}}
	switch err := o.host.Available(); {
	case errors.Is(err, verbs.ErrNotBuilt):
	case err != nil:
		list = append(list, control.Provider{Name: string(provider.Verbs), Error: err.Error()})
	default:
		list = append(list, control.Provider{Name: string(provider.Verbs)})
	}
	return list
}

// logProviders writes down why what the program has cannot be used.
func (d *Daemon) logProviders() {
	for _, p := range d.rdma.providers() {
		if p.Error != "" {
			d.log.Warn("RDMA devices of the kernel cannot be used, and RDMA is in software: are libibverbs and "+
				"librdmacm installed?", zap.String("provider", p.Name), zap.String("reason", p.Error))
		}
	}
}

// deviceAt is where a device is open.
type deviceAt struct {
	kind provider.Kind
	addr netip.Addr
}

// device is an open RDMA device, shared by the ports of its address. Of soft and kernel one is nil.
type device struct {
	rdma.Device
	soft   *roce.Device
	kernel provider.Kernel
	choice provider.Choice

	d       *Daemon
	addr    netip.Addr
	capture *capture.Slot // of soft
	gone    chan struct{} // closed with the device
	users   int
}

// name is what it goes by for users: its address, or the kernel's name and the address.
func (v *device) name() string {
	if v.kernel != nil {
		return v.kernel.Name() + "/" + v.addr.String()
	}
	return v.addr.String()
}

// ledgerSize is room for 4096 connections of a device, in the state directory.
const ledgerSize = 4096 * cm.LedgerRecord

// acquire opens a device, or takes a share of it.
func (d *Daemon) acquire(c provider.Choice) (*device, error) {
	d.devMu.Lock()
	defer d.devMu.Unlock()
	at := deviceAt{c.Kind, c.Addr}
	if dev := d.devices[at]; dev != nil {
		dev.users++
		return dev, nil
	}
	v := &device{choice: c, d: d, addr: c.Addr, gone: make(chan struct{}), users: 1}
	if c.Kind == provider.Verbs {
		rd, err := d.rdma.open(provider.Config{
			Choice: c, Loops: d.cfg.Load().Shards, Logger: d.log.Slog("verbs"),
			Verbs: verbs.Config{OnFailure: d.failures.Kernel},
		})
		if err != nil {
			return nil, err
		}
		v.Device, v.kernel = rd, rd.(provider.Kernel)
		go v.watchRemoval()
	} else if err := v.openSoft(); err != nil {
		return nil, err
	}
	d.devices[at] = v
	d.log.Debug("RDMA device opened", zap.String("device", v.name()), zap.String("provider", string(c.Kind)))
	return v, nil
}

// openSoft opens a device in user space.
func (v *device) openSoft() error {
	d := v.d
	ledger, err := d.state.Memory("connections-"+v.addr.String(), ledgerSize)
	if err != nil {
		return err
	}
	v.capture = new(capture.Slot)
	shards := d.cfg.Load().Shards
	var from *roce.Snapshot
	if d.from != nil {
		if from, err = d.from.device(v.addr); err != nil {
			return err
		}
		if from != nil {
			shards = from.Shards // the sockets are as many, and the numbers of queue pairs tell which
		}
	}
	rd, err := d.rdma.open(provider.Config{Choice: v.choice, Loops: shards, Logger: d.log.Slog("roce"), Soft: roce.Config{
		From: from, Wrap: v.capture.Wrap, Ledger: ledger, OnFailure: d.failures.Soft, PKeys: d.pkeys(),
		CNPDSCP: uint8(d.cfg.Load().RDMACNPDSCP), Sockets: d.sockets, Starting: !d.portsOpen,
	}})
	if err != nil {
		return err
	}
	v.Device, v.soft = rd, rd.(*roce.Device)
	if from != nil {
		d.from.whenServing(v.soft.Start)
	}
	return nil
}

// watchRemoval waits until the kernel takes the device away, or it is closed. Of a soft device the
// kernel says nothing.
func (v *device) watchRemoval() {
	t := time.NewTicker(v.d.delays.look)
	defer t.Stop()
	for {
		select {
		case <-v.gone:
			return
		case <-t.C:
			if v.d.rdma.host.Usable(v.kernel.Name()) {
				continue
			}
		case <-v.kernel.Removed():
		}
		v.d.deviceRemoved(v)
		return
	}
}

// release gives a share back; the last one closes the device.
func (v *device) release() error {
	d := v.d
	d.devMu.Lock()
	defer d.devMu.Unlock()
	if v.users--; v.users > 0 {
		return nil
	}
	d.forget(v)
	close(v.gone)
	_, faults := v.counters()
	d.counters.DropDevice(faults)
	return v.Close()
}

// forget takes a device off the list, from which nobody gets it any more. Call with devMu held.
func (d *Daemon) forget(v *device) {
	if at := (deviceAt{v.choice.Kind, v.addr}); d.devices[at] == v {
		delete(d.devices, at)
	}
}

// allOpen tells the devices that every port of the start is open. Call with mu held.
func (d *Daemon) allOpen() {
	d.portsOpen = true
	for _, v := range d.softDevices() {
		v.soft.Started()
	}
}

// deviceList is the devices open now, ordered by address.
func (d *Daemon) deviceList() []*device {
	d.devMu.Lock()
	defer d.devMu.Unlock()
	out := make([]*device, 0, len(d.devices))
	for _, v := range d.devices {
		out = append(out, v)
	}
	slices.SortFunc(out, func(a, b *device) int {
		return cmp.Or(a.addr.Compare(b.addr), cmp.Compare(a.choice.Kind, b.choice.Kind))
	})
	return out
}

// softDevices are those of deviceList in user space.
func (d *Daemon) softDevices() []*device {
	return slices.DeleteFunc(d.deviceList(), func(v *device) bool { return v.soft == nil })
}

func (d *Daemon) deviceNames() []string {
	list := d.deviceList()
	out := make([]string, len(list))
	for i, v := range list {
		out[i] = v.name()
	}
	return out
}

// deviceCounters reads the counters of every device, and adds to faults what
// of them are errors.
func (d *Daemon) deviceCounters(faults map[string]uint64) map[string]map[string]uint64 {
	out := make(map[string]map[string]uint64)
	for _, v := range d.deviceList() {
		all, wrong := v.counters()
		counters.Add(faults, wrong)
		out[v.name()] = all
	}
	return out
}

// counters are all of a device, and what of them are errors.
func (v *device) counters() (all, faults map[string]uint64) {
	all = make(map[string]uint64)
	if v.soft != nil {
		st := v.soft.Stats()
		st.Each(func(name string, n uint64) { all[name] = n })
		return all, counters.DeviceFaults(&st)
	}
	informant, ok := v.kernel.(provider.Informant)
	if !ok {
		return all, nil
	}
	st := informant.Stats()
	st.Each(func(name string, n uint64) {
		if name != "QPs" && name != "Regions" { // which devices of both kinds have
			name = ops.KernelCounter + name
		}
		all[name] = n
	})
	for s, n := range st.Failed {
		if n > 0 {
			all[ops.KernelFailed+rdma.Status(s).String()] = n
		}
	}
	return all, counters.KernelFaults(&st)
}

// Devices implements control.Backend.
func (d *Daemon) Devices() []control.Device {
	out := []control.Device{}
	for _, v := range d.deviceList() {
		c := control.Device{
			Name: v.name(), Address: v.addr.String(), Provider: string(v.choice.Kind),
			Sockets: len(v.Loops()),
		}
		if v.soft != nil {
			c.InterfaceMTU, c.PathMTU = v.soft.InterfaceMTU(), int(v.soft.MTU())
		} else {
			c.Kernel = v.kernel.Name()
			if informant, ok := v.kernel.(provider.Informant); ok {
				i := informant.Info()
				c.Port, c.Speaks, c.Firmware, c.PathMTU = i.Port, string(i.Transport), i.Firmware, int(i.PathMTU)
			}
		}
		out = append(out, c)
	}
	return out
}

// portmapPrograms answer for what is served at the moment of the query.
func (d *Daemon) portmapPrograms() []rpc.Program {
	return portmap.Programs(func() []portmap.Service {
		var out []portmap.Service
		for _, p := range d.Ports() {
			for _, a := range p.Addresses {
				at, err := netip.ParseAddrPort(a)
				if err != nil {
					continue
				}
				switch p.Transport {
				case control.TransportTCP:
					out = append(out, services(rpc.TransportTCP, at)...)
					out = append(out,
						portmap.Service{Program: nlm.Program, Version: nlm.Version, Transport: rpc.TransportTCP, Addr: at},
						portmap.Service{Program: nlm.StatusProgram, Version: nlm.StatusVersion, Transport: rpc.TransportTCP, Addr: at})
				case control.TransportRDMA:
					out = append(out, services(rpc.TransportRDMA, at)...)
				case control.TransportPortmap:
					for v := uint32(portmap.Version2); v <= portmap.Version4; v++ {
						out = append(out, portmap.Service{Program: portmap.Program, Version: v, Transport: rpc.TransportTCP, Addr: at})
					}
				}
			}
		}
		return slices.DeleteFunc(out, func(s portmap.Service) bool {
			return s.Program != portmap.Program &&
				!d.serves(s.Program, s.Version)
		})
	})
}

// serves reports whether a version of a program is among what is served.
func (d *Daemon) serves(prog, vers uint32) bool {
	return slices.ContainsFunc(d.served, func(p rpc.Program) bool { return p.Prog == prog && p.Vers == vers })
}

func services(t rpc.Transport, at netip.AddrPort) []portmap.Service {
	return []portmap.Service{
		{Program: nfs3.Program, Version: nfs3.Version, Transport: t, Addr: at},
		{Program: nfs4.Program, Version: nfs4.Version, Transport: t, Addr: at},
		{Program: nfs3.MountProgram, Version: nfs3.MountVersion, Transport: t, Addr: at},
	}
}

// findDevice is the device of that name, or address, or the only one there is.
func (d *Daemon) findDevice(name string) (*device, error) {
	list := d.deviceList()
	if len(list) == 0 {
		return nil, errors.New("no RDMA device is open")
	}
	var found []*device
	for _, v := range list {
		switch {
		case v.name() == name:
			return v, nil
		case name == "", v.addr.String() == name, v.kernel != nil && v.kernel.Name() == name:
			found = append(found, v)
		}
	}
	switch len(found) {
	case 0:
		return nil, fmt.Errorf("device %q: %w; there are %v", name, control.ErrNotFound, d.deviceNames())
	case 1:
		return found[0], nil
	}
	return nil, fmt.Errorf("there are %d devices; name one of %v", len(found), d.deviceNames())
}
