package config

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/pflag"
	"github.com/spf13/viper"
)

// Flag names that are not keys of the file, or are spelt otherwise there.
const (
	FlagConfig = "config"
	FlagExport = "export"
)

// envPrefix begins the name of every environment variable that is read.
const envPrefix = "RSTORED"

// keys maps the keys of the file to their flags.
var keys = []struct{ key, flag string }{
	{"exports_file", "exports-file"},
	{"rdma_listen", "rdma-listen"},
	{"tcp_listen", "tcp-listen"},
	{"mount_listen", "mount-listen"},
	{"portmap_listen", "portmap-listen"},
	{"pkeys", "pkeys"},
	{"state_dir", "state-dir"},
	{"control", "control"},
	{"control_group", "control-group"},
	{"log_level", "log-level"},
	{"log_format", "log-format"},
	{"shards", "shards"},
	{"workers", "workers"},
	{"max_connections", "max-connections"},
	{"lease_time", "lease-time"},
	{"grace_time", "grace-time"},
	{"nfs_versions", "nfs-versions"},
	{"idmap.domain", "idmap-domain"},
	{"idmap.method", "idmap-method"},
	{"utf8", "utf8"},
	{"stop_timeout", "stop-timeout"},
	{"ops_listen", "ops-listen"},
	{"ops_pprof", "ops-pprof"},
	{"ops_clients", "ops-clients"},
	{"audit", "audit"},
	{"perf.listen", "perf-listen"},
	{"perf.clients", "perf-clients"},
	{"perf.max_size", "perf-max-size"},
	{"perf.max_depth", "perf-max-depth"},
	{"perf.max_qps", "perf-max-qps"},
	{"perf.max_connections", "perf-max-connections"},
	{"perf.max_memory", "perf-max-memory"},
	{"perf.idle_timeout", "perf-idle-timeout"},
	{"perf.max_duration", "perf-max-duration"},
}

// AddFlags declares the flags that Load understands.
func AddFlags(f *pflag.FlagSet) {
	d := Default()
	f.String(FlagConfig, "", "configuration `FILE` (default "+SystemFile+" if it exists)")
	f.StringArray(FlagExport, nil, "export `DIR[=PSEUDO][(OPTIONS)] [CLIENT(OPTIONS)]...`; replaces the file's exports; repeatable")
	f.String("exports-file", "", "serve the exports of a `FILE` as /etc/exports, too")
	f.StringSlice("rdma-listen", d.RDMAListen, "serve RPC-over-RDMA on `ADDR:PORT`; repeatable; empty for none")
	f.StringSlice("tcp-listen", d.TCPListen, "serve TCP on `ADDR:PORT`; repeatable; empty for none")
	f.StringSlice("mount-listen", nil, "serve the same programs on a further TCP `ADDR:PORT`; repeatable")
	f.StringSlice("portmap-listen", nil, "answer portmap and rpcbind queries on `ADDR:PORT`; repeatable")
	f.StringSlice("pkeys", d.PKeys, "partition `KEY`s of the RDMA devices; repeatable")
	f.String("state-dir", d.StateDir, "`DIR` for what must survive a restart")
	f.String("control", d.Control, "path of the control `SOCKET`")
	f.String("control-group", "", "`GROUP` that may use the control socket, beside root and the daemon's user")
	f.String("log-level", d.LogLevel, "`LEVEL` debug, info, warn or error")
	f.String("log-format", d.LogFormat, "`FORMAT` auto, console or json")
	f.Int("shards", 0, "packet loops per RDMA device (0: chosen by the device)")
	f.Int("workers", 0, "calls that may wait for storage at once (0: a default)")
	f.Int("max-connections", d.MaxConnections, "RDMA connections at each port")
	f.Duration("lease-time", d.LeaseTime, "how long a client of NFS version 4 may be silent")
	f.Duration("grace-time", d.GraceTime, "how long clients of NFS version 4 may reclaim after a restart (0: lease-time)")
	f.StringSlice("nfs-versions", d.NFSVersions, "serve NFS `VERSION`s 3, 4.0, 4.1, 4.2; repeatable")
	f.String("idmap-domain", d.IDMap.Domain, "`DOMAIN` of users and groups in version 4 (default: the host's)")
	f.String("idmap-method", d.IDMap.Method, "call users and groups by `METHOD` numeric or names in version 4")
	f.String("utf8", d.UTF8, "`NAMES` of files in version 4: any or strict")
	f.Duration("stop-timeout", d.StopTimeout, "how long a graceful stop may take")
	f.StringSlice("ops-listen", nil, "serve metrics and health checks by HTTP on `ADDR:PORT`; repeatable")
	f.Bool("ops-pprof", false, "let everyone who reaches --ops-listen profile the process")
	f.Int("ops-clients", d.OpsClients, "clients with metrics of their own")
	f.String("audit", d.Audit, "write mounts, clients and changes to the `LOG`: log, 'file PATH' or off")
	f.StringSlice("perf-listen", nil, "let 'rstorectl perf' measure at `ADDR:PORT`; repeatable")
	f.StringSlice("perf-clients", nil, "`CIDR` of clients that may measure, * for all; repeatable")
	f.Int("perf-max-size", d.Perf.MaxSize, "largest message of a measurement in bytes")
	f.Int("perf-max-depth", d.Perf.MaxDepth, "messages under way on a queue pair of a measurement")
	f.Int("perf-max-qps", d.Perf.MaxQPs, "queue pairs of a measurement")
	f.Int("perf-max-connections", d.Perf.MaxConnections, "queue pairs of all measurements")
	f.Int("perf-max-memory", d.Perf.MaxMemory, "bytes of memory for all measurements")
	f.Duration("perf-idle-timeout", d.Perf.IdleTimeout, "end measurements whose client is silent for so long")
	f.Duration("perf-max-duration", d.Perf.MaxDuration, "end measurements that take longer")
}

