package migrate

import (
	"cmp"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/rstored/rstored/cmd/internal/config"
)

// silent are the names of blocks that rstored does not need. They get no note.
var silent = []string{"mdcache", "cacheinode", "nfs_ip_name", "fsal_list", "pseudofs", "vfs", "xfs", "mem"}

// ganesha imports ganesha.conf.
func (im *Import) ganesha(file string, text []byte) error {
	top, err := im.parseGanesha(file, text)
	if err != nil {
		return err
	}
	for _, p := range top.params {
		im.note(p.pos, "%s stands outside of a block", p.name)
	}
	g := &ganesha{im: im, none: true}
	var exports []*block
	for _, b := range top.blocks {
		switch b.name {
		case "nfs_core_param":
			err = g.core(b)
		case "nfsv4":
			err = g.version4(b)
		case "directory_services":
			g.directory(b)
		case "log":
			g.log(b)
		case "export_defaults":
			g.defaults = b
		case "export":
			exports = append(exports, b)
		case "nfs_krb5":
			if v, set, err := b.flag("active_krb5"); err != nil {
				return err
			} else if !set || v {
				im.note(b.pos, "NFS_KRB5 is not carried over")
			}
		default:
			if !slices.Contains(silent, b.name) {
				im.note(b.pos, "block %s is not carried over", b.name)
			}
			continue
		}
		if err != nil {
			return err
		}
	}
	for _, b := range exports {
		if err := g.export(b); err != nil {
			return err
		}
	}
	g.finish()
	for _, b := range top.blocks {
		if !slices.Contains(silent, b.name) {
			im.unused(b)
		}
	}
	return nil
}

// use marks everything in a block as used, if a note is about the whole block.
func (b *block) use() {
	for _, p := range b.params {
		p.used = true
	}
	for _, in := range b.blocks {
		in.use()
	}
}

// unused notes the parameters of a block that the import has not used.
func (im *Import) unused(b *block) {
	switch b.name {
	case "nfs_core_param", "nfsv4", "directory_services", "log", "export_defaults", "export", "client", "fsal":
	default:
		return // the block has a note
	}
	for _, p := range b.params {
		if !p.used {
			im.note(p.pos, "%s has no counterpart", p.name)
		}
	}
	for _, in := range b.blocks {
		im.unused(in)
	}
}

// ganesha has the settings of one ganesha.conf.
type ganesha struct {
	im       *Import
	defaults *block
	bind     string // address of NFS_CORE_PARAM
	nfsPort  int
	rdmaPort int
	listens  bool // one of the three above is set
	three    bool // version 3 is served
	four     bool
	none     bool // the file has no Protocols
	minors   []string
}

// text returns the value of an assignment, or an empty string if there is none.
func (p *param) text() string {
	if p == nil || len(p.values) == 0 {
		return ""
	}
	return p.values[0]
}

// number reads a number in the notation of C.
func (b *block) number(name string, low, high int64) (n int64, set bool, err error) {
	p := b.get(name)
	if p == nil {
		return 0, false, nil
	}
	n, err = strconv.ParseInt(p.text(), 0, 64)
	if err != nil || n < low || n > high {
		return 0, false, errorAt(p.pos, "%s: %q is not a number from %d to %d", name, p.text(), low, high)
	}
	return n, true, nil
}

// flag reads a Boolean assignment.
func (b *block) flag(name string) (v, set bool, err error) {
	p := b.get(name)
	if p == nil {
		return false, false, nil
	}
	switch strings.ToLower(p.text()) {
	case "true", "yes":
		return true, true, nil
	case "false", "no":
		return false, true, nil
	}
	return false, false, errorAt(p.pos, "%s: %q is neither true nor false", name, p.text())
}

const portMax = 65535

func (g *ganesha) core(b *block) error {
	if p := b.get("bind_addr"); p != nil {
		if g.bind = p.text(); net.ParseIP(g.bind) == nil {
			return errorAt(p.pos, "bind_addr: %q is not an address", g.bind)
		}
		if net.ParseIP(g.bind).IsUnspecified() {
			g.bind = ""
		}
		g.listens = true
	}
	for name, to := range map[string]*int{"nfs_port": &g.nfsPort, "nfs_rdma_port": &g.rdmaPort} {
		n, set, err := b.number(name, 0, portMax)
		if err != nil {
			return err
		}
		if set {
			*to, g.listens = int(n), true
		}
	}
	for name, to := range map[string]*[]string{
		"mnt_port": &g.im.cfg.MountListen, "monitoring_port": &g.im.cfg.OpsListen,
	} {
		n, set, err := b.number(name, 0, portMax)
		if err != nil {
			return err
		}
		if set && n > 0 {
			*to = []string{net.JoinHostPort(g.bind, strconv.FormatInt(n, 10))}
			g.im.set(map[string]string{"mnt_port": "mount_listen", "monitoring_port": "ops_listen"}[name])
		}
	}
	if n, set, err := b.number("rpc_max_connections", 1, 1_000_000); err != nil {
		return err
	} else if set {
		g.im.cfg.MaxConnections = int(min(n, portMax))
		g.im.set("max_connections")
	}
	for _, name := range []string{"nlm_port", "rquota_port"} {
		if p := b.get(name); p != nil {
			g.im.note(p.pos, "%s: the lock manager and MOUNT are on the port of NFS", name)
		}
	}
	for _, name := range []string{"protocols", "nfs_protocols"} {
		if p := b.get(name); p != nil {
			g.versions(p)
		}
	}
	return nil
}

