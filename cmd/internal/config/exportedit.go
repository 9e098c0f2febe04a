package config

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/rstored/rstored/cmd/internal/exportsfile"
)

// wholeOptions are the options of whole exports. The others are options of client rules.
var wholeOptions = []string{
	"sync", "async", "fsid", "crossmnt", "nocrossmnt", "mountpoint", "mp", "host_locks", "no_host_locks", "direct",
	"no_direct", "pkey", "security_label", "no_security_label", "refer", "replicas", "export_bandwidth", "export_iops",
	"quota",
}

// unset restores the default of the options that have a value, by name.
var unset = map[string]func(e *Export, c *Client){
	"fsid":             func(e *Export, _ *Client) { e.FSID = "" },
	"mountpoint":       func(e *Export, _ *Client) { e.MountPoint = "" },
	"pkey":             func(e *Export, _ *Client) { e.PKeys = nil },
	"refer":            func(e *Export, _ *Client) { e.Refer = "" },
	"replicas":         func(e *Export, _ *Client) { e.Replicas = "" },
	"export_bandwidth": func(e *Export, _ *Client) { e.Bandwidth = "" },
	"export_iops":      func(e *Export, _ *Client) { e.IOPS = 0 },
	"quota":            func(e *Export, _ *Client) { e.Quota = "" },
	"anonuid":          func(_ *Export, c *Client) { c.AnonUID = nil },
	"anongid":          func(_ *Export, c *Client) { c.AnonGID = nil },
	"sec":              func(_ *Export, c *Client) { c.Sec = nil },
	"transport":        func(_ *Export, c *Client) { c.Transports = nil },
	"xprtsec":          func(_ *Export, c *Client) { c.XprtSec = nil },
	"rsize":            func(_ *Export, c *Client) { c.RSize = 0 },
	"wsize":            func(_ *Export, c *Client) { c.WSize = 0 },
	"bandwidth":        func(_ *Export, c *Client) { c.Bandwidth = "" },
	"iops":             func(_ *Export, c *Client) { c.IOPS = 0 },
}

// Unsettable are the names that ExportEdit.Unset may have, sorted.
func Unsettable() []string { return slices.Sorted(maps.Keys(unset)) }

// ExportEdit is a change of an export that leaves the rest of it as it is.
type ExportEdit struct {
	// AddClients are rules. A rule takes the place of the one with the same client.
	AddClients []Client `json:"add_clients,omitempty"`
	// RemoveClients names the clients whose rules are removed, as the rules have them.
	RemoveClients []string `json:"remove_clients,omitempty"`
	// Options are set as exports(5) and docs/exports.md have them. An option of client rules is set
	// in every rule that the export has after the changes of rules.
	Options []string `json:"options,omitempty"`
	// Unset names options with a value that get their default again.
	Unset []string `json:"unset,omitempty"`
}

// Empty reports whether the edit changes nothing.
func (d *ExportEdit) Empty() bool {
	return len(d.AddClients)+len(d.RemoveClients)+len(d.Options)+len(d.Unset) == 0
}

// Edit changes the export, which must have been normalized, and normalizes the result. After an
// error the export is as it was.
func (e *Export) Edit(d *ExportEdit) error {
	out := *e
	out.Clients, out.PKeys = slices.Clone(e.Clients), slices.Clone(e.PKeys)
	if len(d.AddClients)+len(d.RemoveClients) > 0 {
		out.Clients = slices.Clone(out.Rules()) // one rule more takes nothing from the own host
	}
	for _, name := range d.RemoveClients {
		if err := out.removeClient(name); err != nil {
			return err
		}
	}
	for _, c := range d.AddClients {
		if err := c.normalize(); err != nil {
			return err
		}
		if i := out.rule(c.Name()); i >= 0 {
			out.Clients[i] = c
		} else {
			out.Clients = append(out.Clients, c)
		}
	}
	if len(d.RemoveClients) > 0 && len(out.Clients) == 0 {
		return fmt.Errorf("export %s would have no client left: remove the export, or name its clients anew", e.Pseudo)
	}
	for _, name := range d.Unset {
		reset, ok := unset[name]
		if !ok {
			return fmt.Errorf("option %q cannot be unset; these can: %s", name, strings.Join(Unsettable(), ", "))
		}
		if err := out.everyRule(name, func(c *Client) error { reset(&out, c); return nil }); err != nil {
			return err
		}
	}
	for _, o := range d.Options {
		name, _, _ := strings.Cut(o, "=")
		if name == "fsid" {
			out.FSID = "" // a number would stand against a UUID
		}
		err := out.everyRule(name, func(c *Client) error { return out.ApplyOptions(c, []string{o}) })
		if err != nil {
			return err
		}
	}
	if err := out.Normalize(); err != nil {
		return err
	}
	*e = out
	return nil
}

