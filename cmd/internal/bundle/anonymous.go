package bundle

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"net/url"
	"os"
	"regexp"
	"slices"
	"strings"

	yamlv3 "go.yaml.in/yaml/v3"

	"github.com/rstored/rstored/cmd/internal/config"
	"github.com/rstored/rstored/cmd/internal/control"
	"github.com/rstored/rstored/cmd/internal/exportsfile"
)

// anonymiser gives things other names, each always the same.
type anonymiser struct {
	names map[string]string // by what they are called, in small letters
	count map[string]int    // by sort
	known []string          // names that are replaced wherever they stand, the longest first
}

func (a *anonymiser) alias(sort, name string) string {
	k := sort + " " + strings.ToLower(name)
	if a.names[k] == "" {
		a.count[sort]++
		a.names[k] = fmt.Sprintf("%s-%d", sort, a.count[sort])
	}
	return a.names[k]
}

// structure are the parts of paths that say nothing of anybody.
var structure = []string{
	"", ".", "..", "etc", "exports", "exports.d", "rstored", "rstored.yaml", "rstored.sock", "var", "lib", "run", "usr",
	"bin", "sbin", "local", "srv", "home", "mnt", "tmp", "export", "proc", "sys", "dev", "net", "core", "self",
	"mountinfo", "metrics", "livez", "readyz", "debug", "pprof", "v1", "state", "data",
}

var (
	pathWord = regexp.MustCompile(`(^|[\s"'=(,:\[])(/[^\s"'<>|(){}\[\],;:\\]+)`)
	v4Word   = regexp.MustCompile(`\b\d{1,3}(?:\.\d{1,3}){3}\b`)
	v6Word   = regexp.MustCompile(`[0-9A-Fa-f]*:[0-9A-Fa-f:]*:[0-9A-Fa-f:.]*`)
	// subjectWord is a part of the name of a certificate's holder (RFC 4514).
	subjectWord = regexp.MustCompile(`\b((?:CN|OU|O)=)((?:[^,+"\\\s]|\\,| )+)`)
	macWord     = regexp.MustCompile(`\b(?:[0-9A-Fa-f]{2}:){5,}[0-9A-Fa-f]{2}\b`)
)

// address is what stands for an address; those that every host has stay.
func (a *anonymiser) address(s string) string {
	ip, err := netip.ParseAddr(s)
	local := ip == netip.IPv6Loopback() || ip == netip.AddrFrom4([4]byte{127, 0, 0, 1})
	if err != nil || ip.IsUnspecified() || local || ip.IsMulticast() {
		return s
	}
	return a.alias("addr", ip.Unmap().String())
}

// path replaces the parts of a path that are somebody's choice.
func (a *anonymiser) path(p string) string {
	parts := strings.Split(p, "/")
	for i, x := range parts {
		if !slices.Contains(structure, x) && !strings.HasPrefix(x, "name-") {
			parts[i] = a.alias("name", x)
		}
	}
	return strings.Join(parts, "/")
}

// learn has a name replaced wherever it stands. Short ones are too likely to be something else.
func (a *anonymiser) learn(name string) {
	const least = 2
	if len(name) < least || slices.Contains(structure, name) || slices.Contains(a.known, name) {
		return
	}
	a.known = append(a.known, name)
}

func (a *anonymiser) learnPath(p string) {
	for x := range strings.SplitSeq(p, "/") {
		a.learn(x)
	}
}

func (a *anonymiser) learnHost(h string) {
	h = strings.TrimLeft(h, "*.@?")
	if _, err := netip.ParseAddr(h); err == nil {
		return // it is found without
	}
	a.learn(h)
	if host, domain, ok := strings.Cut(h, "."); ok {
		a.learn(host)
		a.learn(domain)
	}
}

// learnHolder learns what a certificate calls its holder: a host, a user at one, a URI, or a
// subject.
func (a *anonymiser) learnHolder(name string) {
	if strings.Contains(name, "://") {
		a.learnURL(name)
		return
	}
	for _, m := range subjectWord.FindAllStringSubmatch(name, -1) {
		a.learnHost(m[2])
	}
	if !strings.Contains(name, "=") {
		user, host, _ := strings.Cut(name, "@")
		a.learnHost(user)
		a.learnHost(host)
	}
}

