package guest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"github.com/rstored/rstored/test/bench/compare"
)

// StartDaemon starts rstored and waits until its ports are open.
func (r *Run) StartDaemon(ctx context.Context) error {
	if r.Case.servedByGuest() {
		_, err := r.order(ctx, "serve")
		return err
	}
	args := []string{"env"}
	for _, v := range r.Case.Setenv {
		args = append(args, strings.ReplaceAll(v, "%s", r.Exports))
	}
	args = append(args,
		filepath.Join(r.runner.Bin, "rstored"), "--log-format", "console",
		"--state-dir", r.path("state"), "--control", r.path("control"),
		"--rdma-listen", HostAddr+":20049", "--rdma-listen", "["+HostAddr6+"]:20049", "--tcp-listen", ":2049",
	)
	for _, e := range r.Case.Exports {
		args = append(args, "--export", exportOf(e, r.Exports))
	}
	for _, f := range r.Case.Daemon {
		args = append(args, strings.ReplaceAll(f, "%s", r.Exports))
	}
	p, err := r.start("rstored", r.log, args...)
	if err != nil {
		return err
	}
	r.daemon = p
	return r.until(ctx, p, "rstored to answer", func() bool { return r.Ctl("status") == nil })
}

// StopDaemon ends rstored with a signal.
func (r *Run) StopDaemon(sig syscall.Signal) error {
	if r.Case.servedByGuest() {
		_, err := r.order(context.Background(), "unserve", strconv.Itoa(int(sig)))
		return err
	}
	p := r.daemon
	r.daemon = nil
	if err := p.stop(sig); err != nil && sig == syscall.SIGTERM {
		return fmt.Errorf("rstored: %w", err)
	}
	return nil
}

// SignalDaemon sends rstored a signal that it survives.
func (r *Run) SignalDaemon(sig syscall.Signal) error {
	if r.Case.servedByGuest() {
		_, err := r.order(context.Background(), "kill", "-"+strconv.Itoa(int(sig)), "$DAEMON")
		return err
	}
	return r.daemon.cmd.Process.Signal(sig)
}

// signalGuest sends a signal to guest i; what it runs is stopped where its kernel is.
func (r *Run) signalGuest(i int, sig syscall.Signal) error {
	p, ok := r.vms.Load(i)
	if !ok {
		return fmt.Errorf("guest %d was not started", i)
	}
	return p.(*process).cmd.Process.Signal(sig)
}

// Processor is the processor time in seconds that guest i has used, in its kernel and in
// its processes. i of -1 is the daemon.
func (r *Run) Processor(i int) (float64, error) {
	p := r.daemon
	if i >= 0 {
		v, ok := r.vms.Load(i)
		if !ok {
			return 0, fmt.Errorf("guest %d was not started", i)
		}
		p = v.(*process)
	}
	if p == nil {
		return 0, errors.New("there is no daemon")
	}
	return compare.GroupCPU(p.cmd.Process.Pid)
}

// Ctl runs rstorectl against the daemon.
func (r *Run) Ctl(args ...string) error {
	_, err := r.CtlOutput(args...)
	return err
}

// CtlOutput is what rstorectl prints.
func (r *Run) CtlOutput(args ...string) (string, error) {
	if r.Case.servedByGuest() {
		words := []string{"ctl"}
		for _, a := range args {
			words = append(words, quote(a))
		}
		return r.order(context.Background(), words...)
	}
	args = append([]string{"--control", r.path("control")}, args...)
	return output(exec.Command(filepath.Join(r.runner.Bin, "rstorectl"), args...))
}

// holdings are what a daemon has because of its clients.
type holdings struct {
	Files, QPs, Regions int // open files, queue pairs, memory regions
}

// holdings counts them.
func (r *Run) holdings() (h holdings, err error) {
	if h.Files, err = r.openFiles(); err != nil {
		return h, err
	}
	out, err := r.CtlOutput("stats", "-o", "json")
	if err != nil {
		return h, err
	}
	var stats struct {
		Devices map[string]struct{ QPs, Regions int }
	}
	if err := json.Unmarshal([]byte(out), &stats); err != nil {
		return h, err
	}
	for _, d := range stats.Devices {
		h.QPs += d.QPs
		h.Regions += d.Regions
	}
	return h, nil
}

// openFiles is how many descriptors the daemon has.
func (r *Run) openFiles() (int, error) {
	if r.Case.servedByGuest() {
		n, err := r.order(context.Background(), "open_files")
		if err != nil {
			return 0, err
		}
		return strconv.Atoi(strings.TrimSpace(n))
	}
	fds, err := os.ReadDir("/proc/" + strconv.Itoa(r.daemon.cmd.Process.Pid) + "/fd")
	return len(fds), err
}

// leftover is what was not given back. A few files come and go with the runtime; one
// for each of many mounts would not.
func (h holdings) leftover(before holdings) error {
	if h.QPs != before.QPs || h.Regions != before.Regions || h.Files > before.Files+5 {
		return fmt.Errorf("at the start %+v, and when the client is gone %+v", before, h)
	}
	return nil
}