// Load reads the configuration: flags over environment over file over
// defaults. Unknown keys are errors. Every error it returns is about the
// configuration.
func Load(f *pflag.FlagSet) (*Config, error) {
	v := viper.New()
	v.SetConfigType("yaml")
	d := Default()
	v.SetDefault("rdma_listen", d.RDMAListen)
	v.SetDefault("tcp_listen", d.TCPListen)
	v.SetDefault("pkeys", d.PKeys)
	v.SetDefault("state_dir", d.StateDir)
	v.SetDefault("control", d.Control)
	v.SetDefault("log_level", d.LogLevel)
	v.SetDefault("log_format", d.LogFormat)
	v.SetDefault("max_connections", d.MaxConnections)
	v.SetDefault("lease_time", d.LeaseTime)
	v.SetDefault("grace_time", d.GraceTime)
	v.SetDefault("nfs_versions", d.NFSVersions)
	v.SetDefault("idmap.domain", d.IDMap.Domain)
	v.SetDefault("idmap.method", d.IDMap.Method)
	v.SetDefault("utf8", d.UTF8)
	v.SetDefault("stop_timeout", d.StopTimeout)
	v.SetDefault("ops_clients", d.OpsClients)
	v.SetDefault("audit", d.Audit)
	v.SetDefault("perf.max_size", d.Perf.MaxSize)
	v.SetDefault("perf.max_depth", d.Perf.MaxDepth)
	v.SetDefault("perf.max_qps", d.Perf.MaxQPs)
	v.SetDefault("perf.max_connections", d.Perf.MaxConnections)
	v.SetDefault("perf.max_memory", d.Perf.MaxMemory)
	v.SetDefault("perf.idle_timeout", d.Perf.IdleTimeout)
	v.SetDefault("perf.max_duration", d.Perf.MaxDuration)
	v.SetEnvPrefix(envPrefix)
	v.SetEnvKeyReplacer(strings.NewReplacer(".", "_"))
	v.AllowEmptyEnv(true)
	for _, k := range keys {
		if err := v.BindEnv(k.key); err != nil {
			return nil, err
		}
		if fl := f.Lookup(k.flag); fl != nil {
			if err := v.BindPFlag(k.key, fl); err != nil {
				return nil, err
			}
		}
	}

	file, data, err := readFile(f)
	if err != nil {
		return nil, err
	}
	if file != "" {
		if err := v.ReadConfig(bytes.NewReader(data)); err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
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
		return nil, fmt.Errorf("%s: %w", origin(file), err)
	}
	return c, nil
}

func origin(file string) string {
	if file == "" {
		return "configuration"
	}
	return file
}

// readFile finds and reads the file: the one that was named must exist, the
// system's need not.
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

// overrideExports applies --export, or RSTORED_EXPORT with its exports
// separated by semicolons. Both name relative directories freely.
func (c *Config) overrideExports(f *pflag.FlagSet) error {
	var specs []string
	if fl := f.Lookup(FlagExport); fl != nil && fl.Changed {
		specs, _ = f.GetStringArray(FlagExport)
	} else if env := os.Getenv(envPrefix + "_EXPORT"); env != "" {
		specs = strings.Split(env, ";")
	} else {
		return nil
	}
	c.Exports = nil
	for _, s := range specs {
		e, err := ParseExport(absolute(s))
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

// absolute makes the path at the start of an export relative to the working
// directory, which is what a shell user means by "--export data".
func absolute(spec string) string {
	if spec == "" || spec[0] == '/' || strings.HasPrefix(spec, TypeMemory+":") {
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
	for _, l := range []*[]string{&c.RDMAListen, &c.TCPListen, &c.MountListen, &c.PortmapListen, &c.OpsListen, &c.PKeys, &c.NFSVersions, &c.Perf.Listen, &c.Perf.Clients} {
		keep := (*l)[:0:0]
		for _, s := range *l {
			if s = strings.TrimSpace(s); s != "" {
				keep = append(keep, s)
			}
		}
		*l = keep
	}
}
