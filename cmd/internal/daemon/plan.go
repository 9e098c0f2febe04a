package daemon

import (
	"cmp"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/rstored/rstored/cmd/internal/config"
	"github.com/rstored/rstored/cmd/internal/control"
	"github.com/rstored/rstored/cmd/internal/desired"
	"github.com/rstored/rstored/cmd/internal/exports"
	"github.com/rstored/rstored/nfs"
	"github.com/rstored/rstored/rpcrdma/rpc"
)

// running is what is served now. Call with mu held.
func (d *Daemon) running() desired.State {
	var p desired.State
	for _, s := range d.exports.All() {
		p.Exports = append(p.Exports, s.Export)
	}
	for _, o := range d.ports {
		p.Ports = append(p.Ports, o.Port)
	}
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
			d.hosts.Wait(a, done)
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
	now, src := d.running(), d.sources()
	next := src.With(doc).State()
	p := control.Plan{
		State: now.Digest(), File: desired.Digest([]byte(f.Text)), Changes: desired.Diff(&now, &next),
		Hurts: []control.Hurt{}, Problems: []string{}, Warnings: append([]string{}, doc.Warnings...), Ignored: append([]string{}, doc.Ignored...),
	}
	p.Warnings = append(p.Warnings, exposures(next.Exports)...)
	for i := range next.Exports {
		e := &next.Exports[i]
		if now, ok := d.exports.Serves(&e.Export); ok {
			if e.Async && !now.Async {
				p.Warnings = append(p.Warnings, fmt.Sprintf("export %s: writes would be acknowledged before they are on disk", e.Pseudo))
			}
			continue
		}
		if e.Type == config.TypePosix {
			if st, err := os.Stat(e.Path); err != nil {
				p.Problems = append(p.Problems, fmt.Sprintf("export %s: %v", e.Pseudo, err))
			} else if !st.IsDir() {
				p.Problems = append(p.Problems, fmt.Sprintf("export %s: %v", e.Pseudo, &fs.PathError{Op: "open", Path: e.Path, Err: fmt.Errorf("is not a directory")}))
			}
		}
	}
	if len(p.Changes) > 0 {
		p.Hurts = d.hurts(&next)
	}
	return p, next
}

// usage is a client and one of the ways in which it comes.
type usage struct {
	peer      rpc.Peer
	connected bool
	seen      *time.Time
}

func (u *usage) addr() netip.Addr { return u.peer.Addr.Addr().Unmap() }

// usersOf are those who use each export, by its number, as far as is known; of clients that are
// connected and have used nothing so far nobody knows what they use, and they are at idle.
func (d *Daemon) usersOf() (by map[uint32][]usage, idle []usage, all bool) {
	by = make(map[uint32][]usage)
	connected, known := make(map[netip.Addr]bool), make(map[netip.Addr]bool)
	conns := d.Clients()
	for _, c := range conns {
		if a, err := netip.ParseAddrPort(c.Address); err == nil {
			connected[a.Addr().Unmap()] = true
		}
	}
	list, all := d.recorder.Users()
	for _, u := range list {
		known[u.Client] = true
		by[u.Export] = append(by[u.Export], usage{
			peer:      rpc.Peer{Addr: netip.AddrPortFrom(u.Client, u.Port), Transport: u.Transport, PKey: u.PKey, Security: u.Security},
			connected: connected[u.Client], seen: &u.Seen,
		})
	}
	for _, c := range conns {
		a, err := netip.ParseAddrPort(c.Address)
		if err != nil || known[a.Addr().Unmap()] {
			continue
		}
		u := usage{peer: rpc.Peer{Addr: a, Transport: rpc.TransportTCP}, connected: true}
		if c.Transport == control.TransportRDMA {
			u.peer.Transport = rpc.TransportRDMA
		}
		idle = append(idle, u)
	}
	return by, idle, all
}

// hurtList collects hurts, each once.
type hurtList struct {
	list []control.Hurt
	seen map[[3]string]bool
}

func (h *hurtList) add(kind, export string, u *usage, format string, a ...any) {
	x := control.Hurt{Kind: kind, Export: export, Text: fmt.Sprintf(format, a...)}
	if u != nil {
		x.Client, x.Connected, x.Seen = u.addr().String(), u.connected, u.seen
		if u.seen == nil && kind != control.HurtPort {
			x.Text += " (it is connected, and has used nothing since the start)"
		}
	}
	if k := [3]string{kind, export, x.Client}; !h.seen[k] {
		h.seen[k] = true
		h.list = append(h.list, x)
	}
}

