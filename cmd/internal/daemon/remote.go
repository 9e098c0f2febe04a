package daemon

import (
	"fmt"
	"net"

	"go.uber.org/zap"

	"github.com/rstored/rstored/cmd/internal/certs"
	"github.com/rstored/rstored/cmd/internal/config"
	"github.com/rstored/rstored/cmd/internal/control"
)

// countControlRefused are connections to control ports that came to nothing.
const countControlRefused = "control_tls_refused"

func controlFiles(cfg *config.Config) certs.Files {
	return certs.Files{Cert: cfg.ControlTLS.Cert, Key: cfg.ControlTLS.Key, CA: cfg.ControlTLS.ClientCA}
}

// remoteControl is how other hosts control the daemon.
func (d *Daemon) remoteControl() (control.Remote, error) {
	cfg := d.cfg.Load()
	if err := cfg.ControlTLS.Complete(); err != nil {
		return control.Remote{}, fmt.Errorf("control_tls: %w", err)
	}
	store, err := certs.Load(controlFiles(cfg), d.log.Slog("control"))
	if err != nil {
		return control.Remote{}, err
	}
	t, err := store.Server(certs.Require)
	if err != nil {
		return control.Remote{}, err
	}
	return control.Remote{
		TLS: t,
		Role: func(names []string) control.Role {
			now := d.cfg.Load().ControlTLS
			return control.RoleOf(names, now.Admins, now.Readers)
		},
		Refused: func(client net.Addr, err error) {
			d.controlRefused.Add(1)
			d.audit.Event("control_reject", zap.String("client", client.String()), zap.String("reason", short(err.Error())))
		},
	}, nil
}
