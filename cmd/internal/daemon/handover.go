package daemon

import (
	"errors"
	"fmt"
	"net"

	"github.com/rstored/rstored/cmd/internal/cli"
	"github.com/rstored/rstored/cmd/internal/config"
	"github.com/rstored/rstored/cmd/internal/control"
	"github.com/rstored/rstored/cmd/internal/handover"
	"github.com/rstored/rstored/cmd/internal/upgrade"
)

// components are what an upgrade hands over, in the order in which each stage freezes them. Thaw
// goes the other way. The state directory comes after the components that write to it.
func (d *Daemon) components() []upgrade.Component {
	return []upgrade.Component{d.ports, d.Service, d.ExportSet, d.state, d.sockets, controlSocket{d.listener}}
}

// work returns the calls in progress, and the connections that wait for their clients.
func (d *Daemon) work() upgrade.Work {
	w := d.ports.Work()
	w.Calls += d.Work()
	return w
}

// prepare reports to the old process that this one is ready, and receives the parts that the old
// one hands over.
func prepare(conn *handover.Conn, cfg *config.Config) (*upgrade.Predecessor, error) {
	return upgrade.Receive(conn, cli.ReadBuild().String(), func(old upgrade.Hello) error {
		if old.StateDir != cfg.StateDir {
			return fmt.Errorf("state_dir was %s and is %s: that needs a restart", old.StateDir, cfg.StateDir)
		}
		if old.Control != cfg.Control {
			return fmt.Errorf("control was %s and is %s: that needs a restart", old.Control, cfg.Control)
		}
		return nil
	})
}

// controlSocket is the listener of the control interface, as an upgrade.Component.
type controlSocket struct{ net.Listener }

// partControl is the part of the handover with the control socket.
const partControl = "control"

func (controlSocket) Freeze(upgrade.Stage) (thaw func() error, err error) { return nil, nil }

func (c controlSocket) Snapshot(p *upgrade.Parts) {
	file, err := c.Listener.(*net.UnixListener).File()
	p.AddFile(partControl, file, err)
}

// listenControl listens on the control socket, which the old process hands over if there is one.
func listenControl(path string, access control.Access, from *upgrade.Predecessor) (net.Listener, error) {
	if from == nil {
		return control.Listen(path, access)
	}
	p, err := from.Need(partControl, 1)
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
