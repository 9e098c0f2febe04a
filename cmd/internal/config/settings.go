package config

import (
	"fmt"
	"reflect"
	"strings"
	"time"

	"github.com/spf13/pflag"
)

// Setting is one key of the configuration, with its descriptions in --help, in
// docs/configuration.md and in rstored.yaml(5). Its type and its field are those of the key in
// Config.
type Setting struct {
	// Key is the name in the file; "perf.listen" is listen in the section perf.
	Key string
	// Usage is the flag's help, with the name of its value in backquotes.
	Usage string
	// Text is the description in Markdown, one line without a full stop. See is the page of
	// docs/ that says more, with its anchor, or empty.
	Text, See string
	// DefaultText describes a default that depends on who runs the daemon, or is empty.
	DefaultText string
	// Reload says whether a reload applies the setting. The others wait for the next start.
	Reload bool
}

const exportsKey = "exports"

// nameOf spells keys as flags.
var nameOf = strings.NewReplacer("_", "-", ".", "-")

// Flag is the name of the setting's flag, without dashes.
func (s *Setting) Flag() string {
	if s.Key == exportsKey {
		return FlagExport
	}
	return nameOf.Replace(s.Key)
}

// Env is the environment variable of the setting.
func (s *Setting) Env() string {
	return envPrefix + "_" + strings.ToUpper(strings.ReplaceAll(s.Flag(), "-", "_"))
}

// field is the setting's field in c, found by the keys in the tags of the structs.
func (s *Setting) field(c *Config) reflect.Value {
	v := reflect.ValueOf(c).Elem()
	for key := range strings.SplitSeq(s.Key, ".") {
		for f, inner := range v.Fields() {
			if f.Tag.Get("mapstructure") == key {
				v = inner
				break
			}
		}
	}
	return v
}

// value is the setting's value in c.
func (s *Setting) value(c *Config) any { return s.field(c).Interface() }

// Default is the default as the file would have it, or a description of it.
func (s *Setting) Default() string {
	if s.DefaultText != "" {
		return s.DefaultText
	}
	switch v := s.value(Default()).(type) {
	case string:
		if v != "" {
			return "`" + v + "`"
		}
	case []string:
		if len(v) > 0 {
			return "`[\"" + strings.Join(v, `", "`) + "\"]`"
		}
	case time.Duration:
		return "`" + short(v) + "`"
	case []Export:
	default:
		return "`" + fmt.Sprint(v) + "`"
	}
	return "none"
}

// short is a duration of whole seconds in one unit.
func short(d time.Duration) string {
	switch {
	case d == 0:
		return "0"
	case d%time.Minute == 0:
		return fmt.Sprintf("%dm", d/time.Minute)
	}
	return fmt.Sprintf("%ds", d/time.Second)
}

// AddFlags declares the flags that Load understands.
func AddFlags(f *pflag.FlagSet) {
	d := Default()
	f.String(FlagConfig, "", "configuration `FILE` (default "+SystemFile+" if it exists)")
	for _, s := range settings {
		switch v := s.value(d).(type) {
		case string:
			f.String(s.Flag(), v, s.Usage)
		case []string:
			f.StringSlice(s.Flag(), v, s.Usage)
		case int:
			f.Int(s.Flag(), v, s.Usage)
		case bool:
			f.Bool(s.Flag(), v, s.Usage)
		case float64:
			f.Float64(s.Flag(), v, s.Usage)
		case time.Duration:
			f.Duration(s.Flag(), v, s.Usage)
		case []Export:
			f.StringArray(s.Flag(), nil, s.Usage)
		}
	}
}

// Change is a setting that two configurations have differently.
type Change struct{ Key, Old, New string }

// Waiting are the changed settings that a reload does not apply.
func Waiting(was, is *Config) (list []Change) {
	for _, s := range settings {
		if s.Reload {
			continue
		}
		if c := (Change{s.Key, fmt.Sprint(s.value(was)), fmt.Sprint(s.value(is))}); c.Old != c.New {
			list = append(list, c)
		}
	}
	return list
}
