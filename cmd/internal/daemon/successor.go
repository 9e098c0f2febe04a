package daemon

import (
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"os"

	"go.uber.org/zap"

	"github.com/rstored/rstored/cmd/internal/cli"
	"github.com/rstored/rstored/cmd/internal/config"
	"github.com/rstored/rstored/cmd/internal/handover"
	"github.com/rstored/rstored/cmd/internal/sockets"
	"github.com/rstored/rstored/rdma/roce"
	"github.com/rstored/rstored/rpcrdma"
	"github.com/rstored/rstored/rpcrdma/rpc"
	"github.com/rstored/rstored/rpcrdma/tcp"
)

// predecessor is what this process received from the process that it replaces. See Daemon.upgrade.
type predecessor struct {
	conn  *handover.Conn
	parts map[string]*handover.Part
	got   restored
	// start are what begins to serve once the old process has said that it does not any more.
	start []func()
	// broken is why a store could not take over what was handed to it.
	restoreErr error
}

// partsMax bounds the parts of a handover.
const partsMax = 1 << 16

// prepare tells the old process that this one is ready, and receives what that hands over.
func prepare(conn *handover.Conn, cfg *config.Config) (*predecessor, error) {
	p, err := conn.Receive()
	if err != nil {
		return nil, err
	}
	var say hello
	if p.Name != wordHello || p.Version != wordVersion {
		return nil, fmt.Errorf("the handover begins with %q, version %d", p.Name, p.Version)
	}
	if err := decode(p, &say); err != nil {
		return nil, err
	}
	if say.StateDir != cfg.StateDir {
		return nil, fmt.Errorf("state_dir was %s and is %s: that needs a restart", say.StateDir, cfg.StateDir)
	}
	if say.Control != cfg.Control {
		return nil, fmt.Errorf("control was %s and is %s: that needs a restart", say.Control, cfg.Control)
	}
	if err := checkExports(cfg); err != nil {
		return nil, err
	}
	t := &predecessor{conn: conn, parts: make(map[string]*handover.Part), got: restored{Version: cli.ReadBuild().String()}}
	if err := t.say(wordPrepared); err != nil {
		return nil, err
	}
	for {
		p, err := conn.Receive()
		if err != nil {
			return nil, fmt.Errorf("the old process has given up: %w", err)
		}
		if p.Name == wordRestore {
			return t, nil
		}
		if t.parts[p.Name] != nil || len(t.parts) == partsMax {
			return nil, fmt.Errorf("part %q of the handover comes twice, or there are too many", p.Name)
		}
		t.parts[p.Name] = p
	}
}

// say sends a word, with what was taken over.
func (t *predecessor) say(word string) error {
	data, err := encode(t.got)
	if err != nil {
		return err
	}
	return t.conn.Send(&handover.Part{Name: word, Version: wordVersion, Data: data})
}

// take is the part of a name, which is the caller's from now on; nil if there is none. A nil predecessor has no parts.
func (t *predecessor) take(name string) (*handover.Part, error) {
	if t == nil {
		return nil, nil
	}
	p := t.parts[name]
	delete(t.parts, name)
	if p != nil && (p.Version < 1 || p.Version > partVersion) {
		return nil, fmt.Errorf("part %q of the handover is of version %d, and this program knows %d: it can only be started anew", name, p.Version, partVersion)
	}
	return p, nil
}

// need is take for what there must be, with so many files.
func (t *predecessor) need(name string, files int) (*handover.Part, error) {
	p, err := t.take(name)
	switch {
	case err != nil:
		return nil, err
	case p == nil:
		return nil, fmt.Errorf("the handover has no part %q", name)
	case files >= 0 && len(p.Files) != files:
		return nil, fmt.Errorf("part %q of the handover has %d files", name, len(p.Files))
	}
	return p, nil
}

// whenServing has fn run when this process may serve; at once if there is none before it.
func (t *predecessor) whenServing(fn func()) {
	if t == nil {
		fn()
		return
	}
	t.start = append(t.start, fn)
}

// commit waits for the old process to say that it does not serve any more, and begins.
func (t *predecessor) commit() error {
	if err := t.say(wordRestored); err != nil {
		return err
	}
	p, err := t.conn.Receive()
	if err != nil {
		return fmt.Errorf("the old process goes on: %w", err)
	}
	if p.Name != wordGo {
		return fmt.Errorf("the old process says %q", p.Name)
	}
	for _, fn := range t.start {
		fn()
	}
	return nil
}

// done tells the old process that this one serves.
func (t *predecessor) done(d *Daemon) {
	// If that process is gone, there is nobody to tell.
	if err := t.say(wordServing); err != nil {
		d.log.Warn("the old process cannot be told", zap.Error(err))
	}
	_ = t.conn.Close()
	for _, p := range t.parts {
		d.log.Info("a part of the handover is of no use here", zap.String("part", p.Name))
		p.Close()
	}
}

