package bundle

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rstored/rstored/cmd/internal/cli"
	"github.com/rstored/rstored/cmd/internal/control"
	"github.com/rstored/rstored/cmd/internal/doctor"
	"github.com/rstored/rstored/cmd/internal/exportsfile"
)

// Daemon is the part of the control interface that a bundle uses.
type Daemon interface {
	doctor.Daemon
	Raw(ctx context.Context, path string, q url.Values) ([]byte, error)
}

// answers are the parts that come from the daemon.
var answers = []struct{ name, path, what string }{
	{"status.json", "/v1/status", "the status of the daemon"},
	{"exports.json", "/v1/exports", "exports as they are served"},
	{"ports.json", "/v1/ports", "ports as they are served"},
	{"pkeys.json", "/v1/pkeys", "partitions"},
	{"clients.json", "/v1/clients", "connections"},
	{"nfs4-clients.json", "/v1/nfs4-clients", "clients of version 4"},
	{"nfs4-sessions.json", "/v1/nfs4-sessions", "their sessions"},
	{"delegations.json", "/v1/delegations", "delegations"},
	{"locks.json", "/v1/locks", "byte-range locks"},
	{"grace.json", "/v1/grace", "the grace period"},
	{"devices.json", "/v1/devices", "RDMA devices of the daemon"},
	{"qps.json", "/v1/qps", "queue pairs"},
	{"stats.json", "/v1/stats", "counters"},
	{"slow.json", "/v1/slow", "the slowest calls of the last minutes"},
	{"post-mortems.json", "/v1/post-mortems", "RDMA connections that ended badly"},
	{"denials.json", "/v1/denials", "clients that the rules of exports have denied, and why"},
	{"drift.json", "/v1/drift", "exports and ports that run and are not in the configuration"},
	{"history.json", "/v1/history", "files that were applied, without their texts"},
	{"metrics.txt", "/v1/metrics", "metrics, as Prometheus reads them"},
	{"log.json", "/v1/log", "the last lines of the log, from the daemon's memory"},
}

// answerTime bounds one answer of the daemon.
const answerTime = 10 * time.Second

// daemon adds the parts that come from the daemon.
func (c *collector) daemon(ctx context.Context) {
	ask := func(path string, q url.Values, limit time.Duration) ([]byte, error) {
		ctx, cancel := context.WithTimeout(ctx, limit)
		defer cancel()
		return c.cfg.Daemon.Raw(ctx, path, q)
	}
	for _, a := range answers {
		b, err := ask(a.path, nil, answerTime)
		if strings.HasSuffix(a.name, ".json") && a.path != "/v1/log" {
			var out bytes.Buffer
			if json.Indent(&out, b, "", "  ") == nil {
				b = out.Bytes()
			}
		}
		c.add(a.name, a.what, text, b, err)
	}
	b, err := ask("/v1/config", nil, answerTime)
	c.add("config.yaml", "the configuration in force", yaml, b, err)
	b, err = ask("/v1/goroutines", nil, answerTime)
	c.add("goroutines.txt", "what the daemon's goroutines do", code, b, err)
	if n := int(c.cfg.Profile / time.Second); n > 0 {
		b, err = ask("/v1/profile", url.Values{"seconds": {strconv.Itoa(n)}}, c.cfg.Profile+answerTime)
		c.add("cpu.pprof", fmt.Sprintf("a CPU profile of %d s, for 'go tool pprof'", n), binary, b, err)
	} else {
		c.missing("cpu.pprof", errors.New("not asked for; see --profile"))
	}
}

// sysctls are settings of the kernel that affect the daemon.
var sysctls = []string{
	"net/core/*mem*", "net/core/netdev_*", "net/core/somaxconn", "net/core/busy_*", "net/core/default_qdisc",
	"net/ipv4/udp_*", "net/ipv4/tcp_*mem", "net/ipv4/tcp_congestion_control", "net/ipv4/ip_local_port_range",
	"net/ipv4/conf/*/rp_filter", "vm/dirty_*", "vm/overcommit_*", "vm/max_map_count", "fs/file-max",
	"fs/file-nr", "fs/leases-enable", "fs/lease-break-time", "kernel/io_uring_disabled", "kernel/numa_balancing",
}

