package daemon

import (
	"net"
	"os"

	"github.com/rstored/rstored/cmd/internal/exports"
	"github.com/rstored/rstored/cmd/internal/upgrade"
	"github.com/rstored/rstored/rpcrdma/rpc"
)

// Names of parts; those with an address are followed by it.
const (
	partSockets = "sockets"
	partState   = "state directory"
	partControl = "control"
	partStore   = "store "
	partCallers = "callers"
	partReplies = "replies"
	partLocks   = "locks"
	partNLM     = "lock manager"
	partNFS4    = "nfs4"
)

// rest is what is handed over besides the ports.
type rest struct{ *Daemon }

// Freeze implements upgrade.Room: see Daemon.freeze.
func (rest) Freeze(upgrade.Stage) (thaw func() error, err error) { return nil, nil }

// Snapshot implements upgrade.Room. Call with mu held.
func (d rest) Snapshot(parts *upgrade.Parts) {
	names, files, err := d.sockets.Copies()
	var data []byte
	if err == nil {
		data, err = upgrade.Encode(names)
	}
	parts.Add(partSockets, data, files, err)
	lock, err := d.state.Lock()
	parts.AddFile(partState, lock, err)
	sock, err := d.listener.(*net.UnixListener).File()
	parts.AddFile(partControl, sock, err)
	for _, e := range d.exports.All() {
		if s, ok := movable(e); ok {
			data, files, err := s.Handover()
			parts.Add(partStore+e.Pseudo, data, files, err)
		}
	}
	data, err = d.rpc.Snapshot()
	parts.Add(partReplies, data, nil, err)
	data, err = d.locks.Snapshot()
	parts.Add(partLocks, data, nil, err)
	data, err = d.nlm.Snapshot()
	parts.Add(partNLM, data, nil, err)
	peers, numbers := d.callers()
	data, err = upgrade.Encode(peers)
	parts.Add(partCallers, data, nil, err)
	data, err = d.nfs4.Snapshot(func(c rpc.Caller) (uint64, bool) {
		n, ok := numbers[c]
		return n, ok
	})
	parts.Add(partNFS4, data, nil, err)
}

// restorable is a store that goes on in another process.
type restorable interface {
	Release() error
	Resume() error
	Settle() error
	Handover() (data []byte, files []*os.File, err error)
	Restore(data []byte, files []*os.File) error
}

// movable is the store of an export, if it can go on in another process.
func movable(e *exports.Export) (restorable, bool) {
	if !e.Open() {
		return nil, false
	}
	m, ok := e.Store().(restorable)
	return m, ok
}

// callers are those whom clients of connections can be called by: their peers, and their numbers,
// which are the places in the list of peers, from 1. Call with mu held.
func (d *Daemon) callers() (peers []rpc.Peer, numbers map[rpc.Caller]uint64) {
	numbers = make(map[rpc.Caller]uint64)
	for p, c := range d.ports.Callers() {
		peers = append(peers, p)
		numbers[c] = uint64(len(peers))
	}
	return peers, numbers
}
