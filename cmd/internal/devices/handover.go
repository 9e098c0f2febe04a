package devices

import (
	"net/netip"

	"github.com/rstored/rstored/cmd/internal/upgrade"
	"github.com/rstored/rstored/rdma/roce"
)

// An upgrade hands the devices in user space to the new process, with their connections. The
// connections on devices of the kernel end, because the kernel hands them to no other process.

// partDevice is the name of a device's part of the handover, before its address.
const partDevice = "device "

// Pause stops the connection managers of the devices in user space, or resumes them. Meanwhile no
// connection begins, and none ends because its peer asked for it.
func (s *Set) Pause(on bool) {
	for _, v := range s.soft() {
		v.Soft.PostponeCM(on)
	}
}

// StopLoops stops the loops of the devices in user space until release is called.
func (s *Set) StopLoops() (release func()) {
	var all []func()
	for _, v := range s.soft() {
		all = append(all, v.Soft.Pause())
	}
	return func() {
		for _, fn := range all {
			fn()
		}
	}
}

// Snapshot adds the part of each device in user space. The loops are stopped.
func (s *Set) Snapshot(parts *upgrade.Parts) {
	for _, v := range s.soft() {
		snapshot, err := v.Soft.Export()
		parts.AddValue(partDevice+v.Choice.Addr.String(), snapshot, nil, err)
	}
}

// Restores reports whether the old process has handed over a device of an address that is not open
// yet.
func (s *Set) Restores(addr netip.Addr) bool { return s.From.Has(partDevice + addr.String()) }

// restored takes the snapshot of the device that the old process had on an address; nil if it had
// none.
func (s *Set) restored(addr netip.Addr) (*roce.Snapshot, error) {
	p, err := s.From.Take(partDevice + addr.String())
	if p == nil {
		return nil, err
	}
	snapshot := new(roce.Snapshot)
	return snapshot, upgrade.Decode(p, snapshot)
}

// Ending says that another process gets the sockets of the devices next: connection requests are
// dropped from now on, so that the clients send them again to that process.
func (s *Set) Ending() {
	for _, v := range s.soft() {
		v.Soft.Ending()
	}
}