// versions reads the Protocols of the whole server.
func (g *ganesha) versions(p *param) {
	g.none = false
	for _, v := range p.values {
		switch v = strings.ToLower(v); v {
		case "3", "v3", "nfs3", "nfsv3":
			g.three = true
		case "4", "v4", "nfs4", "nfsv4":
			g.four = true
		case "rdma", "nfs_rdma", "nfsrdma": // rstored serves it by default
		default:
			g.im.note(p.pos, "protocol %s is not served", v)
		}
	}
}

func (g *ganesha) version4(b *block) error {
	c := g.im.cfg
	lease, set, err := b.number("lease_lifetime", 1, 3600)
	if err != nil {
		return err
	}
	if set {
		g.im.lease(b.get("lease_lifetime").pos, time.Duration(lease)*time.Second)
	}
	if grace, set, err := b.number("grace_period", 0, 3600); err != nil {
		return err
	} else if set && grace > 0 {
		g.im.grace(b.get("grace_period").pos, time.Duration(grace)*time.Second)
	}
	if v, _, err := b.flag("graceless"); err != nil {
		return err
	} else if v {
		g.im.note(b.pos, "graceless is not carried over: clients could not reclaim their locks after a restart")
	}
	if v, _, err := b.flag("enforce_utf8_validation"); err != nil {
		return err
	} else if v {
		c.UTF8 = config.UTF8Strict
		g.im.set("utf8")
	}
	if v, _, err := b.flag("only_numeric_owners"); err != nil {
		return err
	} else if v {
		c.IDMap.Method = config.IDNumeric
		g.im.set("idmap")
	}
	g.minors = b.all("minor_versions")
	for _, name := range []string{"recoverybackend", "recoveryroot", "recoverydir", "recoveryolddir", "delegations"} {
		b.get(name) // marks it as used: rstored does the same without a setting
	}
	if p := b.get("idmapconf"); p != nil {
		g.im.note(p.pos, "the domain in %s goes into idmap.domain, with idmap.method: names", p.text())
	}
	g.domain(b)
	return nil
}

// domain imports the domain of users.
func (g *ganesha) domain(b *block) {
	if p := b.get("domainname"); p.text() != "" && !g.im.keys["idmap"] {
		g.im.cfg.IDMap = config.IDMap{Domain: p.text(), Method: config.IDNames}
		g.im.set("idmap")
	}
}

func (g *ganesha) directory(b *block) {
	active, set, err := b.flag("idmapping_active")
	if err == nil && set && !active {
		g.im.note(b.pos, "idmapping_active is not carried over: owners are numbers here unless idmap.method says names")
		b.get("domainname")
		return
	}
	g.domain(b)
}

func (g *ganesha) log(b *block) {
	p := b.get("default_log_level")
	if p == nil {
		return
	}
	var level string
	switch strings.ToUpper(p.text()) {
	case "NULL", "FATAL", "MAJ", "CRIT":
		level = "error"
	case "WARN":
		level = "warn"
	case "EVENT", "INFO":
		level = "info"
	case "DEBUG", "MID_DEBUG", "FULL_DEBUG":
		level = "debug"
	default:
		g.im.note(p.pos, "log level %s is not known", p.text())
		return
	}
	g.im.cfg.LogLevel = level
	g.im.set("log_level")
}

// finish makes the settings that depend on several blocks.
func (g *ganesha) finish() {
	c := g.im.cfg
	if g.listens {
		port := func(n, usual int) string { return net.JoinHostPort(g.bind, strconv.Itoa(cmp.Or(n, usual))) }
		c.TCPListen = []string{port(g.nfsPort, config.TCPPort)}
		c.RDMAListen = []string{port(g.rdmaPort, config.RDMAPort)}
		g.im.set("tcp_listen", "rdma_listen")
	}
	if g.none && len(g.minors) == 0 {
		return
	}
	three, four := g.three || g.none, g.four || g.none
	if !three && !four {
		return // the notes say that there are others
	}
	c.NFSVersions = nil
	if three {
		c.NFSVersions = append(c.NFSVersions, config.Version3)
	}
	if four {
		minors := g.minors
		if len(minors) == 0 {
			minors = []string{"0", "1", "2"}
		}
		for _, m := range minors {
			c.NFSVersions = append(c.NFSVersions, "4."+m)
		}
	}
	g.im.set("nfs_versions")
}

// lease sets lease_time within its bounds.
func (im *Import) lease(at Pos, d time.Duration) {
	const least, most = 10 * time.Second, time.Hour
	if in := min(max(d, least), most); in != d {
		im.note(at, "a lease of %v is not within %v to %v: %v is taken", d, least, most, in)
		d = in
	}
	im.cfg.LeaseTime = d
	im.set("lease_time")
	if im.cfg.GraceTime != 0 {
		im.grace(at, im.cfg.GraceTime)
	}
}

// grace sets grace_time. rstored does not allow one below the lease time.
func (im *Import) grace(at Pos, d time.Duration) {
	if d < im.cfg.LeaseTime {
		im.note(at, "a grace period of %v is shorter than a lease: a client learns of a restart when it renews its "+
			"lease, so the period is %v", d, im.cfg.LeaseTime)
		d = im.cfg.LeaseTime
	}
	im.cfg.GraceTime = d
	im.set("grace_time")
}

// String is for errors.
func (p *param) String() string { return fmt.Sprintf("%s = %s", p.name, strings.Join(p.values, ", ")) }
