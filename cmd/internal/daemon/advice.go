package daemon

import (
	"net/netip"

	"go.uber.org/zap"

	"github.com/rstored/rstored/cmd/internal/config"
	"github.com/rstored/rstored/cmd/internal/control"
)

// logWarnings logs probable mistakes in the exports, and what the exports allow to every host.
func (d *Daemon) logWarnings(cfg *config.Config, exports []control.Export) {
	for _, w := range cfg.Warnings {
		d.log.Warn("exports: " + w)
	}
	if w := cfg.ControlTLS.Warning(); w != "" {
		d.log.Warn(w)
	}
	d.LogExposures(exports)
}

// logAdvice logs what the operator probably did not intend.
func (d *Daemon) logAdvice() {
	exports := d.Exports()
	if len(exports) == 0 {
		d.log.Warn("nothing is exported; add something with 'rstorectl export add DIR'")
	}
	for _, e := range exports {
		if len(e.Clients) == 0 && !e.Derived() {
			d.log.Info("an export names no clients: it is for this host alone; 'rstorectl export "+
				"set "+e.Pseudo+" --client CIDR' names others",
				zap.String("export", e.Pseudo))
		}
	}
}

// refused writes a refused connection request to the audit log.
func (d *Daemon) refused(client, local netip.AddrPort, reason string) {
	d.audit.Event("rdma_reject", zap.Stringer("client", client), zap.Stringer("local", local),
		zap.String("reason", reason))
}

// Denials implements control.Backend.
func (d *Daemon) Denials() []control.Denial {
	list := d.Denied.List()
	out := make([]control.Denial, 0, len(list))
	for _, n := range list {
		out = append(out, control.Denial{
			Client: n.Client.String(), Export: n.Export, Reason: n.Reason, Count: n.Count, Last: n.Last,
		})
	}
	return out
}

// PostMortems implements control.Backend.
func (d *Daemon) PostMortems() []control.PostMortem { return d.failures.List() }
