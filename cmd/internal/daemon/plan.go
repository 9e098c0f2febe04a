package daemon

import (
	"cmp"
	"net/netip"
	"slices"
	"time"

	"github.com/rstored/rstored/cmd/internal/config"
	"github.com/rstored/rstored/cmd/internal/control"
	"github.com/rstored/rstored/cmd/internal/desired"
	"github.com/rstored/rstored/cmd/internal/plan"
)

// running is what is served now. Call with mu held.
func (d *Daemon) running() desired.State {
	var p desired.State
	for _, s := range d.ExportSet.All() {
		p.Exports = append(p.Exports, s.Export)
	}
	p.Ports = d.ports.List()
	return p
}

// hostsTime is how long a plan waits for names of clients.
const hostsTime = 2 * time.Second

// Plan implements control.Backend.
func (d *Daemon) Plan(f control.File) (control.Plan, error) {
	doc, err := d.document(&f)
	if err != nil {
		return control.Plan{}, err
	}
	// Whoever has to be asked for by name is asked for without holding anybody up.
	late := time.NewTimer(hostsTime)
	defer late.Stop()
	done := make(chan struct{})
	stop := time.AfterFunc(hostsTime, func() { close(done) })
	defer stop.Stop()
	for {
		d.mu.Lock()
		p, _ := d.plan(f, doc)
		d.mu.Unlock()
		i := slices.IndexFunc(p.Hurts, func(h control.Hurt) bool { return h.Kind == control.HurtUnknown })
		if i < 0 {
			return p, nil
		}
		select {
		case <-done:
			return p, nil
		default:
		}
		if a, err := netip.ParseAddr(p.Hurts[i].Client); err == nil {
			d.Hosts.Wait(a, done)
		}
	}
}

// document reads a file.
func (d *Daemon) document(f *control.File) (*config.Document, error) {
	if f.Syntax != config.SyntaxOwn {
		return config.ParseDocument(f.Name, f.Syntax, []byte(f.Text))
	}
	cfg := d.cfg.Load()
	doc, text, err := cfg.Own()
	if f.Text = string(text); f.Name == "" {
		f.Name = cmp.Or(cfg.File, config.SyntaxOwn)
	}
	return doc, err
}

// plan says what a file would change, and what would be served then. Call with mu held.
func (d *Daemon) plan(f control.File, doc *config.Document) (control.Plan, desired.State) {
	src := d.sources()
	next := src.With(doc).State()
	r := plan.Running{
		State: d.running(), Exports: d.ExportSet, Table: d.Table, Hosts: d.Hosts, Recorder: d.Recorder,
		NFS4: d.NFS4.State(), Locks: d.LockTable,
		Clients: d.Clients(), XprtSec: d.cfg.Load().TLS.XprtSec,
	}
	p := r.Plan(&next)
	p.File = desired.Digest([]byte(f.Text))
	p.Warnings, p.Ignored = append(append([]string{}, doc.Warnings...), p.Warnings...), append([]string{}, doc.Ignored...)
	return p, next
}
