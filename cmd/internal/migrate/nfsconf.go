package migrate

import (
	"errors"
	"net"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/rstored/rstored/cmd/internal/config"
)

// nfsSections are the sections of nfs.conf that can change what the server does. The other sections
// are for clients, and for programs that rstored does not need.
var nfsSections = []string{"nfsd", "mountd", "exportd", "exports", "lockd", "statd", "general", "environment"}

// iniLine is an assignment of nfs.conf. Names are in lower case.
type iniLine struct {
	pos                 Pos
	section, key, value string
}

// parseINI reads nfs.conf(5). The text begins in a section. The result is the section at its end.
func (im *Import) parseINI(file string, text []byte, section string, out *[]iniLine, depth int) (string, error) {
	pos := Pos{File: file, Line: 0}
	for raw := range strings.SplitSeq(string(text), "\n") {
		pos.Line++
		s := strings.TrimSpace(raw)
		switch {
		case s == "" || s[0] == '#' || s[0] == ';':
			continue
		case s[0] == '[':
			name, _, ok := strings.Cut(s[1:], "]")
			if !ok {
				return section, errorAt(pos, "%q is not closed by ]", s)
			}
			section = strings.ToLower(strings.TrimSpace(name))
			continue
		}
		key, value, ok := strings.Cut(s, "=")
		if !ok {
			return section, errorAt(pos, "%q is neither a [section] nor an assignment", s)
		}
		key, value = strings.ToLower(strings.TrimSpace(key)), strings.TrimSpace(value)
		if n := len(value); n >= 2 && value[0] == value[n-1] && (value[0] == '"' || value[0] == '\'') {
			value = value[1 : n-1]
		}
		if value == "" {
			continue
		}
		if key == "include" {
			var err error
			if section, err = im.includeINI(pos, value, section, out, depth); err != nil {
				return section, err
			}
			continue
		}
		*out = append(*out, iniLine{pos, section, key, value})
	}
	return section, nil
}

// includeINI reads an included file. A hyphen before the name means that the file may be missing.
func (im *Import) includeINI(at Pos, name, section string, out *[]iniLine, depth int) (string, error) {
	if depth >= nestingMax {
		return section, errorAt(at, "files include each other deeper than %d", nestingMax)
	}
	optional := strings.HasPrefix(name, "-")
	file, text, err := im.include(at, strings.TrimPrefix(name, "-"))
	if err != nil {
		if optional && os.IsNotExist(unwrapped(err)) {
			return section, nil
		}
		return section, err
	}
	return im.parseINI(file, text, section, out, depth+1)
}

func unwrapped(err error) error {
	if e := (*Error)(nil); errors.As(err, &e) {
		return e.Err
	}
	return err
}

// conf has the values of nfs.conf. A later value replaces an earlier one.
type conf struct {
	im    *Import
	lines []iniLine
	used  map[string]bool
}

// get finds a value.
func (c *conf) get(section, key string) (v iniLine, ok bool) {
	c.used[section+" "+key] = true
	for _, l := range c.lines {
		if l.section == section && l.key == key {
			v, ok = l, true
		}
	}
	if name, found := strings.CutPrefix(v.value, "$"); found {
		name = strings.ToLower(name)
		i := slices.IndexFunc(c.lines, func(l iniLine) bool { return l.section == "environment" && l.key == name })
		if i < 0 {
			c.im.note(v.pos, "%s: %s is not in the section environment", key, v.value)
			return v, false
		}
		v.value = c.lines[i].value
	}
	return v, ok
}

// flag finds a Boolean value.
func (c *conf) flag(section, key string) (on, set bool, err error) {
	v, ok := c.get(section, key)
	if !ok {
		return false, false, nil
	}
	switch strings.ToLower(v.value) {
	case "true", "t", "yes", "y", "on", "1":
		return true, true, nil
	case "false", "f", "no", "n", "off", "0":
		return false, true, nil
	}
	return false, false, errorAt(v.pos, "%s: %q is neither yes nor no", key, v.value)
}

// number finds a number.
func (c *conf) number(section, key string, most int) (n int, at Pos, set bool, err error) {
	v, ok := c.get(section, key)
	if !ok {
		return 0, Pos{}, false, nil
	}
	n, err = strconv.Atoi(v.value)
	if err != nil || n < 0 || n > most {
		return 0, v.pos, false, errorAt(v.pos, "%s: %q is not a number from 0 to %d", key, v.value, most)
	}
	return n, v.pos, true, nil
}

// nfsConf imports nfs.conf, and the export table of the same server.
func (im *Import) nfsConf(file string, text []byte) error {
	c := &conf{im: im, used: make(map[string]bool)}
	if _, err := im.parseINI(file, text, "", &c.lines, 0); err != nil {
		return err
	}
	for _, f := range []func() error{c.listen, c.versions, c.times, c.exports} {
		if err := f(); err != nil {
			return err
		}
	}
	for _, s := range []struct{ section, key, why string }{
		{"nfsd", "threads", "rstored needs no number of threads; workers counts calls that wait for storage"},
		{"lockd", "port", "the lock manager is on the port of NFS"},
		{"lockd", "udp-port", "the lock manager is not on UDP"},
		{"statd", "port", "the status monitor is on the port of NFS"},
	} {
		if v, ok := c.get(s.section, s.key); ok {
			im.note(v.pos, "%s: %s", s.key, s.why)
		}
	}
	for _, l := range c.lines {
		known := c.used[l.section+" "+l.key] || l.key == "debug" || l.section == "general" || l.section == "environment"
		if !known && slices.Contains(nfsSections, l.section) {
			im.note(l.pos, "%s in section %s has no counterpart", l.key, l.section)
		}
	}
	return nil
}

