package main

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	_ "embed" // for the script
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/rstored/rstored/test/bench/compare"
	"github.com/rstored/rstored/test/guest"
)

//go:embed script.sh
var script string

const (
	mtu   = 4200        // of the interfaces, for a path MTU of 4096
	first = "10.99.0.3" // the second guest's, where knfsd is
	// knfsdName is the host of knfsd's principal.
	knfsdName = "knfsd.rstored.test"
	second    = "10.99.0.4" // and rstored

	client, server, host = 0, 1, -1 // whose processor time it is
)

// measure boots the guests and takes the rounds of what is asked for.
func measure(ctx context.Context, o *options, runner *guest.Runner, r *report) error {
	var wanted []experiment
	for _, e := range experiments() {
		if slices.ContainsFunc(rows(),
			func(w compare.Row) bool { return w.Experiment == e.name && o.rows.MatchString(w.Text()) }) {
			wanted = append(wanted, e)
		}
	}
	if len(wanted) == 0 {
		return errors.New("no row matches")
	}
	return runner.Run(ctx, &guest.Case{
		Name: "bench", Script: script, Guests: 2, Wires: 2, MTU: mtu, MemMB: 1200, Quiet: true, Timeout: time.Hour,
		Env: map[string]string{
			"FIRST": first, "SECOND": second, "MTU": strconv.Itoa(mtu), "JOBS": strconv.Itoa(jobs), "SIZE": strconv.Itoa(sizeMB),
		},
		FS: memory,
		Prepare: func(exports string) error {
			return errors.Join(image(disk(exports)), guest.MakeRealm(exports, knfsdName), fill(exports))
		},
		Exports: []string{
			"%s/memory=/memory(rw,no_root_squash,sec=sys:krb5:krb5i:krb5p)", "%s/disk=/disk(rw,no_root_squash)",
		},
		Daemon: []string{"--kerberos-keytab", "%s/../krb/server.keytab"},
		Setenv: []string{"KRB5_CONFIG=%s/../krb/krb5.conf"},
		Kernel: func(r *guest.Run, i int) []string {
			if i != server {
				return nil
			}
			return []string{"ubd1=" + disk(r.Exports)}
		},
		Host: func(ctx context.Context, run *guest.Run) error {
			for _, program := range []string{"rstored", "rstorectl"} {
				b, err := os.ReadFile(filepath.Join(runner.Bin, program))
				if err == nil {
					err = os.WriteFile(filepath.Join(run.Share, program), b, 0o755)
				}
				if err != nil {
					return err
				}
			}
			stop, err := run.StartKDC()
			if err != nil {
				return err
			}
			defer stop()
			if err := errors.Join(run.Tell("kdc"), run.Await(ctx, "mounted")); err != nil {
				return err
			}
			m := &measurer{run: run, took: o.took}
			for _, e := range wanted {
				for _, v := range e.variants() {
					if err := e.possible(v); err != nil {
						continue
					}
					if _, err := m.fio(ctx, &e, v, e.warm()); err != nil {
						return err
					}
				}
				all, err := compare.Rounds(ctx, o.rounds, e.name, e.variants(),
					func(ctx context.Context, v compare.Variant) (compare.Sample, error) { return m.ofSys(ctx, &e, v) })
				if err != nil {
					return err
				}
				r.Measured[e.name] = all
			}
			return m.end()
		},
	})
}

// memory mounts a file system in memory among the exports.
func memory(r *guest.Run) (undo func() error, err error) {
	dir := filepath.Join(r.Exports, "memory")
	if err := os.Mkdir(dir, 0o755); err != nil {
		return nil, err
	}
	if err := exec.Command("mount", "-t", "tmpfs", "-o", "mode=755", "tmpfs", dir).Run(); err != nil {
		return nil, fmt.Errorf("mounting tmpfs: %w", err)
	}
	return func() error { return exec.Command("umount", dir).Run() }, nil
}

// disk is the file that is the second guest's disk. It lies beside the exports, on the same file
// system of the host.
func disk(exports string) string { return filepath.Join(filepath.Dir(exports), "disk") }

// image makes a disk.
func image(name string) error {
	f, err := os.Create(name)
	if err != nil {
		return err
	}
	if err := errors.Join(f.Truncate(1<<30), f.Close()); err != nil {
		return err
	}
	out, err := exec.Command("mke2fs", "-q", "-t", "ext4", "-E", "lazy_itable_init=0,lazy_journal_init=0",
		name).CombinedOutput()
	if err != nil {
		return fmt.Errorf("mke2fs: %w: %s", err, compare.FirstLine(out))
	}
	return nil
}

// fill makes the host's files, as the script does the guest's.
func fill(exports string) error {
	b := make([]byte, sizeMB<<20)
	_, _ = rand.Read(b)
	if err := os.MkdirAll(filepath.Join(exports, "disk"), 0o755); err != nil {
		return err
	}
	for _, where := range []string{"memory", "disk"} {
		for i := range jobs {
			name := filepath.Join(exports, where, fmt.Sprintf("j.%d.0", i))
			// With Kerberos the client's root is anonymous.
			if err := errors.Join(os.WriteFile(name, b, 0o644), os.Chmod(name, 0o666)); err != nil {
				return err
			}
		}
	}
	return nil
}

// measurer has the first guest run fio.
type measurer struct {
	run  *guest.Run
	took time.Duration
	n    int // jobs until now
}

// warm are the arguments of a run that does not count: all of the files once, or where
// that would take long some of them.
func (e *experiment) warm() []string {
	if e.rw == "randread" {
		return []string{"--time_based", "--runtime=1"}
	}
	return nil
}

