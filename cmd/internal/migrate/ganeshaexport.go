package migrate

import (
	"errors"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/rstored/rstored/cmd/internal/config"
	"github.com/rstored/rstored/nfs"
)

// errNoAccess is the error for permissions that admit nobody.
var errNoAccess = errors.New("no access")

// export imports an EXPORT block.
func (g *ganesha) export(b *block) error {
	im := g.im
	for _, name := range []string{"export_id", "tag", "prefread", "prefwrite", "prefreaddir", "attr_expiration_time"} {
		b.get(name) // marks it as used: clients need no counterpart
	}
	e := config.Export{Path: b.get("path").text(), Pseudo: b.get("pseudo").text(), FirstMatch: true}
	if e.Path == "" {
		return errorAt(b.pos, "an EXPORT without Path")
	}
	if e.Pseudo == "" {
		e.Pseudo = path.Join("/", e.Path)
	}
	switch name := store(b); name {
	case "vfs", "xfs":
	case "mem":
		e.Type = config.TypeMemory
	case "pseudo":
		b.use()
		return nil // rstored makes the directories that lead to exports by itself
	default:
		b.use()
		im.note(b.pos, "export %s is left out: rstored has no store for the FSAL %s; export a directory where its "+
			"file system is mounted", e.Pseudo, name)
		return nil
	}
	chain := []*block{b, g.defaults}
	clients := named(b, "client")
	if len(clients) == 0 && g.defaults != nil {
		clients = named(g.defaults, "client")
	}
	rest, err := g.rule(chain) // rule for the clients that no CLIENT block names
	open := err == nil
	if err != nil && !errors.Is(err, errNoAccess) {
		return err
	}
	var refused []Pos // CLIENT blocks that admit nobody
	for _, c := range clients {
		rule, err := g.rule(append([]*block{c}, chain...))
		if errors.Is(err, errNoAccess) {
			c.all("clients")
			refused = append(refused, c.pos)
			continue
		}
		if err != nil {
			return err
		}
		g.addClients(&e, c, &rule)
	}
	if open {
		rest.CIDR = config.Everyone
		g.addRule(&e, b.pos, &rest)
	}
	wide := func(c config.Client) bool { return !single(&c) }
	if len(refused) > 0 && slices.ContainsFunc(e.Clients, wide) {
		im.note(refused[0], "export %s is left out: some clients have no access here though others with them in a "+
			"network, a pattern or * do, which rules of rstored cannot say. Name the clients that have access "+
			"instead", e.Pseudo)
		return nil
	}
	if len(e.Clients) == 0 {
		im.note(b.pos, "export %s is left out: nobody has access to it", e.Pseudo)
		return nil
	}
	if err := e.Normalize(); err != nil {
		im.note(b.pos, "export %s is left out: %v", e.Pseudo, err)
		return nil
	}
	im.addExports(b.pos, []config.Export{e})
	return nil
}

// named returns the blocks with a name inside a block.
func named(b *block, name string) (out []*block) {
	for _, in := range b.blocks {
		if in.name == name {
			out = append(out, in)
		}
	}
	return out
}

// store returns the name of the FSAL that has the files. Stacked FSALs lie above that FSAL.
func store(b *block) string {
	name := "vfs"
	for range nestingMax {
		in := named(b, "fsal")
		if len(in) == 0 {
			break
		}
		b = in[0]
		if n := b.get("name").text(); n != "" {
			name = strings.ToLower(n)
		}
		if name != "null" && name != "mdcache" {
			break
		}
	}
	return name
}

// lookup returns a permission from the first block that has it.
func lookup(chain []*block, name string) (found *param) {
	for _, b := range chain {
		if p := b.get(name); p != nil && found == nil {
			found = p
		}
	}
	return found
}

// permissions are the assignments from which rules are made, and those that need no setting in a
// rule.
var permissions = []string{
	"squash", "anonymous_uid", "anonymous_gid", "sectype", "protocols", "transports", "privilegedport", "manage_gids",
	"disablereaddirplus", "maxread", "maxwrite", "delegations", "nfs_commit",
}

