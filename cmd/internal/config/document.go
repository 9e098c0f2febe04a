package config

import (
	"fmt"
	"reflect"
	"slices"

	"github.com/spf13/viper"
	"go.yaml.in/yaml/v3"

	"github.com/rstored/rstored/cmd/internal/exportsfile"
)

// Syntaxes of a Document.
const (
	SyntaxYAML  = "yaml"    // as the configuration file
	SyntaxTable = "exports" // as /etc/exports
	// SyntaxOwn is no text: the daemon's own configuration, as it has been read.
	SyntaxOwn = "configuration"
)

// DocumentMax bounds a document's text in bytes.
const DocumentMax = 512 << 10

// ListenKeys are the settings of ports that a Document may have.
var ListenKeys = []string{"rdma_listen", "tcp_listen", "mount_listen", "portmap_listen", "udp_listen", "ops_listen"}

// Document is the part of a configuration that can be applied as a whole while the daemon runs:
// exports and ports.
type Document struct {
	// Exports are all exports. nil means that the document has none of its own; an empty list means
	// that nothing is exported.
	Exports []Export `json:"exports"`
	// Listen has addresses by the keys of ListenKeys that are in the document.
	Listen map[string][]string `json:"listen,omitempty"`
	// Ignored are other settings of the document. Warnings are probable mistakes.
	Ignored  []string `json:"-"`
	Warnings []string `json:"-"`
}

// ParseDocument reads a text. name is its name in errors and warnings.
func ParseDocument(name, syntax string, text []byte) (d *Document, err error) {
	if len(text) > DocumentMax {
		return nil, fmt.Errorf("%s has %d bytes, more than the %d of a file that can be applied",
			name, len(text), DocumentMax)
	}
	switch syntax {
	case SyntaxTable:
		d, err = tableDocument(name, text)
	case SyntaxYAML:
		if d, err = yamlDocument(text); err != nil {
			err = inFile(name, err)
		}
	default:
		err = fmt.Errorf("syntax %q is neither %s nor %s", syntax, SyntaxYAML, SyntaxTable)
	}
	if err != nil {
		return nil, err
	}
	if d.Exports == nil && len(d.Listen) == 0 {
		return nil, fmt.Errorf("%s: has neither exports nor ports; an empty list of exports is written 'exports: []'", name)
	}
	return d, nil
}

func tableDocument(name string, text []byte) (*Document, error) {
	var t exportsfile.Table
	if err := t.Parse(name, text); err != nil {
		return nil, err
	}
	list, warnings, err := fromTable(&t)
	if err != nil {
		return nil, err
	}
	d := &Document{Exports: list, Warnings: warnings}
	if list == nil {
		d.Exports = []Export{}
	}
	for _, w := range t.Warnings {
		d.Warnings = append(d.Warnings, w.Error())
	}
	return d, nil
}

func yamlDocument(text []byte) (*Document, error) {
	v := viper.New()
	v.SetConfigType("yaml")
	lines, err := readYAML(v, text)
	if err != nil {
		return nil, err
	}
	c := Default()
	c.StateDir, c.Control = "/", "/" // are of no interest here
	if err := v.UnmarshalExact(c); err != nil {
		return nil, err
	}
	c.dropEmpty()
	if c.ExportsFile != "" {
		return nil, fmt.Errorf("exports_file: a table is applied by itself, with --syntax %s; or write its exports here",
			SyntaxTable)
	}
	// A whole configuration is checked as a whole.
	c.LogLevel, c.LogFormat = Default().LogLevel, Default().LogFormat
	if err := located(c.Validate(), lines); err != nil {
		return nil, err
	}
	d := &Document{Listen: make(map[string][]string)}
	for i := range settings {
		key := settings[i].Key
		switch {
		case !v.InConfig(key) && !v.IsSet(key):
		case key == exportsKey:
			d.Exports = append([]Export{}, c.Exports...)
		case slices.Contains(ListenKeys, key):
			list, _ := settings[i].value(c).([]string)
			d.Listen[key] = append([]string{}, list...)
		default:
			d.Ignored = append(d.Ignored, key)
		}
	}
	return d, nil
}

// Own returns the part of a configuration that a Document can have, and its text.
func (c *Config) Own() (d *Document, text []byte, err error) {
	d = &Document{Exports: append([]Export{}, c.Exports...), Listen: make(map[string][]string)}
	all := map[string]any{exportsKey: d.Exports}
	for i := range settings {
		if list, ok := settings[i].value(c).([]string); ok && slices.Contains(ListenKeys, settings[i].Key) {
			d.Listen[settings[i].Key] = append([]string{}, list...)
			all[settings[i].Key] = d.Listen[settings[i].Key]
		}
	}
	text, err = yaml.Marshal(all)
	return d, text, err
}

// Normalize completes exports that were read from a record.
func (d *Document) Normalize() error {
	for i := range d.Exports {
		if err := d.Exports[i].Normalize(); err != nil {
			return fmt.Errorf("exports[%d]: %w", i, err)
		}
	}
	return nil
}

// With returns a configuration with the exports and ports of a document in place of its own.
func (c *Config) With(d *Document) *Config {
	if d == nil {
		return c
	}
	out := *c
	if d.Exports != nil {
		out.Exports = d.Exports
	}
	for i := range settings {
		if list, ok := d.Listen[settings[i].Key]; ok {
			settings[i].field(&out).Set(reflect.ValueOf(list))
		}
	}
	return &out
}
