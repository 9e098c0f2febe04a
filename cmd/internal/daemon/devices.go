package daemon

import (
	"fmt"
	"net/netip"
	"slices"

	"go.uber.org/zap"

	"github.com/rstored/rstored/cmd/internal/control"
	"github.com/rstored/rstored/nfs/nfs3"
	"github.com/rstored/rstored/nfs/nfs4"
	"github.com/rstored/rstored/nfs/nlm"
	"github.com/rstored/rstored/nfs/portmap"
	"github.com/rstored/rstored/rdma/cm"
	"github.com/rstored/rstored/rdma/roce"
	"github.com/rstored/rstored/rpcrdma/rpc"
)

// device is an open RDMA device, shared by the ports of its address.
type device struct {
	*roce.Device
	d     *Daemon
	addr  netip.Addr
	tap   *tap
	gone  chan struct{} // closed with the device
	users int
}

// ledgerSize is room for 4096 connections of a device, in the state directory.
const ledgerSize = 4096 * cm.LedgerRecord

// acquire opens the device of an address, or takes a share of it.
func (d *Daemon) acquire(addr netip.Addr) (*device, error) {
	d.devMu.Lock()
	defer d.devMu.Unlock()
	if dev := d.devices[addr]; dev != nil {
		dev.users++
		return dev, nil
	}
	ledger, err := d.state.Memory("connections-"+addr.String(), ledgerSize)
	if err != nil {
		return nil, err
	}
	t := new(tap)
	shards := d.cfg.Load().Shards
	var from *roce.Snapshot
	if d.from != nil {
		if from, err = d.from.device(addr); err != nil {
			return nil, err
		}
		if from != nil {
			shards = from.Shards // the sockets are as many, and the numbers of queue pairs tell which
		}
	}
	rd, err := roce.Open(roce.Config{
		Addr: addr, Shards: shards, From: from, Logger: d.log.Slog("roce"), Wrap: t.wrap, Ledger: ledger,
		Obituary: d.buried, PKeys: d.pkeys(), Sockets: d.sockets,
		Starting: !d.portsOpen,
	})
	if err != nil {
		return nil, err
	}
	if from != nil {
		d.from.later(rd.Start)
	}
	dev := &device{Device: rd, d: d, addr: addr, tap: t, gone: make(chan struct{}), users: 1}
	d.devices[addr] = dev
	d.log.Debug("RDMA device opened", zap.Stringer("addr", addr), zap.Int("path_mtu", int(rd.MTU())))
	return dev, nil
}

// release gives a share back; the last one closes the device.
func (v *device) release() error {
	v.d.devMu.Lock()
	defer v.d.devMu.Unlock()
	if v.users--; v.users > 0 {
		return nil
	}
	delete(v.d.devices, v.addr)
	close(v.gone)
	st := v.Stats()
	v.d.meters.dropDevice(&st)
	return v.Close()
}

// allOpen tells the devices that every port of the start is open. Call with mu held.
func (d *Daemon) allOpen() {
	d.portsOpen = true
	for _, v := range d.deviceList() {
		v.Started()
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
	slices.SortFunc(out, func(a, b *device) int { return a.addr.Compare(b.addr) })
	return out
}

func (d *Daemon) deviceNames() []string {
	list := d.deviceList()
	out := make([]string, len(list))
	for i, v := range list {
		out[i] = v.addr.String()
	}
	return out
}

// deviceCounters reads the packet counters of every device, and adds to faults what
// of them are errors.
func (d *Daemon) deviceCounters(faults map[string]uint64) map[string]map[string]uint64 {
	out := make(map[string]map[string]uint64)
	for _, v := range d.deviceList() {
		m := make(map[string]uint64)
		st := v.Stats()
		st.Each(func(name string, n uint64) { m[name] = n })
		addCounts(faults, deviceFaults(&st))
		out[v.addr.String()] = m
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
		return slices.DeleteFunc(out, func(s portmap.Service) bool { return s.Program != portmap.Program && !d.serves(s.Program, s.Version) })
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

// findDevice is the device of that address, or the only one there is.
func (d *Daemon) findDevice(name string) (*device, error) {
	list := d.deviceList()
	if name == "" {
		switch len(list) {
		case 0:
			return nil, fmt.Errorf("no RDMA device is open")
		case 1:
			return list[0], nil
		}
		return nil, fmt.Errorf("there are %d devices; name one of %v", len(list), d.deviceNames())
	}
	for _, v := range list {
		if v.addr.String() == name {
			return v, nil
		}
	}
	return nil, fmt.Errorf("device %q: %w; there are %v", name, control.ErrNotFound, d.deviceNames())
}
