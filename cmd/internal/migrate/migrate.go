package migrate

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/rstored/rstored/cmd/internal/config"
	"github.com/rstored/rstored/cmd/internal/exportsfile"
)

// Kinds of files.
const (
	Ganesha = "ganesha"  // ganesha.conf(8)
	NFSConf = "nfs.conf" // nfs.conf(5)
	Exports = "exports"  // exports(5)
)

// Kinds are all kinds of files.
var Kinds = []string{Ganesha, NFSConf, Exports}

// Bounds of files. A file that exceeds one is no configuration.
const (
	sizeMax    = 16 << 20 // bytes of all files
	includeMax = 100      // included files
	nestingMax = 20       // levels of blocks inside blocks
)

// Pos is a place in a file.
type Pos = exportsfile.Pos

// Error is an error at a place in a file.
type Error = exportsfile.Error

func errorAt(p Pos, format string, a ...any) error {
	return &Error{Pos: p, Err: fmt.Errorf(format, a...)}
}

// Import is the configuration that is made from some files.
type Import struct {
	cfg  *config.Config
	keys map[string]bool // keys of cfg that the files have set
	// notes say what was not imported, and what else an administrator should know, each with its
	// place.
	notes []string
	files []string
	// tables are the export tables that were read.
	tables map[string]bool
	// table is the export table of the kernel's server.
	table string
	// included counts the included files. size is the sum of the bytes of all files.
	included, size int
}

// New returns an Import without a file.
func New() *Import {
	c := config.Default()
	c.StateDir, c.Control = "/", "/" // not imported
	return &Import{cfg: c, keys: make(map[string]bool), tables: make(map[string]bool), table: "/etc/exports"}
}

// Notes says what was not imported, and what else an administrator should know, each with its
// place.
func (im *Import) Notes() []string { return im.notes }

func (im *Import) note(p Pos, format string, a ...any) {
	text := p.String() + ": " + fmt.Sprintf(format, a...)
	if !slices.Contains(im.notes, text) {
		im.notes = append(im.notes, text)
	}
}

// set marks keys of the configuration as imported.
func (im *Import) set(keys ...string) {
	for _, k := range keys {
		im.keys[k] = true
	}
}

// Add reads a file. kind is one of Kinds. If kind is empty, the name and the text of the file
// decide. After an error the Import must not be used.
func (im *Import) Add(file, kind string) error {
	text, err := im.read(file)
	if err != nil {
		return err
	}
	im.files = append(im.files, file)
	switch guess(file, kind, text) {
	case Ganesha:
		return im.ganesha(file, text)
	case NFSConf:
		return im.nfsConf(file, text)
	case Exports:
		return im.exports(file)
	}
	return fmt.Errorf("%s: is this %s? Say so with --from", file, strings.Join(Kinds, ", or "))
}

func guess(file, kind string, text []byte) string {
	base := filepath.Base(file)
	switch {
	case kind != "":
		return kind
	case strings.HasSuffix(base, "exports"):
		return Exports
	case strings.Contains(base, "ganesha"):
		return Ganesha
	case strings.HasPrefix(base, "nfs.conf"):
		return NFSConf
	case bytes.ContainsRune(text, '{'):
		return Ganesha
	case bytes.ContainsRune(text, '['):
		return NFSConf
	}
	return ""
}

func (im *Import) read(file string) ([]byte, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	text, err := io.ReadAll(io.LimitReader(f, sizeMax+1))
	if im.size += len(text); err == nil && im.size > sizeMax {
		err = fmt.Errorf("%s: with this file there are more than %d bytes", file, sizeMax)
	}
	return text, err
}

// include reads a file that another one names. A relative name is relative to the directory of that
// file.
func (im *Import) include(from Pos, name string) (file string, text []byte, err error) {
	if im.included++; im.included > includeMax {
		return "", nil, errorAt(from, "more than %d files are included", includeMax)
	}
	if !filepath.IsAbs(name) {
		name = filepath.Join(filepath.Dir(from.File), name)
	}
	text, err = im.read(name)
	if err != nil {
		return name, nil, &Error{Pos: from, Err: err}
	}
	return name, text, nil
}

// exports imports a table in the format of exports(5).
func (im *Import) exports(file string) error {
	if im.tables[file] {
		return nil // nfs.conf has named the file, and the import has read it
	}
	im.tables[file] = true
	list, warnings, err := config.ReadExports(file)
	im.notes = append(im.notes, warnings...)
	if err != nil {
		return err
	}
	im.addExports(Pos{File: file, Line: 1}, list)
	return nil
}

// addExports adds complete exports.
func (im *Import) addExports(at Pos, list []config.Export) {
	for _, e := range list {
		e.Source = ""
		if slices.ContainsFunc(im.cfg.Exports, func(o config.Export) bool { return o.Pseudo == e.Pseudo }) {
			im.note(at, "%s is left out: another export is at %s already", e.Path, e.Pseudo)
			continue
		}
		im.cfg.Exports = append(im.cfg.Exports, e)
	}
	im.set("exports")
}

// systemExports returns the export table of the kernel's server, or an empty string if there is
// none.
func (im *Import) systemExports() string {
	for _, p := range []string{im.table, im.table + ".d"} {
		if _, err := os.Stat(p); err == nil || !errors.Is(err, fs.ErrNotExist) {
			return im.table
		}
	}
	return ""
}

// YAML returns the configuration as a rstored.yaml, after the checks that rstored makes at its
// start. It leaves out keys that no file sets.
func (im *Import) YAML() ([]byte, error) {
	if err := im.cfg.Validate(); err != nil {
		return nil, fmt.Errorf("what was imported makes no configuration: %w", err)
	}
	var all yaml.Node
	if err := all.Encode(im.cfg); err != nil {
		return nil, err
	}
	out := yaml.Node{Kind: yaml.MappingNode}
	for pair := range slices.Chunk(all.Content, 2) {
		if im.keys[pair[0].Value] {
			prune(pair[1])
			out.Content = append(out.Content, pair[0], pair[1])
		}
	}
	var b bytes.Buffer
	fmt.Fprintf(&b, "# imported from %s\n", strings.Join(im.files, ", "))
	for _, n := range im.notes {
		fmt.Fprintf(&b, "# %s\n", strings.ReplaceAll(n, "\n", " "))
	}
	if len(out.Content) == 0 {
		b.WriteString("{}\n")
		return b.Bytes(), nil
	}
	enc := yaml.NewEncoder(&b)
	enc.SetIndent(2)
	err := errors.Join(enc.Encode(&out), enc.Close())
	return b.Bytes(), err
}

// prune removes false values from exports and rules, because false is their default.
func prune(n *yaml.Node) {
	if n.Kind == yaml.MappingNode {
		var keep []*yaml.Node
		for pair := range slices.Chunk(n.Content, 2) {
			if pair[1].Value != "false" || pair[1].Tag != "!!bool" {
				keep = append(keep, pair...)
			}
		}
		n.Content = keep
	}
	for _, c := range n.Content {
		prune(c)
	}
}
