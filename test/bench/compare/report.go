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
	h.Processor = ProcessorName()
	if b, err := os.ReadFile("/proc/loadavg"); err == nil {
		h.Load = strings.Join(strings.Fields(string(b))[:3], " ")
	}
	var st unix.Statfs_t
	if unix.Statfs(disk, &st) == nil {
		h.Disk = fileSystem(st.Type)
	}
}

// ProcessorName is the name of this host's processor with its family and model: hypervisors call
// many the same.
func ProcessorName() string {
	b, err := os.ReadFile("/proc/cpuinfo")
	if err != nil {
		return "unknown processor"
	}
	return processorName(string(b))
}

// processorName reads what the kernel says of the first processor.
func processorName(info string) string {
	has := make(map[string]string)
	for line := range strings.Lines(info) {
		if k, v, ok := strings.Cut(line, ":"); ok {
			if k = strings.TrimSpace(k); has[k] == "" {
				has[k] = strings.TrimSpace(v)
			}
		}
	}
	name := has["model name"]
	if name == "" {
		return "unknown processor"
	}
	if has["cpu family"] == "" {
		return name
	}
	return fmt.Sprintf("%s (family %s, model %s)", name, has["cpu family"], has["model"])
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
	ratio, against := "", x.Against
	switch {
	case x.Missing != "":
		ratio = "not measured: " + FirstLine([]byte(x.Missing))
	case x.Peer == nil:
	default:
		ratio = fmt.Sprintf("%s (%s to %s)", Number(x.Ratio), Number(x.Min), Number(x.Max))
		if c := r.Client(x.Peer.By); c != "" {
			against += ", " + c
		}
	}
	reached := "no"
	switch {
	case x.Missing != "" || x.told():
		reached = "-"
	case x.Reached:
		reached = "yes"
	}
	ours := value(x.Ours)
	for i := range x.Also {
		s := &x.Also[i]
		ours += fmt.Sprintf("; %s %s (%s)", r.Beside(s.By), value(s), Number(s.Ratio))
	}
	return []string{x.Measure, against, ours, value(x.Peer), ratio, x.wanted(), reached}
}

// told reports whether a row is for information: a ratio of which nothing is wanted.
func (x *Result) told() bool { return x.Wanted == 0 && x.Against != "" }

// wanted is what is to be reached.
func (x *Result) wanted() string {
	if x.told() {
		return "-"
	}
	sign := "≥ "
	if x.Less {
		sign = "≤ "
	}
	s := sign + Number(x.Wanted)
	if x.Against == "" {
		s = strings.TrimSpace(s + " " + x.Unit)
	}
	return s
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
	fmt.Fprintf(w, "%s; disk is %s\n%s: %s\n", r.where(), r.Host.Disk, r.Host.Processor, r.Tally())
}

// where is the host in one line.
func (r *Report) where() string {
	h := &r.Host
	s := fmt.Sprintf("%d cores, Linux %s, %s, load %s", h.Cores, h.Kernel, h.Go, h.Load)
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
	return errors.Join(f.write(r, r, markdown), r.Failed())
}

// write is Write with other data in the JSON.
func (f *Files) write(r Results, data any, markdown func(io.Writer) error) error {
	r.Text(os.Stdout)
	for _, x := range []struct {
		name  string
		write func(io.Writer) error
	}{{f.JSON, func(w io.Writer) error { return JSON(w, data) }}, {f.Markdown, markdown}, {f.SVG, r.Plot}} {
		if x.name == "" {
			continue
		}
		if err := writeFile(x.name, x.write); err != nil {
			return err
		}
	}
	return nil
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
