package mount

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/rstored/rstored/cmd/internal/cli"
	"github.com/rstored/rstored/cmd/internal/config"
)

// fstype is the type of these mounts in /proc/self/mountinfo.
const fstype = "fuse.rstored"

// entry is a line of /proc/self/mountinfo.
type entry struct {
	dir, source string
	minor       uint32 // of the device number
	user        string // user who mounted it, as a number
}

// parseMounts reads the mounts of rstorectl from the text of mountinfo (proc_pid_mountinfo(5)).
func parseMounts(r io.Reader) (list []entry, err error) {
	s := bufio.NewScanner(r)
	for s.Scan() {
		before, after, ok := strings.Cut(s.Text(), " - ")
		left, right := strings.Fields(before), strings.Fields(after)
		if !ok || len(left) < 5 || len(right) < 2 || right[0] != fstype {
			continue
		}
		_, minor, _ := strings.Cut(left[2], ":")
		n, _ := strconv.ParseUint(minor, 10, 32)
		e := entry{dir: config.Unescape(left[4]), source: config.Unescape(right[1]), minor: uint32(n)}
		for o := range strings.SplitSeq(right[len(right)-1], ",") {
			if user, ok := strings.CutPrefix(o, "user_id="); ok {
				e.user = user
			}
		}
		list = append(list, e)
	}
	return list, s.Err()
}

func allMounts() ([]entry, error) {
	f, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	return parseMounts(f)
}

// find returns the uppermost mount at a directory.
func find(dir string) (m entry, err error) {
	list, err := allMounts()
	if err != nil {
		return m, err
	}
	for _, e := range list {
		if e.dir == dir {
			m = e
		}
	}
	if m.dir == "" {
		return m, fmt.Errorf("%s is not a mount of rstorectl; 'rstorectl mounts' lists them", dir)
	}
	return m, nil
}

// listMounts returns the mounts of this host. With a directory it returns the mount there.
func listMounts(args []string) ([]Mount, error) {
	list, err := allMounts()
	if err != nil {
		return nil, err
	}
	dir := ""
	if len(args) == 1 {
		if dir, err = absolute(args[0]); err != nil {
			return nil, err
		}
	}
	known := allPublished()
	all := []Mount{}
	for _, e := range list {
		if dir != "" && dir != e.dir {
			continue
		}
		m, ok := known[e.minor]
		if !ok {
			m = Mount{Dir: e.dir, Source: e.source, State: stateDead}
			if e.user != fmt.Sprint(os.Geteuid()) {
				m.State = stateForeign
			}
		}
		all = append(all, m)
	}
	if dir != "" && len(all) == 0 {
		return nil, fmt.Errorf("%s is not a mount of rstorectl", dir)
	}
	return all, nil
}

func mountsCommand(g *cli.Globals) *cobra.Command {
	var verbose bool
	var file string
	var interval time.Duration
	var count int
	c := &cobra.Command{
		Use: "mounts [DIR]", Short: "List the mounts of this host with their statistics",
		Args: cli.Args(cobra.MaximumNArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			if interval < 0 || count < 0 {
				return cli.Usagef("--interval and --count are not negative")
			}
			report := func(before, all []Mount, took time.Duration) error {
				switch {
				case file != "":
					return writeMetrics(file, all)
				case interval > 0 && before == nil:
					return nil
				case interval > 0:
					rates := ratesOf(before, all, took)
					return g.Print(rates, func(w io.Writer) { printRates(w, rates) })
				}
				return g.Print(all, func(w io.Writer) { printMounts(w, all, verbose || len(args) == 1) })
			}
			return repeat(cmd.Context(), interval, count, func() ([]Mount, error) { return listMounts(args) }, report)
		},
	}
	c.Long = "List the mounts of this host, or one of them, with their statistics. Other users' mounts are listed " +
		"without. The state is ok; waiting, if the server does not answer; or dead, if the process of the mount has " +
		"ended ('rstorectl umount' cleans up). With --interval the command shows again and again what the mounts do in " +
		"a second. With --metrics it writes a file for the textfile collector of Prometheus' node_exporter."
	f := c.Flags()
	f.BoolVarP(&verbose, "verbose", "v", false, "operations, calls and bytes of each mount, as mountstats(8) has them")
	f.DurationVarP(&interval, "interval", "d", 0, "`DURATION` between reports of rates, or of --metrics")
	f.IntVarP(&count, "count", "n", 0, "end after `N` reports with --interval, 0 for no end")
	f.StringVar(&file, "metrics", "", "replace `FILE` with the metrics in Prometheus' text format")
	return c
}

