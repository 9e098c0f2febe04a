package plan

import (
	"cmp"
	"fmt"
	"net/netip"
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

// usage is a client on one of its connections, or one that the recorder has seen.
type usage struct {
	peer      rpc.Peer
	connected bool
	seen      *time.Time
}

func (u *usage) addr() netip.Addr { return u.peer.Addr.Addr().Unmap() }

// usersOf returns the known users of each export, by its number. Clients that are connected, and
// have used no export so far, are at idle.
func (r *Running) usersOf() (by map[uint32][]usage, idle []usage, all bool) {
	by = make(map[uint32][]usage)
	connected, known := make(map[netip.Addr]bool), make(map[netip.Addr]bool)
	conns := r.Clients
	for _, c := range conns {
		if a, err := netip.ParseAddrPort(c.Address); err == nil {
			connected[a.Addr().Unmap()] = true
		}
	}
	list, all := r.Recorder.Users()
	for _, u := range list {
		known[u.Client] = true
		by[u.Export] = append(by[u.Export], usage{
			peer: rpc.Peer{
				Addr: netip.AddrPortFrom(u.Client, u.Port), Transport: u.Transport, PKey: u.PKey,
				Security: u.Security,
			},
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

// disruptionList collects disruptions, each once.
type disruptionList struct {
	list []control.Disruption
	seen map[[3]string]bool
}

func (h *disruptionList) add(kind, export string, u *usage, format string, a ...any) {
	x := control.Disruption{Kind: kind, Export: export, Text: fmt.Sprintf(format, a...)}
	if u != nil {
		x.Client, x.Connected, x.Seen = u.addr().String(), u.connected, u.seen
		if u.seen == nil && kind != control.DisruptPort {
			x.Text += " (it is connected, and has used nothing since the start)"
		}
	}
	if k := [3]string{kind, export, x.Client}; !h.seen[k] {
		h.seen[k] = true
		h.list = append(h.list, x)
	}
}

// disruptions lists the clients that would be disrupted if next were served.
func (r *Running) disruptions(next *desired.State) []control.Disruption {
	h := &disruptionList{list: []control.Disruption{}, seen: make(map[[3]string]bool)}
	by, idle, all := r.usersOf()
	gone := make(map[uint32]string)
	seen := make(map[uint32]bool)
	for _, s := range r.Exports.All() {
		if !s.Open() || seen[s.ID] {
			continue
		}
		seen[s.ID] = true
		i := slices.IndexFunc(next.Exports,
			func(e control.Export) bool { return exports.SameStore(&s.Export.Export, &e.Export) })
		now := r.Table.ByID(s.ID)
		if now == nil {
			continue
		}
		users := slices.Concat(by[s.ID], idle)
		slices.SortStableFunc(users, func(a, b usage) int { return a.addr().Compare(b.addr()) })
		if i < 0 {
			gone[s.ID] = s.Pseudo
			if s.Type == config.TypeMemory {
				h.add(control.DisruptData, s.Pseudo, nil, "all files of %s would be lost, which is in memory", s.Pseudo)
			}
			replaced := slices.ContainsFunc(next.Exports, func(e control.Export) bool { return e.Pseudo == s.Pseudo })
			for _, u := range users {
				_, st := now.Admits(&u.peer)
				switch {
				case st == nfs.ErrAcces:
				case replaced:
					h.add(control.DisruptHandles, s.Pseudo, &u, "client %v would have stale file handles of %s, "+
						"which becomes something else", u.addr(), s.Pseudo)
				default:
					h.add(control.DisruptAccess, s.Pseudo, &u, "client %v would lose access to %s", u.addr(), s.Pseudo)
				}
			}
			continue
		}
		r.disruptionsOf(h, now, &next.Exports[i], users)
	}
	h.holders(r, gone)
	r.disruptionsOfPorts(h, next)
	if !all && len(r.Exports.All()) > 0 {
		h.add(control.DisruptOthers, "", nil, "there are more clients than can be remembered; those beyond were not "+
			"looked at")
	}
	return h.list
}

// disruptionsOf lists the disruptions of a change of an export that stays.
func (r *Running) disruptionsOf(h *disruptionList, now *nfs.Export, e *control.Export, users []usage) {
	name := e.Pseudo
	after, err := (&exports.Export{Export: *e}).NFS(name, r.XprtSec).Prospect(r.Hosts)
	if err != nil {
		h.add(control.DisruptUnknown, name, nil, "%v", err)
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
			h.add(control.DisruptUnknown, name, u, "client %v: its name is not known yet, nor what it would lose on "+
				"%s", u.addr(), name)
			continue
		case st2 != nfs.OK:
			h.add(control.DisruptAccess, name, u, "client %v would lose access to %s", u.addr(), name)
			continue
		}
		if after.Moved && !now.Moved {
			h.add(control.DisruptAccess, name, u, "client %v would be referred to other servers for %s, and has to mount it "+
				"again (version 4)", u.addr(), name)
		}
		if now.Ident != after.Ident {
			h.add(control.DisruptHandles, name, u, "client %v would find another file system at %s", u.addr(), name)
		}
		if !was.RO && !now.ReadOnly && (is.RO || after.ReadOnly) {
			h.add(control.DisruptWrite, name, u, "client %v would lose write on %s", u.addr(), name)
		}
		if fewer(was.Flavors, is.Flavors) {
			h.add(control.DisruptAccess, name, u, "client %v could no more use a flavor (sec) that it may use on "+
				"%s", u.addr(), name)
		}
		switch {
		case was.Squash != nfs.AllSquash && is.Squash == nfs.AllSquash:
			h.add(control.DisruptUsers, name, u, "client %v's users would all be squashed on %s", u.addr(), name)
		case was.Squash == nfs.NoRootSquash && is.Squash != nfs.NoRootSquash:
			h.add(control.DisruptRoot, name, u, "client %v's root would be squashed on %s", u.addr(), name)
		case was.Squash == nfs.AllSquash && is.Squash != nfs.AllSquash:
			h.add(control.DisruptUsers, name, u, "client %v's users would no more be user %d, group %d on "+
				"%s", u.addr(), was.AnonUID, was.AnonGID, name)
		case is.Squash != nfs.NoRootSquash && (was.AnonUID != is.AnonUID || was.AnonGID != is.AnonGID):
			h.add(control.DisruptAnon, name, u, "client %v's squashed users would be user %d, group %d instead of "+
				"%d, %d on %s",
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

// holders adds the clients that have files open or locked in exports that are removed.
func (h *disruptionList) holders(r *Running, gone map[uint32]string) {
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
	for _, x := range r.NFS4.Holders(func(id uint32) bool { return gone[id] != "" }) {
		who := fmt.Sprintf("%s (%s)", control.ClientID(x.ID), control.Printable(x.Owner))
		if x.Opens > 0 || x.Delegations > 0 {
			of(x.Export).open[who] = true
		}
		if x.Locks > 0 {
			of(x.Export).lock[who] = true
		}
	}
	for _, l := range r.Locks.List(locksMax) {
		// Clients of version 4 are listed by their owners.
		if gone[l.File.Export] != "" && !strings.HasPrefix(l.Owner.Client, "nfs4 ") {
			of(l.File.Export).lock[control.Printable(l.Owner.Client)] = true
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
			h.list = append(h.list, control.Disruption{
				Kind: control.DisruptState, Export: gone[id], Client: shown, Connected: true,
				Text: fmt.Sprintf("%d %s with %s on %s would be cut off: %s", len(names), noun, what, gone[id], shown),
			})
		}
	}
}

// disruptionsOfPorts adds the clients whose connections would be closed.
func (r *Running) disruptionsOfPorts(h *disruptionList, next *desired.State) {
	for _, c := range r.Clients {
		from, err := netip.ParseAddrPort(c.Address)
		to, err2 := netip.ParseAddrPort(c.Local)
		if err != nil || err2 != nil {
			continue
		}
		at := func(p control.PortSpec) bool {
			l, err := desired.ParseListen(p)
			return err == nil && p.Transport == c.Transport && l.Port == to.Port() &&
				(l.Device != "" || l.Has(to.Addr()))
		}
		i := slices.IndexFunc(r.State.Ports, func(p control.Port) bool { return at(p.PortSpec) })
		if i < 0 || next.HasPort(r.State.Ports[i].PortSpec) {
			continue
		}
		u := &usage{peer: rpc.Peer{Addr: from}, connected: true}
		if slices.ContainsFunc(next.Ports, func(p control.Port) bool { return at(p.PortSpec) }) {
			h.add(control.DisruptPort, "", u, "client %v would have to connect anew to %s %v", u.addr(), c.Transport, to)
		} else {
			h.add(control.DisruptPort, "", u, "client %v would be disconnected from %s %v", u.addr(), c.Transport, to)
		}
	}
}
