package compare

import (
	"encoding/json"
	"errors"
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

// Report is what was measured.
type Report struct {
	Host     Host                          `json:"host"`
	Rounds   int                           `json:"rounds"`
	Seconds  float64                       `json:"seconds"` // of each measurement
	Rows     []Result                      `json:"rows"`
	Measured map[string]map[Variant]*Taken `json:"measured"`

	// Client names the client of a peer in the table, none if it is empty, and Beside what
	// is measured beside a row.
	Client, Beside func(Variant) string `json:"-"`
	// DrawBeside has the picture show what is measured beside a row, too.
	DrawBeside bool `json:"-"`
}

// Host is where and against what it was measured.
type Host struct {
	Processor string            `json:"processor"`
	Cores     int               `json:"cores"`
	Kernel    string            `json:"kernel"`
	Go        string            `json:"go"`
	Disk      string            `json:"disk"` // kind of file system
	Load      string            `json:"load"` // averages at the end
	Versions  map[string]string `json:"versions"`
	Ganesha   string            `json:"ganesha_configuration,omitempty"`
}

// Describe fills in what the host says of itself. The disk is that of a directory.
func (h *Host) Describe(disk string) {
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
	if unix.Statfs(disk, &st) == nil {
		h.Disk = fileSystem(st.Type)
	}
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

// Version fills in that of what is measured, from the repository that it is in.
func (h *Host) Version() {
	if h.Versions == nil {
		h.Versions = make(map[string]string)
	}
	if out, err := exec.Command("git", "describe", "--always", "--dirty").Output(); err == nil {
		h.Versions["rstored"] = FirstLine(out)
	}
}

// Recall takes what was measured before from the JSON of a report, if there is one.
func (r *Report) Recall(file string) error {
	b, err := os.ReadFile(file)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	var old Report
	if err := json.Unmarshal(b, &old); err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	if old.Rounds != r.Rounds || old.Seconds != r.Seconds {
		return fmt.Errorf("%s has %d rounds of %g s", file, old.Rounds, old.Seconds)
	}
	r.Measured = old.Measured
	return nil
}

// Failed is an error if something of ours could not be measured: peers may be missing.
func (r *Report) Failed() error {
	for _, x := range r.Rows {
		if x.Ours == nil && !strings.Contains(x.Missing, "installed") {
			return fmt.Errorf("%s: %s", x.Measure, x.Missing)
		}
	}
	return nil
}

// JSON writes everything that was measured, each sample too.
func JSON(w io.Writer, measured any) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "\t")
	return e.Encode(measured)
}

// cells of a row, as the tables have them.
func (r *Report) cells(x *Result) []string {
	value := func(s *Side) string {
		if s == nil {
			return "-"
		}
		return strings.TrimSpace(Number(s.Value) + " " + x.Unit)
	}
	sign := "≥ "
	if x.Less {
		sign = "≤ "
	}
	wanted, ratio, against := sign+Number(x.Wanted), "", x.Against
	switch {
	case x.Missing != "":
		ratio = "not measured: " + FirstLine([]byte(x.Missing))
	case x.Peer == nil:
		wanted = strings.TrimSpace(wanted + " " + x.Unit)
	default:
		ratio = fmt.Sprintf("%s (%s to %s)", Number(x.Ratio), Number(x.Min), Number(x.Max))
		if c := r.Client(x.Peer.By); c != "" {
			against += ", " + c
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
		ours += fmt.Sprintf("; %s %s (%s)", r.Beside(s.By), value(s), Number(s.Ratio))
	}
	return []string{x.Measure, against, ours, value(x.Peer), ratio, wanted, reached}
}

// Number has three digits that count, and all before the point.
func Number(v float64) string {
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

// Text prints the table for a terminal.
func (r *Report) Text(w io.Writer) {
	t := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	fmt.Fprintln(t, strings.Join(heads, "\t"))
	for i := range r.Rows {
		fmt.Fprintln(t, strings.Join(r.cells(&r.Rows[i]), "\t"))
	}
	_ = t.Flush()
	fmt.Fprintf(w, "%s; disk is %s\n", r.where(), r.Host.Disk)
}

// where is the host in one line.
func (r *Report) where() string {
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

// Markdown writes the page of the table: what makes it, which page explains it, the picture's
// file below it, and what else there is to say.
func (r *Report) Markdown(w io.Writer, title, by, explained, picture, more string) error {
	var b strings.Builder
	fmt.Fprintf(&b, "# %s\n\nWritten by `%s`; [measuring.md](%s) says how it is measured\nand how to read it. Each "+
		"number is the median of %d rounds of %g s.\n\n", title, by, explained, r.Rounds, r.Seconds)
	fmt.Fprintf(&b, "%s. The disk is %s.\n\n", r.where(), r.Host.Disk)
	fmt.Fprintf(&b, "| %s |\n|%s\n", strings.Join(heads, " | "), strings.Repeat(" --- |", len(heads)))
	for i := range r.Rows {
		fmt.Fprintf(&b, "| %s |\n", strings.Join(r.cells(&r.Rows[i]), " | "))
	}
	fmt.Fprintf(&b, "\n![ratios](%s)\n%s", picture, more)
	_, err := io.WriteString(w, b.String())
	return err
}

// Results are what was measured, in some of the forms that it is written in.
type Results interface {
	Text(w io.Writer)
	Plot(w io.Writer) error
	// Failed is an error if something of ours could not be measured.
	Failed() error
}

// Files are the names of what results are written to; they are not written where there is none.
type Files struct{ JSON, SVG, Markdown string }

// Write prints the results, writes the files, the page by a function, and fails if something of
// ours could not be measured.
func (f *Files) Write(r Results, markdown func(io.Writer) error) error {
	r.Text(os.Stdout)
	for _, x := range []struct {
		name  string
		write func(io.Writer) error
	}{{f.JSON, func(w io.Writer) error { return JSON(w, r) }}, {f.Markdown, markdown}, {f.SVG, r.Plot}} {
		if x.name == "" {
			continue
		}
		if err := writeFile(x.name, x.write); err != nil {
			return err
		}
	}
	return r.Failed()
}

func writeFile(name string, write func(io.Writer) error) error {
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		return err
	}
	f, err := os.Create(name)
	if err != nil {
		return err
	}
	return errors.Join(write(f), f.Close())
}

// FirstLine is the first line of what a program said.
func FirstLine(b []byte) string {
	line, _, _ := strings.Cut(strings.TrimSpace(string(b)), "\n")
	return line
}