// hurts are those whom it would hurt if that were served. Call with mu held.
func (d *Daemon) hurts(next *desired.State) []control.Hurt {
	h := &hurtList{list: []control.Hurt{}, seen: make(map[[3]string]bool)}
	by, idle, all := d.usersOf()
	gone := make(map[uint32]string)
	seen := make(map[uint32]bool)
	for _, s := range d.exports.All() {
		if !s.Open() || seen[s.ID] {
			continue
		}
		seen[s.ID] = true
		i := slices.IndexFunc(next.Exports, func(e control.Export) bool { return exports.SameStore(&s.Export.Export, &e.Export) })
		now := d.table.ByID(s.ID)
		if now == nil {
			continue
		}
		users := slices.Concat(by[s.ID], idle)
		slices.SortStableFunc(users, func(a, b usage) int { return a.addr().Compare(b.addr()) })
		if i < 0 {
			gone[s.ID] = s.Pseudo
			if s.Type == config.TypeMemory {
				h.add(control.HurtData, s.Pseudo, nil, "all files of %s would be lost, which is in memory", s.Pseudo)
			}
			replaced := slices.ContainsFunc(next.Exports, func(e control.Export) bool { return e.Pseudo == s.Pseudo })
			for _, u := range users {
				_, st := now.Admits(&u.peer)
				switch {
				case st == nfs.ErrAcces:
				case replaced:
					h.add(control.HurtHandles, s.Pseudo, &u, "client %v would have stale file handles of %s, which becomes something else", u.addr(), s.Pseudo)
				default:
					h.add(control.HurtAccess, s.Pseudo, &u, "client %v would lose access to %s", u.addr(), s.Pseudo)
				}
			}
			continue
		}
		d.hurtsOf(h, now, &next.Exports[i], users)
	}
	h.holders(d, gone)
	d.hurtsOfPorts(h, next)
	if !all && len(d.exports.All()) > 0 {
		h.add(control.HurtOthers, "", nil, "there are more clients than can be remembered; those beyond were not looked at")
	}
	return h.list
}

// hurtsOf are the hurts of a change of an export that stays. Call with mu held.
func (d *Daemon) hurtsOf(h *hurtList, now *nfs.Export, e *control.Export, users []usage) {
	name := e.Pseudo
	after, err := (&exports.Export{Export: *e}).NFS(name, d.cfg.Load().TLS.XprtSec).Prospect(d.hosts)
	if err != nil {
		h.add(control.HurtUnknown, name, nil, "%v", err)
		return
	}
	for i := range users {
		u := &users[i]
		was, st := now.Admits(&u.peer)
		if st == nfs.ErrAcces {
			continue // it has nothing to lose
		}
		is, st2 := after.Admits(&u.peer)
		switch {
		case st == nfs.ErrJukebox || st2 == nfs.ErrJukebox:
			h.add(control.HurtUnknown, name, u, "client %v: its name is not known yet, nor what it would lose on %s", u.addr(), name)
			continue
		case st2 != nfs.OK:
			h.add(control.HurtAccess, name, u, "client %v would lose access to %s", u.addr(), name)
			continue
		}
		if now.Ident != after.Ident {
			h.add(control.HurtHandles, name, u, "client %v would find another file system at %s", u.addr(), name)
		}
		if !was.RO && !now.ReadOnly && (is.RO || after.ReadOnly) {
			h.add(control.HurtWrite, name, u, "client %v would lose write on %s", u.addr(), name)
		}
		if fewer(was.Flavors, is.Flavors) {
			h.add(control.HurtAccess, name, u, "client %v could no more use a flavor (sec) that it may use on %s", u.addr(), name)
		}
		switch {
		case was.Squash != nfs.AllSquash && is.Squash == nfs.AllSquash:
			h.add(control.HurtUsers, name, u, "client %v's users would all be squashed on %s", u.addr(), name)
		case was.Squash == nfs.NoRootSquash && is.Squash != nfs.NoRootSquash:
			h.add(control.HurtRoot, name, u, "client %v's root would be squashed on %s", u.addr(), name)
		case was.Squash == nfs.AllSquash && is.Squash != nfs.AllSquash:
			h.add(control.HurtUsers, name, u, "client %v's users would no more be user %d, group %d on %s", u.addr(), was.AnonUID, was.AnonGID, name)
		case is.Squash != nfs.NoRootSquash && (was.AnonUID != is.AnonUID || was.AnonGID != is.AnonGID):
			h.add(control.HurtAnon, name, u, "client %v's squashed users would be user %d, group %d instead of %d, %d on %s",
				u.addr(), is.AnonUID, is.AnonGID, was.AnonUID, was.AnonGID, name)
		}
	}
}

