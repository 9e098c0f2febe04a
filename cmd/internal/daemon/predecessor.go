package daemon

import (
	"errors"
	"fmt"
	"net"
	"os"

	"go.uber.org/zap"

	"github.com/rstored/rstored/cmd/internal/cli"
	"github.com/rstored/rstored/cmd/internal/config"
	"github.com/rstored/rstored/cmd/internal/handover"
	"github.com/rstored/rstored/cmd/internal/sockets"
	"github.com/rstored/rstored/cmd/internal/upgrade"
	"github.com/rstored/rstored/rpcrdma/rpc"
)

// predecessor is the process that this one takes the place of: what the rooms take over from it. A
// nil predecessor has handed nothing over.
type predecessor struct {
	*upgrade.Predecessor
	// restoreErr is why a store could not take over what was handed to it.
	restoreErr error
}

// prepare tells the old process that this one is ready, and receives what that hands over.
func prepare(conn *handover.Conn, cfg *config.Config) (*predecessor, error) {
	p, err := upgrade.Receive(conn, cli.ReadBuild().String(), func(old upgrade.Hello) error {
		if old.StateDir != cfg.StateDir {
			return fmt.Errorf("state_dir was %s and is %s: that needs a restart", old.StateDir, cfg.StateDir)
		}
		if old.Control != cfg.Control {
			return fmt.Errorf("control was %s and is %s: that needs a restart", old.Control, cfg.Control)
		}
		return checkExports(cfg)
	})
	if err != nil {
		return nil, err
	}
	return &predecessor{Predecessor: p}, nil
}

// handover is what the rooms take over. It is nil if there is no process before this one.
func (t *predecessor) handover() *upgrade.Predecessor {
	if t == nil {
		return nil
	}
	return t.Predecessor
}

// done tells the old process that this one serves.
func (t *predecessor) done(d *Daemon) {
	for _, name := range t.Left() {
		d.log.Info("a part of the handover is of no use here", zap.String("part", name))
	}
	if err := t.Done(); err != nil {
		d.log.Warn("the old process cannot be told", zap.Error(err))
	}
}

// sockets are the sockets that the old process had.
func (t *predecessor) sockets(store sockets.Store, d *Daemon) (*sockets.Set, error) {
	p, err := t.Need(partSockets, -1)
	if err != nil {
		return nil, err
	}
	var names []string
	if err := upgrade.Decode(p, &names); err != nil {
		return nil, err
	}
	return sockets.FromFiles(store, d.log.Library("sockets"), p.Files, names), nil
}

// lock is the lock of the state directory, which the old process holds too.
func (t *predecessor) lock() (*os.File, error) {
	p, err := t.Need(partState, 1)
	if err != nil {
		return nil, err
	}
	return p.Files[0], nil
}

// control is the control socket.
func (t *predecessor) control() (net.Listener, error) {
	p, err := t.Need(partControl, 1)
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
	p, err := t.Take(partStore + pseudo)
	if p != nil {
		if err = fs.Restore(p.Data, p.Files); err != nil {
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
	p, err := t.Need(partCallers, 0)
	if err == nil {
		err = upgrade.Decode(p, &peers)
	}
	if err != nil {
		return err
	}
	now := d.ports.Callers()
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
		p, err := t.Need(r.part, 0)
		if err == nil {
			err = r.restore(p.Data)
		}
		if err != nil {
			return err
		}
	}
	return t.checkMissingExports(d)
}