func (a *anonymiser) learnURL(s string) {
	if u, err := url.Parse(s); err == nil {
		a.learnHost(u.Hostname())
		a.learnPath(u.Path)
	}
}

func (a *anonymiser) learnExport(e *config.Export) {
	a.learnPath(e.Path)
	a.learnPath(e.Pseudo)
	a.learnPath(e.MountPoint)
	for i := range e.Clients {
		a.learnHost(e.Clients[i].Host)
	}
}

// spellings are the ways in which a name is written in what is collected.
func spellings(name string) []string {
	j, _ := json.Marshal(name)
	quoted := strings.Trim(string(j), `"`)
	var html bytes.Buffer
	enc := json.NewEncoder(&html)
	enc.SetEscapeHTML(false)
	_ = enc.Encode(name)
	var octal strings.Builder
	for i := range len(name) {
		if c := name[i]; c <= ' ' || c == '\\' || c == '"' || c == '#' {
			fmt.Fprintf(&octal, `\%03o`, c)
		} else {
			octal.WriteByte(c)
		}
	}
	list := []string{
		name, quoted, strings.Trim(strings.TrimSpace(html.String()), `"`), octal.String(),
		url.PathEscape(name), url.QueryEscape(name),
	}
	slices.Sort(list)
	return slices.Compact(list)
}

// anywhere finds a name: a long one in other words, too, a short one between words.
func anywhere(s string) *regexp.Regexp {
	const long = 6
	word := func(c byte) bool { return 'a' <= c|0x20 && c|0x20 <= 'z' || '0' <= c && c <= '9' }
	q := regexp.QuoteMeta(s)
	if len(s) >= long {
		return regexp.MustCompile(`(?i)()` + q + `()`)
	}
	before, after := `()`, `()`
	if word(s[0]) {
		before = `(\b|_)`
	}
	if word(s[len(s)-1]) {
		after = `(\b|_)`
	}
	return regexp.MustCompile(`(?i)` + before + q + after)
}

// replace gives a text its other names.
func (a *anonymiser) replace(b []byte, paths bool) []byte {
	for _, n := range a.known {
		to := []byte("${1}" + a.alias("name", n) + "${2}")
		for _, s := range spellings(n) {
			b = anywhere(s).ReplaceAll(b, to)
		}
	}
	if paths {
		b = pathWord.ReplaceAllFunc(b, func(m []byte) []byte {
			i := bytes.IndexByte(m, '/')
			return append(slices.Clone(m[:i]), a.path(string(m[i:]))...)
		})
	}
	b = subjectWord.ReplaceAllFunc(b, func(m []byte) []byte {
		kind, name, _ := bytes.Cut(m, []byte("="))
		if strings.HasPrefix(string(name), "name-") {
			return m
		}
		return append(append(slices.Clone(kind), '='), a.alias("name", string(name))...)
	})
	b = macWord.ReplaceAllFunc(b, func(m []byte) []byte { return []byte(a.alias("mac", string(m))) })
	b = v6Word.ReplaceAllFunc(b, func(m []byte) []byte { return []byte(a.address(string(m))) })
	return v4Word.ReplaceAllFunc(b, func(m []byte) []byte { return []byte(a.address(string(m))) })
}

// part decodes a file that was collected; without it there is nothing to learn.
func part[T any](c *collector, name string) (v T) {
	for i := range c.m.Files {
		if c.m.Files[i].Name == name {
			_ = json.Unmarshal(c.m.Files[i].data, &v)
		}
	}
	return v
}

// drop takes a file out again.
func (c *collector) drop(name, why string) {
	c.m.Files = slices.DeleteFunc(c.m.Files, func(f File) bool { return f.Name == name })
	c.missing(name, errors.New(why))
}

func (c *collector) data(name string) []byte {
	for i := range c.m.Files {
		if c.m.Files[i].Name == name {
			return c.m.Files[i].data
		}
	}
	return nil
}

