package desired

import (
	"fmt"
	"slices"
	"strings"

	"github.com/rstored/rstored/cmd/internal/control"
)

// optionsOf returns the options of an export that are not the zero value, with their names, in a
// fixed order.
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
	add("security_label", word(e.SecurityLabel))
	add("refer", e.Refer)
	add("replicas", e.Replicas)
	add("bandwidth", e.Bandwidth)
	if e.IOPS > 0 {
		add("iops", fmt.Sprint(e.IOPS))
	}
	add("quota", e.Quota)
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

// Diff lists the changes that lead from one state to another.
func Diff(from, to *State) []control.Change {
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
	for i := range to.Exports {
		add(to.Exports[i].Pseudo, find(from.Exports, to.Exports[i].Pseudo), &to.Exports[i])
	}
	for i := range from.Exports {
		if find(to.Exports, from.Exports[i].Pseudo) == empty {
			add(from.Exports[i].Pseudo, &from.Exports[i], empty)
		}
	}
	port := func(a, b *State, action string) {
		for _, p := range a.Ports {
			if !b.HasPort(p.PortSpec) {
				out = append(out, control.Change{Kind: "port", Name: p.Transport + " " + p.Listen, Action: action})
			}
		}
	}
	port(to, from, control.ActionAdd)
	port(from, to, control.ActionRemove)
	return out
}