func (c *conf) listen() error {
	im := c.im
	port, _, portSet, err := c.number("nfsd", "port", portMax)
	if err != nil {
		return err
	}
	portSet = portSet && port != 0
	if !portSet {
		port = config.TCPPort
	}
	hosts := []string{""}
	host, hostSet := c.get("nfsd", "host")
	if hostSet {
		hosts = strings.FieldsFunc(host.value, func(r rune) bool { return r == ',' || r == ' ' })
	}
	at := func(port int) (out []string) {
		for _, h := range hosts {
			if h != "" && net.ParseIP(h) == nil {
				im.note(host.pos, "host %s: give its address", h)
				continue
			}
			out = append(out, net.JoinHostPort(h, strconv.Itoa(port)))
		}
		return out
	}
	if tcp, set, err := c.flag("nfsd", "tcp"); err != nil {
		return err
	} else if set && !tcp {
		im.cfg.TCPListen = nil
		im.set("tcp_listen")
	} else if portSet || hostSet {
		im.cfg.TCPListen = at(port)
		im.set("tcp_listen")
	}
	if udp, _, err := c.flag("nfsd", "udp"); err != nil {
		return err
	} else if v, ok := c.get("nfsd", "udp"); ok && udp {
		im.note(v.pos, "NFS over UDP is not served")
	}
	rdmaPort, _, rdmaPortSet, err := c.number("nfsd", "rdma-port", portMax)
	if err != nil {
		return err
	}
	if !rdmaPortSet || rdmaPort == 0 {
		rdmaPort = config.RDMAPort
	}
	rdma, rdmaSet, err := c.rdma(&rdmaPort)
	if err != nil {
		return err
	}
	switch {
	case rdmaSet && !rdma:
		im.cfg.RDMAListen = nil
		im.set("rdma_listen")
	case rdmaPortSet || hostSet || rdmaSet:
		im.cfg.RDMAListen = at(rdmaPort)
		im.set("rdma_listen")
	}
	mount, _, set, err := c.number("mountd", "port", portMax)
	if err == nil && set && mount != 0 {
		im.cfg.MountListen = at(mount)
		im.set("mount_listen")
	}
	return err
}

// rdma reads the value of rdma: a Boolean, or in older files a port.
func (c *conf) rdma(port *int) (on, set bool, err error) {
	v, ok := c.get("nfsd", "rdma")
	if n, err := strconv.Atoi(v.value); ok && err == nil && n > 1 && n <= portMax {
		*port = n
		return true, true, nil
	}
	if ok && v.value == "nfsrdma" {
		return true, true, nil
	}
	return c.flag("nfsd", "rdma")
}

func (c *conf) versions() error {
	keys := []struct{ key, version string }{
		{"vers3", config.Version3},
		{"vers4.0", config.Version40},
		{"vers4.1", config.Version41},
		{"vers4.2", config.Version42},
	}
	four, fourSet, err := c.flag("nfsd", "vers4")
	if err != nil {
		return err
	}
	any := fourSet
	var out []string
	for _, k := range keys {
		on, set, err := c.flag("nfsd", k.key)
		if err != nil {
			return err
		}
		any = any || set
		if k.version != config.Version3 && fourSet && !four {
			on, set = false, true
		}
		if on || !set {
			out = append(out, k.version)
		}
	}
	if v, ok := c.get("nfsd", "vers2"); ok {
		c.im.note(v.pos, "version 2 is not served")
	}
	if any {
		c.im.cfg.NFSVersions = out
		c.im.set("nfs_versions")
	}
	return nil
}

func (c *conf) times() error {
	const most = 3600
	lease, at, set, err := c.number("nfsd", "lease-time", most)
	if err != nil {
		return err
	}
	if set {
		c.im.lease(at, time.Duration(lease)*time.Second)
	}
	grace, at, set, err := c.number("nfsd", "grace-time", most)
	if err != nil {
		return err
	}
	if set && grace > 0 {
		c.im.grace(at, time.Duration(grace)*time.Second)
	}
	return nil
}

// exports imports /etc/exports. If rstored reads the file in the same way, the configuration gets
// its name. Otherwise it gets the exports one by one.
func (c *conf) exports() error {
	im := c.im
	gids, _, err := c.flag("mountd", "manage-gids")
	if err != nil {
		return err
	}
	if more, _, err := c.flag("exportd", "manage-gids"); err != nil {
		return err
	} else if more {
		gids = true
	}
	rootDir, _ := c.get("exports", "rootdir")
	table := im.systemExports()
	if table == "" || im.tables[table] {
		return nil
	}
	im.tables[table] = true
	list, warnings, err := config.ReadExports(table)
	im.notes = append(im.notes, warnings...)
	if err != nil {
		return err
	}
	if !gids && rootDir.value == "" {
		im.cfg.ExportsFile = table
		im.set("exports_file")
		return nil
	}
	for i := range list {
		e := &list[i]
		if rootDir.value != "" {
			e.Path = path.Join(rootDir.value, e.Path)
		}
		for j := range e.Clients {
			e.Clients[j].ManageGIDs = e.Clients[j].ManageGIDs || gids
		}
	}
	im.addExports(Pos{File: table, Line: 1}, list)
	return nil
}