// repeat calls report with the result of list, with the previous result, and with the time between
// the two. It does so once, or every interval until ctx ends or count reports of a difference were
// made.
func repeat(ctx context.Context, interval time.Duration, count int, list func() ([]Mount, error),
	report func(before, all []Mount, took time.Duration) error,
) error {
	var before []Mount
	var last time.Time
	for n := 0; ; n++ {
		all, err := list()
		now := time.Now()
		if err == nil {
			err = report(before, all, now.Sub(last))
		}
		if err != nil || interval == 0 || count > 0 && n == count {
			return err
		}
		before, last = all, now
		select {
		case <-time.After(interval):
		case <-ctx.Done():
			return nil
		}
	}
}

func printMounts(w io.Writer, all []Mount, verbose bool) {
	if len(all) == 0 {
		fmt.Fprintln(w, "there are no mounts")
		return
	}
	if !verbose {
		fmt.Fprintln(w, "DIRECTORY\tSOURCE\tVERSION\tSTATE\tSINCE\tREAD\tWRITTEN\tPID")
	}
	for _, m := range all {
		var read, written uint64
		since := "-"
		if m.FS != nil {
			read, written, since = m.FS.BytesRead, m.FS.BytesWritten, time.Since(m.Since).Truncate(time.Second).String()
		}
		if !verbose {
			fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%d\t%d\t%d\n", m.Dir, m.Source, m.Version, m.State, since, read, written,
				m.PID)
			continue
		}
		fmt.Fprintf(w, "%s\ton %s, NFS %s over %s, %s, for %s, process %d\n", m.Source, m.Dir, m.Version, m.Transport,
			m.State, since, m.PID)
		printStats(w, &m)
	}
}

func printStats(w io.Writer, m *Mount) {
	if m.FS == nil {
		return
	}
	s, c := m.FS, m.Client
	for _, l := range []struct {
		name  string
		value any
	}{
		{"options", m.Options},
		{"log", m.Log},
		{"connections made", c.Connections},
		{"calls sent again", c.Resent},
		{"sessions made", c.Sessions},
		{"opens and locks reclaimed", c.Reclaimed + c.Relocked},
		{"bytes read, written", fmt.Sprint(s.BytesRead, ", ", s.BytesWritten)},
		{"blocks read ahead, reads served by them", fmt.Sprint(s.ReadAhead, ", ", s.ReadHits)},
		{"writes sent, repeated, failed", fmt.Sprint(s.Writes, ", ", s.Rewrites, ", ", s.LostWrites)},
		{"commits", s.Commits},
		{"files changed by others", s.Invalidated},
		{"writes that waited for memory", s.Stalled},
		{"objects known, open", fmt.Sprint(s.Nodes, ", ", s.OpenFiles)},
		{"free buffers in bytes", s.FreeMemory},
	} {
		fmt.Fprintf(w, "  %s\t%v\n", l.name, l.value)
	}
	fmt.Fprintln(w, "  operation\tcalls\tfailed\taverage")
	for _, o := range s.Ops {
		average := (o.Time / time.Duration(o.Calls)).Round(time.Microsecond)
		fmt.Fprintf(w, "  %s\t%d\t%d\t%v\n", o.Name, o.Calls, o.Failed, average)
	}
}

// absolute returns the absolute path of a mounted directory. It follows symbolic links up to the
// last component. It never calls the mounted file system, which may not answer.
func absolute(dir string) (string, error) {
	dir, err := filepath.Abs(dir)
	if err != nil || dir == "/" {
		return dir, err
	}
	list, err := allMounts()
	if err != nil {
		return "", err
	}
	for _, e := range list {
		if e.dir == dir {
			return dir, nil
		}
	}
	parent, err := filepath.EvalSymlinks(filepath.Dir(dir))
	return filepath.Join(parent, filepath.Base(dir)), err
}
