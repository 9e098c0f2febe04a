package config

import (
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"
)

// keysOf are the keys of a struct in the file; those of sections have their names before them.
func keysOf(t reflect.Type, prefix string, sections bool) (out []string) {
	for f := range t.Fields() {
		tag := f.Tag.Get("mapstructure")
		switch {
		case tag == "-":
		case sections && f.Type.Kind() == reflect.Struct:
			out = append(out, keysOf(f.Type, prefix+tag+".", true)...)
		default:
			out = append(out, prefix+tag)
		}
	}
	slices.Sort(out)
	return out
}

// TestSettingsComplete: each key of the file is described, and nothing else is.
func TestSettingsComplete(t *testing.T) {
	var have []string
	for _, s := range Settings() {
		have = append(have, s.Key)
	}
	parts := func(list []Part) (out []string) {
		for _, p := range list {
			out = append(out, p.Key)
		}
		return out
	}
	for name, c := range map[string]struct{ have, want []string }{
		"settings": {have, keysOf(reflect.TypeFor[Config](), "", true)},
		"exports":  {parts(ExportParts()), keysOf(reflect.TypeFor[Export](), "", false)},
		"clients":  {parts(ClientParts()), keysOf(reflect.TypeFor[Client](), "", false)},
	} {
		slices.Sort(c.have)
		if !slices.Equal(c.have, c.want) {
			t.Errorf("%s: described are %q, but there are %q", name, c.have, c.want)
		}
	}
}

// TestSettingsFields: each setting is its own field, has a flag, and is described.
func TestSettingsFields(t *testing.T) {
	f := pflag.NewFlagSet("", pflag.ContinueOnError)
	AddFlags(f)
	c := new(Config)
	seen := make(map[any]string)
	for _, s := range Settings() {
		at := s.field(c).Addr().Interface()
		if other, twice := seen[at]; twice {
			t.Errorf("%s and %s are one field", s.Key, other)
		}
		seen[at] = s.Key
		if fl := f.Lookup(s.Flag()); fl == nil || fl.Usage != s.Usage {
			t.Errorf("%s: flag %v", s.Key, fl)
		}
		for _, text := range []string{s.Usage, s.Text, s.Default()} {
			if text == "" || strings.Contains(text, "\n") || strings.HasSuffix(text, ".") {
				t.Errorf("%s is described by %q", s.Key, text)
			}
		}
	}
}

func TestSettingNames(t *testing.T) {
	want := map[string][3]string{
		"exports":           {"export", "RSTORED_EXPORT", "none"},
		"state_dir":         {"state-dir", "RSTORED_STATE_DIR", ""},
		"lease_time":        {"lease-time", "RSTORED_LEASE_TIME", "`90s`"},
		"grace_time":        {"grace-time", "RSTORED_GRACE_TIME", "`0`"},
		"perf.max_duration": {"perf-max-duration", "RSTORED_PERF_MAX_DURATION", "`10m`"},
		"tcp_listen":        {"tcp-listen", "RSTORED_TCP_LISTEN", "`[\":2049\"]`"},
		"mount_listen":      {"mount-listen", "RSTORED_MOUNT_LISTEN", "none"},
	}
	for _, s := range Settings() {
		if w, ok := want[s.Key]; ok && (s.Flag() != w[0] || s.Env() != w[1] || w[2] != "" && s.Default() != w[2]) {
			t.Errorf("%s: %s, %s, default %s", s.Key, s.Flag(), s.Env(), s.Default())
		}
	}
}

func TestWaiting(t *testing.T) {
	was, is := Default(), Default()
	is.LogLevel, is.Perf.MaxQPs, is.StopTimeout = "debug", 1, time.Second // follow a reload
	if list := Waiting(was, is); len(list) > 0 {
		t.Errorf("%v", list)
	}
	is.LeaseTime, is.IDMap.Method = time.Minute, IDNames
	want := []Change{{"lease_time", "1m30s", "1m0s"}, {"idmap.method", IDNumeric, IDNames}}
	if list := Waiting(was, is); !slices.Equal(list, want) {
		t.Errorf("%v", list)
	}
}
