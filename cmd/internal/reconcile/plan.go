package reconcile

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

// hostsTime is the time that a plan waits for names of clients.
const hostsTime = 2 * time.Second

// Plan implements control.Backend.
func (r *Reconciler) Plan(f control.File) (control.Plan, error) {
	doc, err := r.document(&f)
	if err != nil {
		return control.Plan{}, err
	}
	// Names of clients are resolved without the lock.
	done := make(chan struct{})
	stop := time.AfterFunc(hostsTime, func() { close(done) })
	defer stop.Stop()
	for {
		r.Mu.Lock()
		p, _ := r.plan(f, doc)
		r.Mu.Unlock()
		i := slices.IndexFunc(p.Disruptions, func(h control.Disruption) bool { return h.Kind == control.DisruptUnknown })
		if i < 0 {
			return p, nil
		}
		select {
		case <-done:
			return p, nil
		default:
		}
		if a, err := netip.ParseAddr(p.Disruptions[i].Client); err == nil {
			r.Service.Hosts.Wait(a, done)
		}
	}
}

// document parses a file of exports and ports. In the own syntax the configuration takes its place.
func (r *Reconciler) document(f *control.File) (*config.Document, error) {
	if f.Syntax != config.SyntaxOwn {
		return config.ParseDocument(f.Name, f.Syntax, []byte(f.Text))
	}
	cfg := r.Settings()
	doc, text, err := cfg.Own()
	if f.Text = string(text); f.Name == "" {
		f.Name = cmp.Or(cfg.File, config.SyntaxOwn)
	}
	return doc, err
}

// plan returns what a file would change, and what would be served then. Call with Mu locked.
func (r *Reconciler) plan(f control.File, doc *config.Document) (control.Plan, desired.State) {
	src := r.sources()
	next := src.With(doc).State()
	now := plan.Running{
		State: r.Running(), Exports: r.Service.ExportSet, Table: r.Service.Table, Hosts: r.Service.Hosts,
		Recorder: r.Service.Recorder,
		NFS4:     r.Service.NFS4.State(), Locks: r.Service.LockTable,
		Clients: r.Clients(), XprtSec: r.Settings().TLS.XprtSec,
	}
	p := now.Plan(&next)
	p.File = desired.Digest([]byte(f.Text))
	p.Warnings, p.Ignored = append(append([]string{}, doc.Warnings...), p.Warnings...), append([]string{}, doc.Ignored...)
	return p, next
}
