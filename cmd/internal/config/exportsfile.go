package config

import (
	"cmp"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/rstored/rstored/cmd/internal/exportsfile"
)

// ReadExports reads an export table and those beside it. Warnings are what is probably not
// meant, each with its line. The defaults are those of exports(5): ro, sync, secure, sec=sys.
// Every error says in which line it is.
func ReadExports(file string) (list []Export, warnings []string, err error) {
	t, err := exportsfile.Load(file)
	if err != nil {
		return nil, nil, err
	}
	for _, w := range t.Warnings {
		warnings = append(warnings, w.Error())
	}
	list, more, err := fromTable(t)
	return list, append(warnings, more...), err
}

func fromTable(t *exportsfile.Table) (list []Export, warnings []string, err error) {
	warn := func(p exportsfile.Pos, format string, a ...any) {
		warnings = append(warnings, p.String()+": "+fmt.Sprintf(format, a...))
	}
	at := make(map[string]int) // path to its place in the list
	whole := make(map[string]Export)
	var bad []error
	fail := func(p exportsfile.Pos, err error) { bad = append(bad, &exportsfile.Error{Pos: p, Err: err}) }
	for i := range t.Entries {
		line := &t.Entries[i]
		dir := path.Clean(line.Path)
		n, there := at[dir]
		if !there {
			n = len(list)
			at[dir] = n
			list = append(list, Export{Path: dir, Type: TypePosix, Pseudo: dir, FirstMatch: true, Source: line.String()})
		}
		for j := range line.Clients {
			in := &line.Clients[j]
			e := Export{Path: dir, Type: TypePosix, Pseudo: dir, FirstMatch: true, Source: list[n].Source}
			c := Client{Host: in.Host, ReadOnly: true, Secure: true, Sec: []string{FlavorSys}}
			for _, o := range in.Options {
				var nothing *errMeaningless
				switch err := e.apply(&c, o); {
				case errors.As(err, &nothing):
					warn(in.Pos, "%v", nothing)
				case err != nil:
					fail(in.Pos, err)
				}
			}
			if err := cmp.Or(e.Normalize(), c.normalize()); err != nil {
				fail(in.Pos, err)
				continue
			}
			// What is a property of the directory must be the same for all its clients.
			if first, ok := whole[dir]; ok {
				if what := difference(&first, &e); what != "" {
					fail(in.Pos, fmt.Errorf("%s is for all clients of an export, "+
						"but is not the same for those of %s before this one", what, dir))
					continue
				}
				// One client with the number says it for all.
				first.FSID = cmp.Or(first.FSID, e.FSID)
				whole[dir], list[n].FSID, list[n].Pseudo = first, first.FSID, dir
			} else {
				whole[dir] = e
				e.Clients = nil
				list[n] = e
			}
			if slices.ContainsFunc(list[n].Clients, func(o Client) bool { return strings.EqualFold(o.Name(), c.Name()) }) {
				warn(in.Pos, "%s is exported to %s more than once: the first counts", dir, c.Name())
				continue
			}
			list[n].Clients = append(list[n].Clients, c)
		}
	}
	if len(bad) == 0 {
		bad = append(bad, arrange(list))
	}
	if err := errors.Join(bad...); err != nil {
		return nil, warnings, err
	}
	return list, warnings, nil
}

// difference is the option of whole exports in which two differ.
func difference(a, b *Export) string {
	locks := func(e *Export) bool { return e.HostLocks == nil || *e.HostLocks }
	for _, option := range []struct {
		name   string
		differ bool
	}{
		{"async", a.Async != b.Async},
		{"fsid", a.FSID != b.FSID && a.FSID != "" && b.FSID != ""},
		{"crossmnt", a.CrossMnt != b.CrossMnt},
		{"mountpoint", a.MountPoint != b.MountPoint},
		{"security_label", a.SecurityLabel != b.SecurityLabel},
		{"refer", a.Refer != b.Refer},
		{"replicas", a.Replicas != b.Replicas},
		{"export_bandwidth", a.Bandwidth != b.Bandwidth},
		{"export_iops", a.IOPS != b.IOPS},
		{"quota", a.Quota != b.Quota},
		{"host_locks", locks(a) != locks(b)},
		{"direct", a.Direct != b.Direct},
		{"pkey", !slices.Equal(a.PKeys, b.PKeys)},
	} {
		if option.differ {
			return option.name
		}
	}
	return ""
}

// arrange gives the exports of a table their places in version 4: where they are on the host,
// but what lies below the one with fsid=0 without that one's path.
func arrange(list []Export) error {
	root := -1
	fsids := make(map[uint64]*Export)
	for i := range list {
		e := &list[i]
		if e.Root() {
			if root >= 0 {
				return fmt.Errorf("%s: fsid=0 is for one export, and is %s already (%s)",
					e.Source, list[root].Path, list[root].Source)
			}
			root = i
		} else if e.FSID != "" {
			id, _ := ParseFSID(e.FSID)
			if o := fsids[id]; o != nil {
				return fmt.Errorf("%s: fsid %s is that of %s already (%s)", e.Source, e.FSID, o.Path, o.Source)
			}
			fsids[id] = e
		}
	}
	if root < 0 {
		return nil
	}
	top := strings.TrimSuffix(list[root].Path, "/") + "/"
	taken := make(map[string]bool)
	for i := range list {
		if rest, below := strings.CutPrefix(list[i].Path, top); below && i != root {
			list[i].Pseudo = "/" + rest
		}
		if i == root {
			list[i].Pseudo = "/"
		}
		if taken[list[i].Pseudo] {
			return fmt.Errorf("%s: two exports would appear at %s", list[i].Source, list[i].Pseudo)
		}
		taken[list[i].Pseudo] = true
	}
	return nil
}
