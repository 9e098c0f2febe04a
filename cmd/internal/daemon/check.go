package daemon

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/rstored/rstored/cmd/internal/audit"
	"github.com/rstored/rstored/cmd/internal/certs"
	"github.com/rstored/rstored/cmd/internal/cli"
	"github.com/rstored/rstored/cmd/internal/config"
	"github.com/rstored/rstored/cmd/internal/control"
	"github.com/rstored/rstored/cmd/internal/state"
)

// check opens and checks what a start with the configuration would open. It changes nothing. err
// joins the reasons for which a start would fail. unknown lists what this user has no right to look
// at; the daemon may run as another user.
func check(cfg *config.Config) (unknown []string, err error) {
	var bad []error
	note := func(key string, err error) {
		switch {
		case err == nil:
		case errors.Is(err, fs.ErrPermission) && os.Geteuid() != 0:
			unknown = append(unknown, fmt.Sprintf("%s: not checked, as this user may not: %v", key, err))
		default:
			bad = append(bad, fmt.Errorf("%s: %w", key, err))
		}
	}
	note("audit", audit.Check(cfg.Audit))
	note("tls", checkCerts(certs.Files{Cert: cfg.TLS.Certificate, Key: cfg.TLS.Key, CA: cfg.TLS.ClientCA}, certs.Ask))
	_, err = control.NewAccess(cfg.ControlGroup)
	note("control_group", err)
	if cfg.OTLP.Endpoint != "" && cfg.OTLP.CA != "" {
		_, err := os.ReadFile(cfg.OTLP.CA)
		note("otlp", err)
	}
	note("state_dir", state.Check(cfg.StateDir))
	note("control", checkParent(cfg.Control))
	if err := errors.Join(bad...); err != nil {
		return unknown, &cli.ConfigError{Err: err}
	}
	return unknown, nil
}

func checkCerts(f certs.Files, clients certs.Clients) error {
	if f.Empty() {
		return nil
	}
	store, err := certs.Load(f, nil)
	if err == nil {
		_, err = store.Server(clients)
	}
	return err
}

// checkParent reports whether the directory of a file exists or can be made: no part of its path is
// a file of another kind.
func checkParent(path string) error {
	for dir := filepath.Dir(path); ; dir = filepath.Dir(dir) {
		st, err := os.Stat(dir)
		switch {
		case err == nil && !st.IsDir():
			return fmt.Errorf("%s is not a directory", dir)
		case err == nil:
			return nil
		case !errors.Is(err, fs.ErrNotExist):
			return err
		}
	}
}