// host adds the parts that come from the host.
func (c *collector) host(ctx context.Context) {
	b, err := c.read(c.cfg.File)
	c.add("config-file.yaml", "the configuration file on disk", yaml, b, err)
	if table := exportsFileOf(b); table != "" {
		root := strings.TrimSuffix(c.cfg.Root, "/")
		files, _ := filepath.Glob(root + exportsfile.Directory(table) + "/*" + exportsfile.Suffix)
		all, err := c.read(table)
		for _, f := range files {
			if b, err := c.read(strings.TrimPrefix(f, root)); err == nil {
				all = append(append(all, '\n'), b...)
			}
		}
		c.add("exports-table.txt", "the export table on disk", text, withoutComments(all), err)
	}
	c.journal(ctx)
	st, err := c.cfg.Daemon.Status(ctx)
	pid := st.PID
	v := struct {
		Rstorectl cli.Build `json:"rstorectl"`
		Rstored   string    `json:"rstored"`
		Kernel    string    `json:"kernel"`
		OS        string    `json:"os"`
		CPUs      int       `json:"cpus"`
	}{Rstorectl: cli.ReadBuild(), Rstored: st.Version, CPUs: processors(c)}
	var u unix.Utsname
	if unix.Uname(&u) == nil {
		for _, part := range [][]byte{u.Sysname[:], u.Release[:], u.Version[:], u.Machine[:]} {
			v.Kernel = strings.TrimSpace(v.Kernel + " " + unix.ByteSliceToString(part))
		}
	}
	release, _ := c.read("/etc/os-release")
	for line := range strings.Lines(string(release)) {
		if name, ok := strings.CutPrefix(line, "PRETTY_NAME="); ok {
			v.OS = strings.Trim(strings.TrimSpace(name), `"`)
		}
	}
	b, jsonErr := json.MarshalIndent(&v, "", "  ")
	c.add("versions.json", "versions of the programs, the kernel, the system", code, b, jsonErr)
	c.tree("sysctl.txt", "settings of the kernel", "/proc/sys/", sysctls)
	c.tree("network.txt", "network interfaces and their counters", "/sys/class/net/", []string{
		"*/mtu", "*/operstate", "*/speed", "*/duplex", "*/tx_queue_len", "*/carrier_changes",
		"*/statistics/*_errors", "*/statistics/*_dropped", "*/statistics/*_packets",
		"*/gro_flush_timeout", "*/queues/*/rps_cpus",
	})
	c.addresses()
	c.tree("rdma.txt", "RDMA devices of the kernel", "/sys/class/infiniband/", []string{
		"*/node_type", "*/fw_ver", "*/hca_type", "*/ports/*/state", "*/ports/*/rate", "*/ports/*/link_layer",
		"*/ports/*/hw_counters/*",
	})
	for _, f := range []struct{ name, file, what string }{
		{"limits.txt", "limits", "limits of the daemon's process"},
		{"process.txt", "status", "the daemon's process: memory, threads, capabilities"},
	} {
		if err != nil {
			c.missing(f.name, err)
			continue
		}
		b, err := c.read(fmt.Sprintf("/proc/%d/%s", pid, f.file))
		c.add(f.name, f.what, text, b, err)
	}
	b, err = c.read("/proc/meminfo")
	c.add("memory.txt", "memory of the host", text, b, err)
	b, err = c.read("/proc/net/snmp")
	udp, err2 := c.read("/proc/net/softnet_stat")
	c.add("protocols.txt", "counters of IP, TCP, UDP, and of the packet queues", text, append(b, udp...),
		errors.Join(err, err2))
	report := doctor.Server(ctx, doctor.This(), c.cfg.Daemon)
	var out bytes.Buffer
	report.Print(&out)
	c.add("doctor.txt", "what 'rstorectl doctor' finds", text, out.Bytes(), nil)
	if c.cfg.Anonymous {
		c.anonymise()
	}
}

func processors(c *collector) int {
	b, _ := c.read("/proc/cpuinfo")
	return bytes.Count(b, []byte("\nprocessor")) + 1
}

// tree adds small files by their names, a line each.
func (c *collector) tree(name, what, top string, patterns []string) {
	root := strings.TrimSuffix(c.cfg.Root, "/") + top
	var out bytes.Buffer
	for _, p := range patterns {
		list, _ := filepath.Glob(root + p)
		slices.Sort(list)
		for _, f := range list {
			if b, err := os.ReadFile(f); err == nil {
				fmt.Fprintf(&out, "%s = %s\n", strings.TrimPrefix(f, root),
					strings.ReplaceAll(strings.TrimSpace(string(b)), "\n", "; "))
			}
		}
	}
	if out.Len() == 0 {
		c.missing(name, fmt.Errorf("%s has none of these files", top))
		return
	}
	c.add(name, what, code, out.Bytes(), nil)
}

func (c *collector) addresses() {
	list, err := net.Interfaces()
	var out bytes.Buffer
	for _, i := range list {
		addrs, _ := i.Addrs()
		fmt.Fprintf(&out, "%s mtu %d %v", i.Name, i.MTU, i.Flags)
		for _, a := range addrs {
			fmt.Fprintf(&out, " %v", a)
		}
		fmt.Fprintln(&out)
	}
	c.add("addresses.txt", "addresses of the interfaces", text, out.Bytes(), err)
}

// journalLines is how many lines of the journal are read.
const journalLines = "5000"

func (c *collector) journal(ctx context.Context) {
	const name = "journal.txt"
	if _, err := exec.LookPath("journalctl"); err != nil {
		c.missing(name, errors.New("this host has no journalctl"))
		return
	}
	ctx, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	cmd := exec.CommandContext(ctx, "journalctl", "--unit="+c.cfg.Unit, "--lines="+journalLines, "--no-pager",
		"--no-hostname", "--output=short-iso", "--quiet")
	b, err := cmd.Output()
	if err == nil && len(bytes.TrimSpace(b)) == 0 {
		err = fmt.Errorf("the journal has no entries of %s that this user may read", c.cfg.Unit)
	}
	c.add(name, "the last lines of the journal", text, b, err)
}

var _ Daemon = (*control.Dialer)(nil)

// exportsFileOf is the exports_file of a configuration file.
func exportsFileOf(b []byte) string {
	for line := range strings.Lines(string(b)) {
		if v, ok := strings.CutPrefix(line, "exports_file:"); ok {
			v, _, _ = strings.Cut(v, " #")
			return strings.Trim(strings.TrimSpace(v), `"'`)
		}
	}
	return ""
}
