package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"

	"golang.org/x/sys/unix"
)

// report is what one run measured.
type report struct {
	Host     hostInfo                      `json:"host"`
	Rounds   int                           `json:"rounds"`
	Seconds  float64                       `json:"seconds"` // of each measurement
	Rows     []result                      `json:"rows"`
	Measured map[string]map[variant]*taken `json:"measured"`
}

// hostInfo is where and against what it was measured.
type hostInfo struct {
	Processor string            `json:"processor"`
	Cores     int               `json:"cores"`
	Kernel    string            `json:"kernel"`
	Go        string            `json:"go"`
	Disk      string            `json:"disk"` // kind of file system
	Load      string            `json:"load"` // averages at the end
	Versions  map[string]string `json:"versions"`
	Ganesha   string            `json:"ganesha_configuration"`
}

// describe fills in what the stage knows.
func (h *hostInfo) describe(o *options) {
	h.Cores, h.Go = runtime.NumCPU(), runtime.Version()
	var u unix.Utsname
	if unix.Uname(&u) == nil {
		h.Kernel, _, _ = strings.Cut(unix.ByteSliceToString(u.Release[:]), "-") // the rest is its packager's
	}
	if b, err := os.ReadFile("/proc/cpuinfo"); err == nil {
		for line := range strings.Lines(string(b)) {
			if k, v, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(k) == "model name" {
				h.Processor = strings.TrimSpace(v)
				break
			}
		}
	}
	if b, err := os.ReadFile("/proc/loadavg"); err == nil {
		h.Load = strings.Join(strings.Fields(string(b))[:3], " ")
	}
	var st unix.Statfs_t
	if unix.Statfs(filepath.Join(o.stage, "bin"), &st) == nil {
		h.Disk = fileSystem(st.Type)
	}
	h.Ganesha = string(ganeshaConfig("EXPORT"))
}

// fileSystem is the name of a kind as statfs has it.
func fileSystem(magic int64) string {
	switch magic {
	case unix.EXT4_SUPER_MAGIC:
		return "ext4"
	case unix.XFS_SUPER_MAGIC:
		return "xfs"
	case unix.BTRFS_SUPER_MAGIC:
		return "btrfs"
	case unix.TMPFS_MAGIC:
		return "tmpfs"
	case unix.OVERLAYFS_SUPER_MAGIC:
		return "overlay"
	}
	return fmt.Sprintf("0x%x", magic)
}

// tools are the versions that the build knows.
type tools struct{ gonfs string }

// versions fills in those of the peers.
func (h *hostInfo) versions(ctx context.Context, t *tools) {
	h.Versions = map[string]string{"go-nfs": t.gonfs}
	for _, p := range []string{"nfs-ganesha", "libnfs-dev"} {
		h.Versions[p] = "not installed"
		if out, err := exec.CommandContext(ctx, "dpkg-query", "-W", "-f", "${Version}", p).Output(); err == nil && len(out) > 0 {
			h.Versions[p] = firstLine(out)
		}
	}
	if out, err := exec.CommandContext(ctx, "git", "describe", "--always", "--dirty").Output(); err == nil {
		h.Versions["rstored"] = firstLine(out)
	}
}

// failed is an error if something of ours could not be measured: peers may be missing.
func (r *report) failed() error {
	for _, x := range r.Rows {
		if x.Ours == nil && !strings.Contains(x.Missing, "installed") {
			return fmt.Errorf("%s: %s", x.Measure, x.Missing)
		}
	}
	return nil
}

func (r *report) json(w io.Writer) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "\t")
	return e.Encode(r)
}

// cells of a row, as the tables have them.
func (x *result) cells() []string {
	value := func(s *side) string {
		if s == nil {
			return "-"
		}
		return strings.TrimSpace(number(s.Value) + " " + x.Unit)
	}
	sign := "≥ "
	if x.Less {
		sign = "≤ "
	}
	wanted, ratio, against := sign+number(x.Wanted), "", x.Against
	switch {
	case x.Missing != "":
		ratio = "not measured: " + firstLine([]byte(x.Missing))
	case x.Peer == nil:
		wanted = strings.TrimSpace(wanted + " " + x.Unit)
	default:
		ratio = fmt.Sprintf("%s (%s to %s)", number(x.Ratio), number(x.Min), number(x.Max))
		if x.Peer.client() != "" {
			against += ", " + x.Peer.client()
		}
	}
	reached := "no"
	if x.Reached {
		reached = "yes"
	} else if x.Missing != "" {
		reached = "-"
	}
	ours := value(x.Ours)
	for i := range x.Also {
		s := &x.Also[i]
		_, carrier, _ := s.By.split()
		ours += fmt.Sprintf("; over %s %s (%s)", strings.ToUpper(carrier), value(s), number(s.Ratio))
	}
	return []string{x.Measure, against, ours, value(x.Peer), ratio, wanted, reached}
}

// client is the client of a peer of NFS.
func (s *side) client() string {
	server, _, client := s.By.split()
	switch {
	case server == "udp":
		return ""
	case client == "go":
		return "Go client"
	}
	return client
}

// number has three digits that count, and all before the point.
func number(v float64) string {
	digits := 2
	switch {
	case v >= 100:
		digits = 0
	case v >= 10:
		digits = 1
	case v < 0.1 && v > 0:
		return strconv.FormatFloat(v, 'g', 2, 64)
	}
	s := strconv.FormatFloat(v, 'f', digits, 64)
	if digits > 0 {
		s = strings.TrimRight(strings.TrimRight(s, "0"), ".")
	}
	return s
}

var heads = []string{"measure", "against", "rstored", "peer", "ratio (least to largest)", "wanted", "reached"}

// text prints the table for a terminal.
func (r *report) text(w io.Writer) {
	t := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	fmt.Fprintln(t, strings.Join(heads, "\t"))
	for i := range r.Rows {
		fmt.Fprintln(t, strings.Join(r.Rows[i].cells(), "\t"))
	}
	_ = t.Flush()
	fmt.Fprintf(w, "%s; disk is %s\n", r.where(), r.Host.Disk)
}

// where is the host in one line.
func (r *report) where() string {
	h := &r.Host
	s := fmt.Sprintf("%d cores of %s, Linux %s, %s, load %s", h.Cores, h.Processor, h.Kernel, h.Go, h.Load)
	names := make([]string, 0, len(h.Versions))
	for n := range h.Versions {
		names = append(names, n)
	}
	slices.Sort(names)
	for _, n := range names {
		s += fmt.Sprintf(", %s %s", n, h.Versions[n])
	}
	return s
}

// markdown writes the page of the table.
func (r *report) markdown(w io.Writer) error {
	var b strings.Builder
	fmt.Fprintf(&b, "# Compared\n\nWritten by `make bench`; [performance.md](../performance.md#compared) says how it is measured\nand how to read it. Each number is the median of %d rounds of %g s.\n\n", r.Rounds, r.Seconds)
	fmt.Fprintf(&b, "%s. The disk is %s.\n\n", r.where(), r.Host.Disk)
	fmt.Fprintf(&b, "| %s |\n|%s\n", strings.Join(heads, " | "), strings.Repeat(" --- |", len(heads)))
	for i := range r.Rows {
		fmt.Fprintf(&b, "| %s |\n", strings.Join(r.Rows[i].cells(), " | "))
	}
	fmt.Fprintf(&b, "\n![ratios](results.svg)\n\nnfs-ganesha's configuration:\n\n```\n%s```\n", r.Host.Ganesha)
	_, err := io.WriteString(w, b.String())
	return err
}