// fewer reports whether a flavor is in one set that is not in the other.
func fewer(was, is nfs.Flavors) bool {
	return slices.ContainsFunc(was.List(), func(a rpc.AuthFlavor) bool { return !is.Has(a) })
}

// namesMax is how many clients a line names.
const namesMax = 8

// holders adds those who have something open or locked in exports that go.
func (h *hurtList) holders(d *Daemon, gone map[uint32]string) {
	if len(gone) == 0 {
		return
	}
	type has struct{ open, lock map[string]bool }
	by := make(map[uint32]*has)
	of := func(id uint32) *has {
		if by[id] == nil {
			by[id] = &has{make(map[string]bool), make(map[string]bool)}
		}
		return by[id]
	}
	for _, x := range d.nfs4.State().Holders(func(id uint32) bool { return gone[id] != "" }) {
		who := fmt.Sprintf("%s (%s)", clientID(x.ID), printable(x.Owner))
		if x.Opens > 0 || x.Delegations > 0 {
			of(x.Export).open[who] = true
		}
		if x.Locks > 0 {
			of(x.Export).lock[who] = true
		}
	}
	for _, l := range d.locks.List(locksListed) {
		// Those of version 4 are there by their owners.
		if gone[l.File.Export] != "" && !strings.HasPrefix(l.Owner.Client, "nfs4 ") {
			of(l.File.Export).lock[printable(l.Owner.Client)] = true
		}
	}
	ids := make([]uint32, 0, len(by))
	for id := range by {
		ids = append(ids, id)
	}
	slices.SortFunc(ids, func(a, b uint32) int { return cmp.Compare(gone[a], gone[b]) })
	for _, id := range ids {
		for _, x := range []struct {
			what string
			who  map[string]bool
		}{{"open files", by[id].open}, {"locks", by[id].lock}} {
			what, who := x.what, x.who
			if len(who) == 0 {
				continue
			}
			names := make([]string, 0, len(who))
			for n := range who {
				names = append(names, n)
			}
			slices.Sort(names)
			shown := strings.Join(names[:min(len(names), namesMax)], ", ")
			if len(names) > namesMax {
				shown += ", ..."
			}
			noun := "clients"
			if len(names) == 1 {
				noun = "client"
			}
			h.list = append(h.list, control.Hurt{
				Kind: control.HurtState, Export: gone[id], Client: shown, Connected: true,
				Text: fmt.Sprintf("%d %s with %s on %s would be cut off: %s", len(names), noun, what, gone[id], shown),
			})
		}
	}
}

// hurtsOfPorts adds those whose connection would be closed. Call with mu held.
func (d *Daemon) hurtsOfPorts(h *hurtList, next *desired.State) {
	for _, c := range d.Clients() {
		from, err := netip.ParseAddrPort(c.Address)
		to, err2 := netip.ParseAddrPort(c.Local)
		if err != nil || err2 != nil {
			continue
		}
		at := func(p control.PortSpec) bool {
			l, err := desired.ParseListen(p)
			return err == nil && p.Transport == c.Transport && l.Port == to.Port() && (l.Any() || l.Device != "" || l.Addr == to.Addr().Unmap())
		}
		i := slices.IndexFunc(d.ports, func(p *port) bool { return at(p.PortSpec) })
		if i < 0 || next.HasPort(d.ports[i].PortSpec) {
			continue
		}
		u := &usage{peer: rpc.Peer{Addr: from}, connected: true}
		if slices.ContainsFunc(next.Ports, func(p control.Port) bool { return at(p.PortSpec) }) {
			h.add(control.HurtPort, "", u, "client %v would have to connect anew to %s %v", u.addr(), c.Transport, to)
		} else {
			h.add(control.HurtPort, "", u, "client %v would be disconnected from %s %v", u.addr(), c.Transport, to)
		}
	}
}
