package krb5

import (
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"
)

// relation is one line of krb5.conf(5): the names of its section and groups, its own, and its
// value.
//
//	[realms]                        {realms, EXAMPLE.ORG, auth_to_local}, "DEFAULT"
//	 EXAMPLE.ORG = {
//	  auth_to_local = DEFAULT
//	 }
type relation struct {
	path  []string
	value string
}

// profile reads the files that MIT's library reads, with the files that they include.
type profile struct {
	fsys fs.FS // of the host, from its root
	list []relation
	open int // files that are being read: each includes the next
}

// Bounds of a profile.
const (
	includesMax = 8
	profileMax  = 1 << 20 // bytes of a file
)

var errProfile = errors.New("malformed")

func (p *profile) read(name string) error {
	if p.open == includesMax {
		return fmt.Errorf("%s: %w: files include each other", name, errProfile)
	}
	p.open++
	defer func() { p.open-- }()
	clean := strings.TrimPrefix(path.Clean(name), "/")
	if info, err := fs.Stat(p.fsys, clean); err == nil && info.Size() > profileMax {
		return fmt.Errorf("%s: %w: more than %d bytes", name, errProfile, profileMax)
	}
	b, err := fs.ReadFile(p.fsys, clean)
	if err != nil {
		return err
	}
	var at []string
	pending := "" // a group whose brace is on the next line
	for n, line := range strings.Split(string(b), "\n") {
		bad := func(what string) error { return fmt.Errorf("%s, line %d: %w: %s", name, n+1, errProfile, what) }
		line = strings.TrimSpace(line)
		word, rest, _ := strings.Cut(line, " ")
		tag, value, is := strings.Cut(line, "=")
		tag, value = strings.TrimSpace(tag), strings.TrimSpace(value)
		switch {
		case line == "" || line[0] == '#' || line[0] == ';' || word == "module":
		case word == "include":
			err = p.read(strings.TrimSpace(rest))
		case word == "includedir":
			err = p.readDir(strings.TrimSpace(rest))
		case line[0] == '[':
			section, _, ok := strings.Cut(line[1:], "]")
			if !ok {
				return bad("a section without ]")
			}
			at = []string{section}
			err = final(line, at)
		case line[0] == '}':
			if len(at) < 2 {
				return bad("} without {")
			}
			err = final(line, at)
			at = at[:len(at)-1]
		case line == "{" && pending != "":
			at, pending = append(slices.Clone(at), pending), ""
		case !is || tag == "" || len(at) == 0:
			return bad("no relation of a section")
		case value == "":
			pending = tag
		case value == "{":
			at = append(slices.Clone(at), tag)
		default:
			p.list = append(p.list, relation{append(slices.Clone(at), tag), unquote(value)})
			err = final(tag, at)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// final refuses the mark * (final) in the sections that LocalNames reads: krb5.conf ignores later
// values of a final section or relation, and this package does not.
func final(text string, at []string) error {
	if strings.HasSuffix(text, "*") && (at[0] == "realms" || at[0] == "libdefaults") {
		return fmt.Errorf("%w: final sections and values (*) of krb5.conf are not supported: %s", errProfile, text)
	}
	return nil
}

// readDir reads the files of a directory that MIT's library reads: named by letters, digits, dashes
// and underscores, or ending in .conf.
func (p *profile) readDir(name string) error {
	entries, err := fs.ReadDir(p.fsys, strings.TrimPrefix(path.Clean(name), "/"))
	if err != nil {
		return err
	}
	for _, e := range entries {
		odd := strings.ContainsFunc(e.Name(), func(r rune) bool {
			return r != '-' && r != '_' && (r < '0' || r > '9') && (r < 'a' || r > 'z') && (r < 'A' || r > 'Z')
		})
		if odd && !strings.HasSuffix(e.Name(), ".conf") || e.Name()[0] == '.' {
			continue
		}
		if err := p.read(path.Join(name, e.Name())); err != nil {
			return err
		}
	}
	return nil
}

// unquote takes the quotes off a value.
func unquote(v string) string {
	if v[0] != '"' {
		return v
	}
	var b strings.Builder
	for i := 1; i < len(v) && v[i] != '"'; i++ {
		c := v[i]
		if c == '\\' && i+1 < len(v) {
			i++
			if c = v[i]; c == 'n' {
				c = '\n'
			} else if c == 't' {
				c = '\t'
			}
		}
		b.WriteByte(c)
	}
	return b.String()
}
