package daemon

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/rstored/rstored/cmd/internal/config"
	"github.com/rstored/rstored/cmd/internal/control"
	"github.com/rstored/rstored/nfs"
	"github.com/rstored/rstored/rpcrdma/rpc"
)

// snapshot is what is served, or would be: exports, those of crossmnt among them, and ports.
type snapshot struct {
	exports []control.Export
	ports   []control.Port
}

// running is the snapshot of now. Call with mu held.
func (d *Daemon) running() snapshot {
	var p snapshot
	for _, s := range d.exports {
		p.exports = append(p.exports, s.Export)
	}
	for _, o := range d.ports {
		p.ports = append(p.ports, o.Port)
	}
	return p
}

// configuredSnapshot is the snapshot that a configuration makes without changes of run time.
func configuredSnapshot(cfg *config.Config) snapshot {
	p := snapshot{exports: desiredExports(cfg.Exports, nil, nil), ports: desiredPorts(cfg, nil, nil)}
	p.exports = append(p.exports, mountedBelow(p.exports, hostMounts())...)
	return p
}

// digest tells snapshots apart by what is served, not by where that is written.
func (p *snapshot) digest() string {
	var all struct {
		Exports []config.Export
		Aliases [][]string
		Ports   []control.PortSpec
	}
	for i := range p.exports {
		e := p.exports[i].Export
		e.Source = ""
		all.Exports, all.Aliases = append(all.Exports, e), append(all.Aliases, p.exports[i].Aliases)
	}
	for i := range p.ports {
		all.Ports = append(all.Ports, p.ports[i].PortSpec)
	}
	b, err := json.Marshal(&all)
	if err != nil {
		return "" // no such value cannot be encoded
	}
	return digest(b)
}

func digest(b []byte) string {
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}

// optionsOf are the options of an export that differ from nothing, by name, in an order.
func optionsOf(e *control.Export) (names []string, value map[string]string) {
	value = make(map[string]string)
	add := func(name, v string) {
		if v != "" {
			names, value[name] = append(names, name), v
		}
	}
	word := func(on bool) string {
		if on {
			return "yes"
		}
		return ""
	}
	add("path", e.Path)
	add("type", e.Type)
	add("read_only", word(e.ReadOnly))
	add("async", word(e.Async))
	add("direct", word(e.Direct))
	if e.HostLocks != nil && !*e.HostLocks {
		add("host_locks", "no")
	}
	add("pkeys", strings.Join(e.PKeys, " "))
	add("fsid", e.FSID)
	add("crossmnt", word(e.CrossMnt))
	add("mountpoint", e.MountPoint)
	add("bandwidth", e.Bandwidth)
	if e.IOPS > 0 {
		add("iops", fmt.Sprint(e.IOPS))
	}
	add("first_match", word(e.FirstMatch))
	var order []string
	clients := e.Rules()
	for i := range clients {
		add("client "+clients[i].Name(), clients[i].String())
		order = append(order, clients[i].Name())
	}
	if e.FirstMatch && len(order) > 1 {
		add("order of clients", strings.Join(order, " "))
	}
	add("aliases", strings.Join(e.Aliases, " "))
	return names, value
}

// changes lead from one snapshot to another.
func changes(from, to *snapshot) []control.Change {
	out := []control.Change{}
	empty := new(control.Export)
	find := func(list []control.Export, pseudo string) *control.Export {
		if i := slices.IndexFunc(list, func(e control.Export) bool { return e.Pseudo == pseudo }); i >= 0 {
			return &list[i]
		}
		return empty
	}
	add := func(pseudo string, old, is *control.Export) {
		c := control.Change{Kind: "export", Name: pseudo, Action: control.ActionChange}
		oldNames, was := optionsOf(old)
		names, now := optionsOf(is)
		switch empty {
		case old:
			c.Action, oldNames, was = control.ActionAdd, nil, nil
		case is:
			c.Action, names, now = control.ActionRemove, nil, nil
		}
		for _, n := range oldNames {
			if !slices.Contains(names, n) {
				names = append(names, n)
			}
		}
		for _, n := range names {
			if was[n] != now[n] {
				c.Options = append(c.Options, control.OptionChange{Option: n, Old: was[n], New: now[n]})
			}
		}
		if len(c.Options) > 0 {
			out = append(out, c)
		}
	}
	for i := range to.exports {
		add(to.exports[i].Pseudo, find(from.exports, to.exports[i].Pseudo), &to.exports[i])
	}
	for i := range from.exports {
		if find(to.exports, from.exports[i].Pseudo) == empty {
			add(from.exports[i].Pseudo, &from.exports[i], empty)
		}
	}
	port := func(a, b []control.Port, action string) {
		for _, p := range a {
			if !hasPort(b, p.PortSpec) {
				out = append(out, control.Change{Kind: "port", Name: p.Transport + " " + p.Listen, Action: action})
			}
		}
	}
	port(to.ports, from.ports, control.ActionAdd)
	port(from.ports, to.ports, control.ActionRemove)
	return out
}