// possible says why a variant cannot be measured.
func (e *experiment) possible(v compare.Variant) error {
	if v == knfsd && e.sec == "krb5p" {
		// svcauth_gss_unwrap_priv of Debian's 6.1.192 reads length and sequence number from a stream that
		// nfsd_dispatch begins again, so that the procedure finds them in the place of its arguments.
		return errors.New("the server of this kernel cannot decode calls with krb5p, of its own client neither")
	}
	return nil
}

// ofSys is sample. With a flavor of Kerberos it measures sec=sys as well, and returns the share of
// that in Value.
func (m *measurer) ofSys(ctx context.Context, e *experiment, v compare.Variant) (s compare.Sample, err error) {
	if e.sec == "" {
		return m.sample(ctx, e, v)
	}
	if err := e.possible(v); err != nil {
		return s, err
	}
	plain := *e
	plain.sec = ""
	sys, err := m.sample(ctx, &plain, v)
	if err != nil {
		return s, err
	}
	s, err = m.sample(ctx, e, v)
	s.Value = s.Ops / sys.Ops
	return s, err
}

// sample measures one experiment of one variant.
func (m *measurer) sample(ctx context.Context, e *experiment, v compare.Variant) (s compare.Sample, err error) {
	whose := server
	if v == onHost {
		whose = host
	}
	// What happens while fio starts is next to nothing for a server, and counted.
	before, err := m.used(whose)
	if err != nil {
		return s, err
	}
	clientBefore, err := m.run.Processor(client)
	if err != nil {
		return s, err
	}
	l, err := m.fio(ctx, e, v, []string{"--time_based", "--runtime=" + strconv.Itoa(int(m.took.Seconds()))})
	if err != nil {
		return s, err
	}
	after, err := m.used(whose)
	if err != nil {
		return s, err
	}
	clientAfter, err := m.run.Processor(client)
	if err != nil {
		return s, err
	}
	l.CPU = clientAfter - clientBefore
	return l.Sample(after - before)
}

// used is the processor time of a server, and of the host's threads for what interrupts leave
// to be done, which is the network's between the guests.
func (m *measurer) used(whose int) (float64, error) {
	sum, err := m.run.Processor(whose)
	if err != nil {
		return 0, err
	}
	names, err := filepath.Glob("/proc/[0-9]*/comm")
	if err != nil {
		return 0, err
	}
	for _, name := range names {
		b, err := os.ReadFile(name)
		if err != nil || !bytes.HasPrefix(b, []byte("ksoftirqd/")) {
			continue // most are others, and some have ended
		}
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(name)))
		if err != nil {
			continue
		}
		cpu, err := compare.CPU(pid)
		if err != nil {
			return 0, err
		}
		sum += cpu
	}
	return sum, nil
}

// fio runs it in the first guest.
func (m *measurer) fio(ctx context.Context, e *experiment, v compare.Variant, more []string) (l compare.Load,
	err error,
) {
	args := append([]string{
		"fio", "--name=j", "--directory=" + filepath.Join("/mnt", place(v), cmp.Or(e.sec, e.version), e.where),
		"--numjobs=" + strconv.Itoa(jobs), "--thread",
		fmt.Sprintf("--size=%dm", sizeMB), "--overwrite=1", "--direct=1", "--ioengine=psync", "--rw=" + e.rw,
		"--bs=" + e.block,
		"--group_reporting", "--output-format=json",
	}, more...)
	out, err := m.job(ctx, strings.Join(args, " "))
	if err != nil {
		return l, err
	}
	return parse(out)
}

// job has the first guest run a command, and returns what it prints.
func (m *measurer) job(ctx context.Context, command string) ([]byte, error) {
	n := strconv.Itoa(m.n)
	m.n++
	if err := os.WriteFile(filepath.Join(m.run.Share, "job."+n), []byte(command+"\n"), 0o644); err != nil {
		return nil, err
	}
	if err := m.run.Tell("job." + n); err != nil {
		return nil, err
	}
	if err := m.run.Await(ctx, "ran."+n); err != nil {
		return nil, err
	}
	return os.ReadFile(filepath.Join(m.run.Share, "out."+n))
}

// end lets both guests end.
func (m *measurer) end() error {
	if err := m.run.Tell("done"); err != nil {
		return err
	}
	n := strconv.Itoa(m.n)
	if err := os.WriteFile(filepath.Join(m.run.Share, "job."+n), nil, 0o644); err != nil {
		return err
	}
	return m.run.Tell("job." + n)
}

// parse reads what fio says of its jobs together.
func parse(out []byte) (l compare.Load, err error) {
	type direction struct {
		Bytes   uint64  `json:"io_bytes"`
		IOs     uint64  `json:"total_ios"`
		Runtime float64 `json:"runtime"` // milliseconds
		Took    struct {
			Percentile map[string]float64 `json:"percentile"` // nanoseconds
		} `json:"clat_ns"`
	}
	var f struct {
		Jobs []struct {
			Error       int
			Read, Write direction
		}
	}
	// Notes may come before it.
	if i := bytes.IndexByte(out, '{'); i > 0 {
		out = out[i:]
	}
	if err := json.Unmarshal(out, &f); err != nil {
		return l, fmt.Errorf("fio: %w: %s", err, compare.FirstLine(out))
	}
	if len(f.Jobs) != 1 || f.Jobs[0].Error != 0 {
		return l, fmt.Errorf("fio: %d groups of jobs, %s", len(f.Jobs), compare.FirstLine(out))
	}
	d := f.Jobs[0].Read
	if d.IOs == 0 {
		d = f.Jobs[0].Write
	}
	return compare.Load{
		Ops: d.IOs, Bytes: d.Bytes, Seconds: d.Runtime / 1000,
		P50: d.Took.Percentile["50.000000"] / 1e9, P99: d.Took.Percentile["99.000000"] / 1e9,
	}, nil
}
