package config

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"strings"

	"github.com/spf13/pflag"
	"github.com/spf13/viper"
	"go.yaml.in/yaml/v3"
)

// Flag names that are not keys of the file, or are spelt otherwise there.
const (
	FlagConfig = "config"
	FlagExport = "export"
)

// envPrefix begins the name of every environment variable that is read.
const envPrefix = "RSTORED"

// Load reads the configuration: flags over environment over file over defaults. Unknown keys are
// errors. All its errors are about the configuration.
func Load(f *pflag.FlagSet) (*Config, error) {
	v := viper.New()
	v.SetConfigType("yaml")
	d := Default()
	for _, s := range settings {
		if s.Key != exportsKey {
			v.SetDefault(s.Key, s.value(d))
		}
	}
	v.SetEnvPrefix(envPrefix)
	v.SetEnvKeyReplacer(strings.NewReplacer(".", "_"))
	v.AllowEmptyEnv(true)
	for _, s := range settings {
		if s.Key == exportsKey {
			continue // see overrideExports
		}
		if err := v.BindEnv(s.Key); err != nil {
			return nil, err
		}
		if fl := f.Lookup(s.Flag()); fl != nil {
			if err := v.BindPFlag(s.Key, fl); err != nil {
				return nil, err
			}
		}
	}

	file, data, err := readFile(f)
	if err != nil {
		return nil, err
	}
	var lines map[string]int
	var wrong []error // what the file and the environment say; all is reported at once
	if file != "" {
		if lines, err = readYAML(v, data); err != nil {
			wrong = append(wrong, inFile(file, err))
		}
	}
	wrong = append(wrong, checkEnv()...)
	if len(wrong) > 0 {
		return nil, errors.Join(wrong...)
	}
	c := new(Config)
	if err := v.UnmarshalExact(c); err != nil {
		return nil, fmt.Errorf("%s: %w", origin(file), err)
	}
	c.File = file
	if err := c.overrideExports(f); err != nil {
		return nil, err
	}
	if err := c.readExports(); err != nil {
		return nil, err
	}
	c.dropEmpty()
	if !filepath.IsAbs(c.StateDir) && c.StateDir != "" {
		if c.StateDir, err = filepath.Abs(c.StateDir); err != nil {
			return nil, err
		}
	}
	if err := c.Validate(); err != nil {
		return nil, inFile(origin(file), located(err, lines))
	}
	return c, nil
}

// readYAML reads a text, and returns the line of each key.
func readYAML(v *viper.Viper, text []byte) (lines map[string]int, err error) {
	if lines, err = checkTypes(text); err != nil {
		return nil, err
	}
	if err := v.ReadConfig(bytes.NewReader(text)); err != nil {
		return nil, notYAML(err)
	}
	return lines, nil
}

// checkEnv checks the types of the settings in the environment.
func checkEnv() (wrong []error) {
	for i := range settings {
		s := &settings[i]
		name := envPrefix + "_" + strings.ToUpper(strings.ReplaceAll(s.Key, ".", "_"))
		text, ok := os.LookupEnv(name)
		t := reflect.TypeOf(s.value(Default()))
		if !ok || text == "" || s.Key == exportsKey || t.Kind() == reflect.Slice {
			continue
		}
		n := yaml.Node{Kind: yaml.ScalarNode, Tag: "!!str", Value: text}
		if why := wrongValue(&n, t, false); why != "" {
			wrong = append(wrong, fmt.Errorf("%s: %s", name, why))
		}
	}
	return wrong
}

func origin(file string) string {
	if file == "" {
		return "configuration"
	}
	return file
}

// readFile reads the configuration file. A file that was named must exist, the system's need not.
func readFile(f *pflag.FlagSet) (name string, data []byte, err error) {
	name, _ = f.GetString(FlagConfig)
	named := true
	if name == "" {
		name = os.Getenv(envPrefix + "_CONFIG")
	}
	if name == "" {
		name, named = SystemFile, false
	}
	data, err = os.ReadFile(name)
	switch {
	case err == nil:
		return name, data, nil
	case !named && errors.Is(err, fs.ErrNotExist):
		return "", nil, nil
	}
	return "", nil, err
}

// overrideExports applies --export, or RSTORED_EXPORT with its exports separated by semicolons.
// Both accept relative directories.
func (c *Config) overrideExports(f *pflag.FlagSet) error {
	var specs []string
	squash := RootSquash
	if fl := f.Lookup(FlagExport); fl != nil && fl.Changed {
		specs, _ = f.GetStringArray(FlagExport)
		squash = NoRootSquash // the user who typed it, root too, can use it from the same host at once
	} else if env := os.Getenv(envPrefix + "_EXPORT"); env != "" {
		specs = strings.Split(env, ";")
	} else {
		return nil
	}
	c.Exports = nil
	for _, s := range specs {
		e, err := parseExport(absolute(s), squash)
		if err != nil {
			return fmt.Errorf("--export %q: %w", s, err)
		}
		c.Exports = append(c.Exports, e)
	}
	return nil
}

// readExports appends the exports of the export table.
func (c *Config) readExports() error {
	if c.ExportsFile == "" {
		return nil
	}
	if !filepath.IsAbs(c.ExportsFile) {
		return fmt.Errorf("exports_file: %q is not an absolute path", c.ExportsFile)
	}
	list, warnings, err := ReadExports(c.ExportsFile)
	if err != nil {
		return fmt.Errorf("exports_file: %w", err)
	}
	c.Exports, c.Warnings = append(c.Exports, list...), warnings
	return nil
}

// absolute resolves the path at the start of an export against the working directory, for "--export
// data" in a shell.
func absolute(spec string) string {
	if spec == "" || spec[0] == '/' || strings.HasPrefix(spec, TypeMemory+":") ||
		strings.HasPrefix(spec, TypeCeph+":") {
		return spec
	}
	wd, err := os.Getwd()
	if err != nil {
		return spec
	}
	return strings.ReplaceAll(wd, " ", `\040`) + "/" + spec
}

// dropEmpty removes empty list entries, so that --tcp-listen= means none.
func (c *Config) dropEmpty() {
	for i := range settings {
		if list, ok := settings[i].field(c).Addr().Interface().(*[]string); ok {
			*list = dropBlank(*list)
		}
	}
}

func dropBlank(list []string) (out []string) {
	for _, s := range list {
		if s = strings.TrimSpace(s); s != "" {
			out = append(out, s)
		}
	}
	return out
}
