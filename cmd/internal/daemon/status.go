package daemon

import (
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/rstored/rstored/cmd/internal/cli"
	"github.com/rstored/rstored/cmd/internal/control"
)

// Status implements control.Backend.
func (d *Daemon) Status() control.Status {
	cfg := d.cfg.Load()
	s := control.Status{
		Version:       cli.ReadBuild().Version,
		State:         control.StateRunning,
		PID:           os.Getpid(),
		Started:       d.started,
		UptimeSeconds: int64(time.Since(d.started) / time.Second),
		Config:        cfg.File,
		StateDir:      cfg.StateDir,
		LogLevel:      d.log.Level.String(),
		Clients:       len(d.Clients()),
		Devices:       d.devices.Names(),
		Problems:      d.problems(),
		TLS:           d.tls.Status(),
		Providers:     d.devices.Providers(),
		NFS4Memory:    d.NFS4Memory(),
		Process:       d.ProcessMemory(),
	}
	s.Lease = d.lease()
	if len(s.Problems) > 0 {
		s.State = control.StateDegraded
	}
	if d.draining.Load() {
		s.State = control.StateDraining
	}
	for _, e := range d.Exports() {
		if e.Error == "" {
			s.Exports++
		}
	}
	for _, p := range d.Ports() {
		if len(p.Addresses) > 0 {
			s.Ports++
		}
	}
	return s
}

// problems describes the exports and ports that are not served, or have a problem.
func (d *Daemon) problems() []string {
	out := []string{}
	for _, e := range d.Exports() {
		if e.Error != "" {
			out = append(out, fmt.Sprintf("export %s: %s", e.Pseudo, e.Error))
		}
		if e.Warning != "" {
			out = append(out, fmt.Sprintf("export %s: %s", e.Pseudo, e.Warning))
		}
	}
	for _, p := range d.Ports() {
		if p.Error != "" {
			out = append(out, fmt.Sprintf("port %s %s: %s", p.Transport, p.Listen, p.Error))
		}
	}
	if s := d.tls.Status(); s != nil && s.Error != "" {
		out = append(out, "tls: "+s.Error+" (the files of before are in use)")
	}
	return out
}

// Config implements control.Backend.
func (d *Daemon) Config() ([]byte, error) { return d.cfg.Load().YAML() }

// SetLogLevel implements control.Backend.
func (d *Daemon) SetLogLevel(level string) error {
	switch strings.ToLower(level) {
	case "debug", "info", "warn", "error":
		return d.log.Level.UnmarshalText([]byte(level))
	}
	return fmt.Errorf("unknown log level %q: use debug, info, warn or error", level)
}

// lease is the state of the lease on the state directory, or nil if nodes do not share it.
func (d *Daemon) lease() *control.Lease {
	l := d.state.Lease()
	if l == nil {
		return nil
	}
	return (*control.Lease)(new(l.Status()))
}
