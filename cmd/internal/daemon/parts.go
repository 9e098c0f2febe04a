package daemon

import (
	"context"
	"fmt"
	"net"
	"os"

	"github.com/rstored/rstored/cmd/internal/exports"
	"github.com/rstored/rstored/cmd/internal/handover"
	"github.com/rstored/rstored/cmd/internal/upgrade"
	"github.com/rstored/rstored/rpcrdma/rpc"
	"go.uber.org/zap"
)

// Names of parts; those with an address are followed by it.
const (
	partSockets = "sockets"
	partState   = "state directory"
	partControl = "control"
	partDevice  = "device "
	partRDMA    = "rdma "
	partTCP     = "tcp "
	partStore   = "store "
	partCallers = "callers"
	partReplies = "replies"
	partLocks   = "locks"
	partNLM     = "lock manager"
	partNFS4    = "nfs4"
)

// parts describes everything, while it stands still. Call with mu held.
func (d *Daemon) parts() (out []*handover.Part, err error) {
	add := func(name string, data []byte, files []*os.File, err error) error {
		if err != nil {
			for _, f := range files {
				_ = f.Close()
			}
			return fmt.Errorf("part %q of the handover: %w", name, err)
		}
		out = append(out, &handover.Part{Name: name, Version: upgrade.PartVersion, Data: data, Files: files})
		return nil
	}
	names, files, err := d.sockets.Copies()
	var data []byte
	if err == nil {
		data, err = upgrade.Encode(names)
	}
	if err := add(partSockets, data, files, err); err != nil {
		return out, err
	}
	lock, err := d.state.Lock()
	if err := add(partState, nil, []*os.File{lock}, err); err != nil {
		return out, err
	}
	sock, err := d.listener.(*net.UnixListener).File()
	if err := add(partControl, nil, []*os.File{sock}, err); err != nil {
		return out, err
	}
	for _, e := range d.exports.All() {
		if s, ok := movable(e); ok {
			data, files, err := s.Handover()
			if err := add(partStore+e.Pseudo, data, files, err); err != nil {
				return out, err
			}
		}
	}
	data, err = d.rpc.Snapshot()
	if err := add(partReplies, data, nil, err); err != nil {
		return out, err
	}
	data, err = d.locks.Snapshot()
	if err := add(partLocks, data, nil, err); err != nil {
		return out, err
	}
	data, err = d.nlm.Snapshot()
	if err := add(partNLM, data, nil, err); err != nil {
		return out, err
	}
	peers, numbers := d.callers()
	data, err = upgrade.Encode(peers)
	if err := add(partCallers, data, nil, err); err != nil {
		return out, err
	}
	data, err = d.nfs4.Snapshot(func(c rpc.Caller) (uint64, bool) {
		n, ok := numbers[c]
		return n, ok
	})
	if err := add(partNFS4, data, nil, err); err != nil {
		return out, err
	}
	for _, v := range d.softDevices() {
		s, err := v.soft.Export()
		if err == nil {
			data, err = upgrade.Encode(s)
		}
		if err := add(partDevice+v.addr.String(), data, nil, err); err != nil {
			return out, err
		}
	}
	for _, e := range d.ends() {
		switch {
		case e.onKernelDevice(): // its connections end
		case e.rdma != nil:
			data, files, err := e.rdma.Export()
			if err := add(partRDMA+e.addr.String(), data, files, err); err != nil {
				return out, err
			}
		case e.tcp != nil:
			data, files, err := e.tcp.Export()
			if err := add(partTCP+e.addr.String(), data, files, err); err != nil {
				return out, err
			}
		}
	}
	return out, nil
}

// restorable is a store that goes on in another process.
type restorable interface {
	Release() error
	Resume() error
	Settle() error
	Handover() (data []byte, files []*os.File, err error)
	Takeover(data []byte, files []*os.File) error
}

// movable is the store of an export, if it can go on in another process.
func movable(e *exports.Export) (restorable, bool) {
	if !e.Open() {
		return nil, false
	}
	m, ok := e.Store().(restorable)
	return m, ok
}

// onKernelDevice reports whether an endpoint's connections are the kernel's, which hands them to no
// other process.
func (e *endpoint) onKernelDevice() bool { return e.dev != nil && e.dev.kernel != nil }

// closeKernelPorts closes the endpoints on devices of the kernel, whose ports the new process can
// only have after this one, and returns how many clients of them have to connect again. Call with
// mu held.
func (d *Daemon) closeKernelPorts() (dropped int) {
	over, cancel := context.WithCancel(context.Background())
	cancel() // their calls have ended
	all := new(port)
	for _, e := range d.ends() {
		if !e.onKernelDevice() {
			continue
		}
		if e.rdma != nil {
			dropped += len(e.rdma.Conns())
		}
		all.ends = append(all.ends, e)
	}
	if err := all.stop(over); err != nil {
		d.log.Warn("closing the ports on devices of the kernel", zap.Error(err))
	}
	return dropped
}

// callers are those whom clients of connections can be called by: their peers, and their numbers,
// which are the places in the list of peers, from 1. Call with mu held.
func (d *Daemon) callers() (peers []rpc.Peer, numbers map[rpc.Caller]uint64) {
	numbers = make(map[rpc.Caller]uint64)
	for _, e := range d.ends() {
		var all map[rpc.Peer]rpc.Caller
		switch {
		case e.onKernelDevice():
		case e.rdma != nil:
			all = e.rdma.Callers()
		case e.tcp != nil:
			all = e.tcp.Callers()
		}
		for p, c := range all {
			peers = append(peers, p)
			numbers[c] = uint64(len(peers))
		}
	}
	return peers, numbers
}