// fail tells the old process why this one does not take over.
func fail(conn *handover.Conn, why error) {
	_ = conn.Send(&handover.Part{Name: wordError, Version: wordVersion, Data: []byte(why.Error())}) // it may be gone
	_ = conn.Close()
}

// sockets are the sockets that the old process had.
func (t *predecessor) sockets(store sockets.Store, d *Daemon) (*sockets.Set, error) {
	p, err := t.need(partSockets, -1)
	if err != nil {
		return nil, err
	}
	var names []string
	if err := decode(p, &names); err != nil {
		return nil, err
	}
	return sockets.FromFiles(store, d.log.Slog("sockets"), p.Files, names), nil
}

// hasDevice reports whether there was a device in user space on an address, whose connections wait to go on.
func (t *predecessor) hasDevice(addr netip.Addr) bool {
	return t != nil && t.parts[partDevice+addr.String()] != nil
}

// device is what the device of an address was; nil if there was none.
func (t *predecessor) device(addr netip.Addr) (*roce.Snapshot, error) {
	p, err := t.take(partDevice + addr.String())
	if p == nil {
		return nil, err
	}
	s := new(roce.Snapshot)
	return s, decode(p, s)
}

// rdma has a listener go on with the connections of its port.
func (t *predecessor) rdma(l *rpcrdma.Listener, at netip.AddrPort) error {
	p, err := t.take(partRDMA + at.String())
	if p == nil {
		return err
	}
	n, err := l.Import(p.Data)
	t.got.RDMA += n
	return err
}

// tcp has a listener go on with the connections of its port, when it may.
func (t *predecessor) tcp(l *tcp.Listener, at netip.AddrPort) error {
	p, err := t.take(partTCP + at.String())
	if p == nil {
		return err
	}
	n, err := l.Import(p.Data, p.Files)
	t.got.TCP += n
	return err
}

// lock is the lock of the state directory, which the old process holds too.
func (t *predecessor) lock() (*os.File, error) {
	p, err := t.need(partState, 1)
	if err != nil {
		return nil, err
	}
	return p.Files[0], nil
}

// control is the control socket.
func (t *predecessor) control() (net.Listener, error) {
	p, err := t.need(partControl, 1)
	if err != nil {
		return nil, err
	}
	defer p.Close()
	l, err := net.FileListener(p.Files[0])
	if err != nil {
		return nil, fmt.Errorf("the control socket: %w", err)
	}
	u, ok := l.(*net.UnixListener)
	if !ok {
		return nil, errors.Join(errors.New("the control socket is none"), l.Close())
	}
	u.SetUnlinkOnClose(true)
	return u, nil
}

// store has a store that was just opened go on with what is open.
func (t *predecessor) store(pseudo string, fs restorable) error {
	p, err := t.take(partStore + pseudo)
	if p != nil {
		if err = fs.Takeover(p.Data, p.Files); err != nil {
			t.restoreErr = errors.Join(t.restoreErr, fmt.Errorf("export %s: %w", pseudo, err))
		}
		p.Close()
	}
	return err
}

// settleStore is what ends the handover of a store.
func settleStore(d *Daemon, pseudo string, fs restorable) func() {
	return func() {
		if err := fs.Settle(); err != nil {
			d.log.Error("a store does not do all that it did", zap.String("export", pseudo), zap.Error(err))
		}
	}
}

// state has the daemon go on with what clients know of. Its exports and ports are there.
func (t *predecessor) state(d *Daemon) error {
	var peers []rpc.Peer
	p, err := t.need(partCallers, 0)
	if err == nil {
		err = decode(p, &peers)
	}
	if err != nil {
		return err
	}
	now := make(map[rpc.Peer]rpc.Caller)
	for _, e := range d.ends() {
		switch {
		case e.rdma != nil:
			maps.Copy(now, e.rdma.Callers())
		case e.tcp != nil:
			maps.Copy(now, e.tcp.Callers())
		}
	}
	for _, r := range []struct {
		part    string
		restore func(data []byte) error
	}{
		{partReplies, d.rpc.Restore},
		{partLocks, func(data []byte) error { return d.locks.Restore(data, d.nlm.Waits) }},
		{partNLM, d.nlm.Restore},
		{partNFS4, func(data []byte) error {
			return d.nfs4.Restore(data, func(id uint64) rpc.Caller {
				if id == 0 || id > uint64(len(peers)) || now[peers[id-1]] == nil {
					return nil // a nil map entry is no nil Caller
				}
				return now[peers[id-1]]
			})
		}},
	} {
		p, err := t.need(r.part, 0)
		if err == nil {
			err = r.restore(p.Data)
		}
		if err != nil {
			return err
		}
	}
	return t.checkMissingExports(d)
}
