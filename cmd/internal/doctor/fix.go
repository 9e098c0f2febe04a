package doctor

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"strings"

	"github.com/rstored/rstored/rdma/link/udp"
)

// Step is a command of a remedy, as its words. The first word "rstorectl" is this program.
type Step []string

// String is the step as one types it into a shell.
func (s Step) String() string {
	words := make([]string, len(s))
	for i, w := range s {
		if words[i] = w; w == "" || strings.Trim(w, plainLetters) != "" {
			words[i] = "'" + strings.ReplaceAll(w, "'", `'\''`) + "'"
		}
	}
	return strings.Join(words, " ")
}

// plainLetters need no quotation marks in a shell.
const plainLetters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_./:=@%,+"

// fix gives the last finding a remedy that can be carried out. A remedy opens no access: it exports
// nothing, adds no client, listens at no address and changes no packet filter.
func (r *Report) fix(steps ...Step) { (*r)[len(*r)-1].Fix = steps }

// Fixable reports whether a finding has a remedy that can be carried out.
func (r Report) Fixable() bool {
	return slices.ContainsFunc(r, func(f Finding) bool { return f.Level != OK && len(f.Fix) > 0 })
}

// Fixer carries out remedies.
type Fixer struct {
	In  io.Reader // has the answers; its end is no
	Out io.Writer
	// Run runs a command with the caller's streams.
	Run func(ctx context.Context, s Step) error
}

// Fix shows the remedy of each finding that has one, asks before each step, and runs it. Steps that
// follow one that was refused or failed are left out. It returns how many were done, and what
// failed.
func (x *Fixer) Fix(ctx context.Context, r Report) (done int, err error) {
	answers := bufio.NewReader(x.In)
	asked := make(map[string]bool) // steps, and whether they were done: several findings can have one remedy
	for _, f := range r {
		if f.Level == OK || len(f.Fix) == 0 {
			continue
		}
		fmt.Fprintf(x.Out, "%s: %s\n", f.Level, f.What)
		for _, s := range f.Fix {
			if ok, before := asked[s.String()]; ok {
				continue
			} else if before {
				break
			}
			asked[s.String()] = false
			fmt.Fprintf(x.Out, "  run '%s'? [y/N] ", s)
			answer, readErr := answers.ReadString('\n')
			if readErr != nil {
				fmt.Fprintln(x.Out)
			}
			if a := strings.ToLower(strings.TrimSpace(answer)); a != "y" && a != "yes" {
				break
			}
			if runErr := x.Run(ctx, s); runErr != nil {
				fmt.Fprintf(x.Out, "  failed: %v\n", runErr)
				err = errors.Join(err, fmt.Errorf("'%s': %w", s, runErr))
				break
			}
			asked[s.String()] = true
			done++
		}
	}
	return done, err
}

// Names of the remedies.
const (
	unit       = "rstored.service"
	sysctlFile = "/etc/sysctl.d/60-rstored.conf"
)

// hasUnit reports whether the service manager of the host knows rstored.
func (h *Host) hasUnit() bool {
	if _, err := os.Stat(h.path("run/systemd/system")); err != nil {
		return false
	}
	return slices.ContainsFunc([]string{"etc/systemd/system/", "usr/lib/systemd/system/", "lib/systemd/system/"},
		func(dir string) bool {
			_, err := os.Stat(h.path(dir + unit))
			return err == nil
		})
}

// fixStart starts a service that is not running. It does nothing if why is a missing permission:
// then the service may run, and this user may not use its control socket.
func (r *Report) fixStart(h *Host, why error) {
	if h.hasUnit() && !errors.Is(why, fs.ErrPermission) {
		r.fix(Step{"systemctl", "start", "rstored"})
	}
}

// fixRestart restarts the service. Clients continue when it serves again.
func (r *Report) fixRestart(h *Host, before ...Step) {
	if h.hasUnit() {
		before = append(before, Step{"systemctl", "restart", "rstored"})
	}
	if len(before) > 0 {
		r.fix(before...)
	}
}

// fixReceiveLimit enlarges receive buffers, now and at each boot.
func (r *Report) fixReceiveLimit(h *Host) {
	r.fixRestart(h,
		Step{"sh", "-c", fmt.Sprintf("echo net.core.rmem_max=%d > %s", udp.DefaultReceiveBuffer, sysctlFile)},
		Step{"sysctl", "-p", sysctlFile})
}