// learnYAML learns the names of a configuration, be it a good one or not.
func (c *collector) learnYAML(a *anonymiser, name string) {
	var n yamlv3.Node
	if err := yamlv3.Unmarshal(c.data(name), &n); err != nil {
		c.drop(name, "it cannot be read, and so its names cannot be replaced")
		return
	}
	var walk func(key string, n *yamlv3.Node)
	walk = func(key string, n *yamlv3.Node) {
		switch {
		case n.Kind == yamlv3.MappingNode:
			for i := 0; i+1 < len(n.Content); i += 2 {
				walk(n.Content[i].Value, n.Content[i+1])
			}
			return
		case n.Kind != yamlv3.ScalarNode:
		case key == "host" || key == "domain" || key == "control_group":
			a.learnHost(n.Value)
		case key == "admins" || key == "readers":
			a.learnHolder(n.Value)
		case strings.Contains(n.Value, "://"):
			a.learnURL(n.Value)
		case strings.Contains(n.Value, "/"):
			a.learnPath(n.Value)
		}
		for _, x := range n.Content {
			walk(key, x)
		}
	}
	walk("", &n)
}

// learnLog learns whose certificates clients have shown.
func (c *collector) learnLog(a *anonymiser, name string) {
	for line := range bytes.Lines(c.data(name)) {
		var said struct {
			Event string `json:"msg"`
			Name  string `json:"name"`
		}
		if i := bytes.IndexByte(line, '{'); i >= 0 && json.Unmarshal(line[i:], &said) == nil && said.Event == "tls" {
			a.learnHolder(said.Name)
		}
	}
}

func (c *collector) learnTable(a *anonymiser) {
	const name = "exports-table.txt"
	var t exportsfile.Table
	if err := t.Parse(name, c.data(name)); err != nil {
		c.drop(name, "it cannot be read, and so its names cannot be replaced")
		return
	}
	for i := range t.Entries {
		a.learnPath(t.Entries[i].Path)
		for j := range t.Entries[i].Clients {
			a.learnHost(t.Entries[i].Clients[j].Host)
		}
	}
}

// anonymise gives all that was collected other names.
func (c *collector) anonymise() {
	a := &anonymiser{names: make(map[string]string), count: make(map[string]int)}
	for _, e := range part[[]control.Export](c, "exports.json") {
		a.learnExport(&e.Export)
		for _, x := range e.Aliases {
			a.learnPath(x)
		}
	}
	for _, name := range []string{"config.yaml", "config-file.yaml"} {
		c.learnYAML(a, name)
	}
	c.learnTable(a)
	for _, x := range part[[]control.NFS4Client](c, "nfs4-clients.json") {
		for w := range strings.FieldsSeq(x.Owner) {
			if w != "Linux" && w != "rstored" && w != "client" && !strings.HasPrefix(w, "NFSv") {
				a.learnHost(strings.Trim(w, `"\`))
			}
		}
	}
	for _, x := range part[[]control.Client](c, "clients.json") {
		a.learnHolder(x.Name)
	}
	for _, name := range []string{"log.json", "journal.txt"} {
		c.learnLog(a, name)
	}
	st := part[control.Status](c, "status.json")
	if st.TLS != nil {
		for _, n := range append(st.TLS.Names, st.TLS.Subject) {
			a.learnHolder(n)
		}
	}
	for _, p := range []string{st.StateDir, st.Config, c.cfg.File} {
		a.learnPath(p)
	}
	for _, h := range part[[]struct {
		User    string `json:"user"`
		Name    string `json:"name"`
		Comment string `json:"comment"`
	}](c, "history.json") {
		if who, ok := strings.CutPrefix(h.User, "certificate "); ok {
			a.learnHolder(who)
		} else if h.User != "root" {
			a.learn(h.User)
		}
		a.learnPath(h.Name)
		a.learn(h.Comment)
	}
	if h, err := os.Hostname(); err == nil {
		a.learnHost(h)
	}
	slices.SortStableFunc(a.known, func(x, y string) int { return cmp.Compare(len(y), len(x)) })
	for i := range c.m.Files {
		f := &c.m.Files[i]
		if k := c.kinds[f.Name]; k != binary {
			f.data = a.replace(f.data, k != code)
		}
	}
	for i := range c.m.Missing {
		m := &c.m.Missing[i]
		m.Why = string(a.replace([]byte(m.Why), true))
	}
}