func hasPort(list []control.Port, s control.PortSpec) bool {
	return slices.ContainsFunc(list, func(p control.Port) bool { return p.PortSpec == s })
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
func (d *Daemon) plan(f control.File, doc *config.Document) (control.Plan, snapshot) {
	now, next := d.running(), d.planned(doc)
	p := control.Plan{
		State: now.digest(), File: digest([]byte(f.Text)), Changes: changes(&now, &next),
		Hurts: []control.Hurt{}, Problems: []string{}, Warnings: append([]string{}, doc.Warnings...), Ignored: append([]string{}, doc.Ignored...),
	}
	p.Warnings = append(p.Warnings, exposures(next.exports)...)
	for i := range next.exports {
		e := &next.exports[i]
		j := slices.IndexFunc(d.exports, func(s *served) bool { return s.store != nil && sameStore(&s.Export.Export, &e.Export) })
		if j >= 0 {
			if e.Async && !d.exports[j].Async {
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

// planned is what would be served with a document applied. Call with mu held.
func (d *Daemon) planned(doc *config.Document) snapshot {
	cfg := d.effective().With(doc)
	added, removed := d.state.Exports()
	if doc.Exports != nil {
		added, removed = nil, nil
	}
	ports, gone := d.state.Ports()
	about := transportsOf(doc)
	ports = slices.DeleteFunc(ports, func(p statePort) bool { return slices.Contains(about, p.Transport) })
	gone = slices.DeleteFunc(gone, func(p statePort) bool { return slices.Contains(about, p.Transport) })
	p := snapshot{exports: desiredExports(cfg.Exports, added, removed), ports: desiredPorts(cfg, ports, gone)}
	p.exports = append(p.exports, mountedBelow(p.exports, hostMounts())...)
	return p
}

// transportsOf are the transports of the ports that a document says anything of.
func transportsOf(doc *config.Document) []string {
	var out []string
	for key, transport := range map[string]string{
		"rdma_listen": control.TransportRDMA, "tcp_listen": control.TransportTCP, "mount_listen": control.TransportTCP,
		"portmap_listen": control.TransportPortmap, "ops_listen": control.TransportOps,
	} {
		if _, ok := doc.Listen[key]; ok && !slices.Contains(out, transport) {
			out = append(out, transport)
		}
	}
	return out
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
func (d *Daemon) hurts(next *snapshot) []control.Hurt {
	h := &hurtList{list: []control.Hurt{}, seen: make(map[[3]string]bool)}
	by, idle, all := d.usersOf()
	gone := make(map[uint32]string)
	seen := make(map[uint32]bool)
	for _, s := range d.exports {
		if s.store == nil || seen[s.ID] {
			continue
		}
		seen[s.ID] = true
		i := slices.IndexFunc(next.exports, func(e control.Export) bool { return sameStore(&s.Export.Export, &e.Export) })
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
			replaced := slices.ContainsFunc(next.exports, func(e control.Export) bool { return e.Pseudo == s.Pseudo })
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
		d.hurtsOf(h, now, &next.exports[i], users)
	}
	h.holders(d, gone)
	d.hurtsOfPorts(h, next)
	if !all && len(d.exports) > 0 {
		h.add(control.HurtOthers, "", nil, "there are more clients than can be remembered; those beyond were not looked at")
	}
	return h.list
}

// hurtsOf are the hurts of a change of an export that stays. Call with mu held.
func (d *Daemon) hurtsOf(h *hurtList, now *nfs.Export, e *control.Export, users []usage) {
	name := e.Pseudo
	after, err := (&served{Export: *e}).toNFS(name, d.cfg.Load().TLS.XprtSec).Prospect(d.hosts)
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
func (d *Daemon) hurtsOfPorts(h *hurtList, next *snapshot) {
	for _, c := range d.Clients() {
		from, err := netip.ParseAddrPort(c.Address)
		to, err2 := netip.ParseAddrPort(c.Local)
		if err != nil || err2 != nil {
			continue
		}
		at := func(p control.PortSpec) bool {
			l, err := parseListen(p)
			return err == nil && p.Transport == c.Transport && l.Port == to.Port() && (l.Any() || l.Device != "" || l.Addr == to.Addr().Unmap())
		}
		i := slices.IndexFunc(d.ports, func(p *port) bool { return at(p.PortSpec) })
		if i < 0 || hasPort(next.ports, d.ports[i].PortSpec) {
			continue
		}
		u := &usage{peer: rpc.Peer{Addr: from}, connected: true}
		if slices.ContainsFunc(next.ports, func(p control.Port) bool { return at(p.PortSpec) }) {
			h.add(control.HurtPort, "", u, "client %v would have to connect anew to %s %v", u.addr(), c.Transport, to)
		} else {
			h.add(control.HurtPort, "", u, "client %v would be disconnected from %s %v", u.addr(), c.Transport, to)
		}
	}
}