// rule makes a rule from the permissions of blocks. An earlier block of the chain goes before a
// later one.
func (g *ganesha) rule(chain []*block) (c config.Client, err error) {
	im := g.im
	access := lookup(chain, "access_type")
	for _, name := range permissions {
		lookup(chain, name) // marks it as used: each permission has a counterpart
	}
	switch strings.ToLower(access.text()) {
	case "rw":
	case "ro":
		c.ReadOnly = true
	case "mdonly", "mdonly_ro":
		im.note(access.pos, "%v: there is no access to names and attributes alone, so these clients have none", access)
		return c, errNoAccess
	case "none", "":
		return c, errNoAccess
	default:
		return c, errorAt(access.pos, "%v: there is no such access", access)
	}
	if p := lookup(chain, "squash"); p != nil {
		switch strings.ToLower(p.text()) {
		case "root", "root_squash", "rootsquash":
		case "rootid", "root_id_squash", "rootidsquash":
			im.note(p.pos, "%v: root_squash is taken, which squashes group 0, too", p)
		case "all", "all_squash", "allsquash", "all_anonymous", "all_anomnymous", "allanonymous":
			c.Squash = config.AllSquash
		case "no_root_squash", "none", "noidsquash":
			c.Squash = config.NoRootSquash
		default:
			return c, errorAt(p.pos, "%v: there is no such squash", p)
		}
	}
	for name, to := range map[string]**uint32{"anonymous_uid": &c.AnonUID, "anonymous_gid": &c.AnonGID} {
		if p := lookup(chain, name); p != nil {
			n, err := strconv.ParseInt(p.text(), 0, 64)
			if err != nil || n < -1<<31 || n > 1<<32-1 {
				return c, errorAt(p.pos, "%v: not a user or group number", p)
			}
			*to = new(uint32(n))
		}
	}
	if c.Sec, err = im.flavors(lookup(chain, "sectype")); err != nil {
		return c, err
	}
	im.protocols(lookup(chain, "protocols"))
	if p := lookup(chain, "transports"); p != nil {
		for _, v := range p.values {
			switch v = strings.ToLower(v); v {
			case config.CarrierRDMA, config.CarrierTCP:
				c.Transports = append(c.Transports, v)
			case "udp":
				im.note(p.pos, "NFS over UDP is not served")
			default:
				return c, errorAt(p.pos, "%v: there is no transport %s", p, v)
			}
		}
		if len(c.Transports) == 0 {
			return c, errNoAccess
		}
	}
	if c.Secure, err = chainFlag(chain, "privilegedport"); err != nil {
		return c, err
	}
	if c.ManageGIDs, err = chainFlag(chain, "manage_gids"); err != nil {
		return c, err
	}
	if c.NoReadDirPlus, err = chainFlag(chain, "disablereaddirplus"); err != nil {
		return c, err
	}
	for name, to := range map[string]*uint32{"maxread": &c.RSize, "maxwrite": &c.WSize} {
		if p := lookup(chain, name); p != nil {
			n, err := strconv.ParseUint(p.text(), 0, 64)
			if err != nil {
				return c, errorAt(p.pos, "%v: not a number", p)
			}
			const unit = 1024
			if n < nfs.MaxIO {
				*to = uint32(max(n/unit, 1) * unit)
			}
		}
	}
	return c, nil
}

func chainFlag(chain []*block, name string) (bool, error) {
	for _, b := range chain {
		if b == nil {
			continue
		}
		if v, set, err := b.flag(name); set || err != nil {
			return v, err
		}
	}
	return false, nil
}

// flavors imports SecType. Clients that had to use Kerberos are not admitted without it.
func (im *Import) flavors(p *param) (out []string, err error) {
	if p == nil {
		return nil, nil
	}
	for _, v := range p.values {
		rule := config.Client{CIDR: config.Everyone, Sec: []string{strings.ToLower(v)}}
		c := config.Export{Path: "/", Clients: []config.Client{rule}}
		if err := c.Normalize(); err != nil {
			im.note(p.pos, "%v: %s is not served", p, v)
			continue
		}
		out = append(out, strings.ToLower(v))
	}
	if len(out) == 0 {
		im.note(p.pos, "%v: clients that had to use one of these have no access", p)
		return nil, errNoAccess
	}
	return out, nil
}

// protocols notes if an export is not for all versions.
func (im *Import) protocols(p *param) {
	if p == nil {
		return
	}
	three, four := false, false
	for _, v := range p.values {
		three = three || strings.HasSuffix(v, "3")
		four = four || strings.HasSuffix(v, "4")
	}
	if !three || !four {
		im.note(p.pos, "%v: versions are for the whole server here, in nfs_versions", p)
	}
}

// addClients adds a rule for each client of a CLIENT block.
func (g *ganesha) addClients(e *config.Export, b *block, rule *config.Client) {
	clients := b.all("clients")
	if len(clients) == 0 {
		g.im.note(b.pos, "a CLIENT block without Clients")
	}
	for _, name := range clients {
		c := *rule
		c.Host = name
		g.addRule(e, b.pos, &c)
	}
}

// addRule adds a rule if it is valid, and if no earlier rule covers all of its clients.
func (g *ganesha) addRule(e *config.Export, at Pos, c *config.Client) {
	one := config.Export{Path: "/", Clients: []config.Client{*c}}
	if err := one.Normalize(); err != nil {
		g.im.note(at, "client %s of export %s is left out: %s", c.Name(), e.Pseudo,
			strings.TrimPrefix(err.Error(), "clients[0]: "))
		return
	}
	*c = one.Clients[0]
	for i := range e.Clients {
		o := &e.Clients[i]
		switch {
		case strings.EqualFold(o.Name(), c.Name()), o.CIDR == config.Everyone:
			if c.CIDR != config.Everyone {
				g.im.note(at, "client %s of export %s is left out: %s before it counts", c.Name(), e.Pseudo, o.Name())
			}
			return
		case rank(o) > rank(c):
			g.im.note(at, "client %s of export %s: its rule counts here before that of %s, whatever their order",
				c.Name(), e.Pseudo, o.Name())
		}
	}
	e.Clients = append(e.Clients, *c)
}

// rank returns the precedence of a rule. Rules count in this order, whatever their order in a list.
func rank(c *config.Client) int {
	switch {
	case c.CIDR == config.Everyone:
		return 4
	case strings.HasPrefix(c.Host, "@"):
		return 3
	case strings.ContainsAny(c.Host, "*?["):
		return 2
	case single(c):
		return 0
	}
	return 1
}

// single reports whether a rule is for one host.
func single(c *config.Client) bool {
	if c.Host != "" {
		return !strings.HasPrefix(c.Host, "@") && !strings.ContainsAny(c.Host, "*?[")
	}
	p := c.Prefixes()
	return len(p) == 1 && p[0].IsSingleIP()
}