// everyRule calls f for each rule, or once if the option belongs to the whole export.
func (e *Export) everyRule(option string, f func(*Client) error) error {
	if slices.Contains(wholeOptions, option) {
		return f(new(Client))
	}
	if len(e.Clients) == 0 {
		if _, ok := options[option]; !ok {
			return f(new(Client)) // which says that there is no such option
		}
		e.Clients = ownHost(Client{Squash: RootSquash})
	}
	for i := range e.Clients {
		if err := f(&e.Clients[i]); err != nil {
			return err
		}
	}
	return nil
}

// rule finds the rule of a client by a normalized name.
func (e *Export) rule(name string) int {
	return slices.IndexFunc(e.Clients, func(c Client) bool { return strings.EqualFold(c.Name(), name) })
}

func (e *Export) removeClient(name string) error {
	word, opts, err := splitOptions(name)
	if err != nil {
		return err
	}
	if len(opts) > 0 {
		return fmt.Errorf("client %q: a rule is removed by its client alone, without options", name)
	}
	c := Client{Host: word}
	if err := c.normalizeName(); err != nil {
		return err
	}
	i := e.rule(c.Name())
	if i < 0 {
		names := make([]string, 0, len(e.Clients))
		for i := range e.Clients {
			names = append(names, e.Clients[i].Name())
		}
		return fmt.Errorf("export %s has no rule for %s; its rules are for: %s", e.Pseudo, c.Name(),
			strings.Join(names, ", "))
	}
	e.Clients = slices.Delete(e.Clients, i, i+1)
	return nil
}

// ParseTableEntry reads one client of one directory with its options, with the defaults of
// exports(5) as ReadExports has them. The export has that client alone. whole are the options among
// them that belong to the whole export.
func ParseTableEntry(dir, client string, opts []string) (e Export, whole, warnings []string, err error) {
	if !strings.HasPrefix(dir, "/") {
		return e, nil, nil, fmt.Errorf("path %q does not begin with /", dir)
	}
	t := &exportsfile.Table{Entries: []exportsfile.Entry{{
		Path: dir, Clients: []exportsfile.Client{{Host: client, Options: opts}},
	}}}
	list, warnings, err := fromTable(t)
	var at *exportsfile.Error
	if errors.As(err, &at) {
		err = at.Err // there is no file to name
	}
	if err != nil {
		return e, nil, warnings, err
	}
	for i, w := range warnings {
		_, warnings[i], _ = strings.Cut(w, ": ")
	}
	e = list[0]
	e.Source = ""
	return e, WholeOptions(opts), warnings, nil
}

// WholeOptions returns those of some options that belong to the whole export.
func WholeOptions(opts []string) (whole []string) {
	for _, o := range opts {
		if name, _, _ := strings.Cut(o, "="); slices.Contains(wholeOptions, name) {
			whole = append(whole, o)
		}
	}
	return whole
}

// TableOptions are the options of a rule and of its export as a table needs them, where the
// defaults of exports(5) hold.
func (e *Export) TableOptions(c *Client) []string {
	rule := *c
	rule.ReadOnly = c.ReadOnly || e.ReadOnly
	if len(rule.Sec) == 0 {
		rule.Sec = []string{FlavorSys, FlavorNone}
	}
	_, opts, _ := splitOptions(rule.String())
	if !rule.Secure {
		opts = append(opts, "insecure")
	}
	if e.Async {
		opts = append(opts, "async")
	} else {
		opts = append(opts, "sync")
	}
	return append(opts, e.Options()...)
}
