package daemon

import (
	"bytes"
	"cmp"
	"context"
	"encoding/gob"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"github.com/rstored/rstored/cmd/internal/cli"
	"github.com/rstored/rstored/cmd/internal/config"
	"github.com/rstored/rstored/cmd/internal/control"
	"github.com/rstored/rstored/cmd/internal/exports"
	"github.com/rstored/rstored/cmd/internal/handover"
	"github.com/rstored/rstored/cmd/internal/safepath"
	"github.com/rstored/rstored/rpcrdma/rpc"
)

// An upgrade hands everything that clients know of to another process, the executable on disk,
// and clients notice a pause. The two processes speak over a pair of sockets:
//
//	old: hello                     new: prepared
//	(stands still) parts, restore       restored
//	go                                  serving
//
// Until it has sent go, the old process can go on as if nothing had been: the new one has sent no
// packet, taken no call, and written nothing that counts. From then on it never does, whatever
// becomes of the new one: so the two never serve at once.

// Words of the two processes, as names of parts.
const (
	wordHello    = "hello"
	wordPrepared = "prepared"
	wordRestore  = "restore"
	wordRestored = "restored"
	wordGo       = "go"
	wordServing  = "serving"
	wordError    = "error"

	wordVersion = 1
)

// upgradeTimes are how long the steps of an upgrade may take.
type upgradeTimes struct {
	prepare time.Duration
	// drain is how long calls that have arrived may take, and drop how long the loss of clients
	// that are not there may.
	drain, drop time.Duration
	// restore bounds the pause of an upgrade that fails.
	restore time.Duration
	// serving is how long the new process has to say that it serves, once it may.
	serving time.Duration
}

var defaultTimes = upgradeTimes{
	prepare: 10 * time.Second, drain: 500 * time.Millisecond, drop: 200 * time.Millisecond, restore: 5 * time.Second, serving: 10 * time.Second,
}

// drainTick is how often it is looked whether everything stands still.
const drainTick = 500 * time.Microsecond

// hello is what the new process is to know before anything stands still.
type hello struct {
	Version           string
	StateDir, Control string
}

// restored is what the new process has taken over.
type restored struct {
	Version   string
	RDMA, TCP int
}

// encode makes the data of a part.
func encode(v any) ([]byte, error) {
	var b bytes.Buffer
	if err := gob.NewEncoder(&b).Encode(v); err != nil {
		return nil, err
	}
	return b.Bytes(), nil
}

// decode reads the data of a part.
func decode(p *handover.Part, v any) error {
	if err := gob.NewDecoder(bytes.NewReader(p.Data)).Decode(v); err != nil {
		return fmt.Errorf("part %q of the handover: %w", p.Name, err)
	}
	return nil
}

// executable is the path by which this process was started, which an upgrade starts again.
func executable() (string, error) {
	if p, err := exec.LookPath(os.Args[0]); err == nil {
		if p, err = filepath.Abs(p); err == nil && runs(p) {
			return p, nil
		}
	}
	return os.Executable()
}

// runs reports whether the file at a path is the one that this process executes.
func runs(path string) bool {
	a, err := os.Stat("/proc/self/exe")
	if err != nil {
		return true // nobody knows
	}
	b, err := os.Stat(path)
	return err == nil && os.SameFile(a, b)
}

// errUpgrading says that only one at a time changes the process.
var errUpgrading = errors.New("a reload or an upgrade is under way")

// Upgrade implements control.Backend. When it succeeds the process has nothing to do any more but to end.
func (d *Daemon) Upgrade(path string) (control.Upgraded, error) {
	if !d.reloading.TryLock() {
		return control.Upgraded{}, errUpgrading
	}
	defer d.reloading.Unlock()
	d.notify(d.manager.Reloading())
	u, err := d.upgrade(path)
	if err != nil {
		d.notify(d.manager.Ready(d.summary()))
	}
	return u, err
}

// upgrade is Upgrade, with reloading held.
func (d *Daemon) upgrade(path string) (_ control.Upgraded, err error) {
	if d.isReplaced() {
		return control.Upgraded{}, errReplaced
	}
	named := path != "" && path != d.exe
	path = cmp.Or(path, d.exe)
	for _, e := range d.Exports() {
		if e.Type == config.TypeMemory {
			return control.Upgraded{}, fmt.Errorf("export %s is in the memory of this process, and would be lost; a restart loses it too", e.Pseudo)
		}
	}
	began := time.Now()
	d.log.Info("upgrading", zap.String("executable", path))
	defer func() {
		if err != nil {
			if !errors.Is(err, errSuccessorFailed) {
				err = fmt.Errorf("%w; %s goes on", err, cli.ReadBuild().Version)
			}
			d.log.Error("the upgrade has failed", zap.Error(err))
		}
		d.audit.Record("upgrade", zap.String("executable", path), zap.Error(err))
	}()
	if named {
		if err := safepath.Check(path, safepath.Me()...); err != nil {
			return control.Upgraded{}, fmt.Errorf("only what nobody but root can change is executed: %w", err)
		}
	}
	h, err := d.spawn(path)
	if err != nil {
		return control.Upgraded{}, err
	}
	u := control.Upgraded{Executable: path, OldVersion: cli.ReadBuild().String(), OldPID: os.Getpid(), PID: h.cmd.Process.Pid}
	said, err := h.prepare(d.times.prepare, hello{Version: u.OldVersion, StateDir: d.cfg.Load().StateDir, Control: d.cfg.Load().Control})
	if err != nil {
		return control.Upgraded{}, errors.Join(fmt.Errorf("%s did not get ready: %w", path, err), h.kill())
	}
	u.NewVersion = said.Version
	u.PrepareMillis = millis(time.Since(began))

	if err := d.mayChange(); err != nil {
		return control.Upgraded{}, errors.Join(err, h.kill())
	}
	defer d.mu.Unlock()
	if !d.acting.TryLock() {
		return control.Upgraded{}, errors.Join(errActing, h.kill())
	}
	defer d.acting.Unlock()
	stood := time.Now()
	thaw, err := d.freeze(&u)
	if err == nil {
		err = d.hand(h, &u)
	}
	if err == nil && d.draining.Load() { // since it began
		err = errDraining
	}
	if err != nil {
		err = errors.Join(err, h.kill()) // before anything goes on here
		return control.Upgraded{}, errors.Join(err, thaw())
	}
	// There is no way back from here.
	d.handedOver = true
	d.notify(d.manager.MainPID(u.PID))
	if err := h.conn.Send(&handover.Part{Name: wordGo}); err != nil {
		return control.Upgraded{}, d.abandon(h, err)
	}
	u.Dropped += d.closeKernelPorts()
	if err := h.await(wordServing, d.times.serving, nil); err != nil {
		return control.Upgraded{}, d.abandon(h, err)
	}
	u.PauseMillis = millis(time.Since(stood))
	h.release()
	d.log.Info("upgraded: the new process serves", zap.String("version", u.NewVersion), zap.Int("pid", u.PID), zap.Float64("pause_ms", u.PauseMillis), zap.Float64("drain_ms", u.DrainMillis),
		zap.Int("rdma", u.RDMA), zap.Int("tcp", u.TCP), zap.Int("dropped", u.Dropped))
	close(d.replaced)
	return u, nil
}

func millis(d time.Duration) float64 {
	return float64(d.Round(10*time.Microsecond)) / float64(time.Millisecond)
}

// errReplaced is what is said to who asks a process for a change that another has taken the place of.
var errReplaced = errors.New("another process has taken over; ask that one")

// mayChange locks mu for a change, or says why there can be none any more.
func (d *Daemon) mayChange() error {
	d.mu.Lock()
	switch {
	case d.handedOver:
		d.mu.Unlock()
		return errReplaced
	case d.draining.Load():
		d.mu.Unlock()
		return errDraining
	}
	return nil
}

// errActing says that somebody takes from clients what they have, which would be lost in the middle of it.
var errActing = errors.New("a client is being evicted, or the grace period ended")

// mayAct keeps everything from being handed over until done is called, or says that it was.
func (d *Daemon) mayAct() (done func(), err error) {
	d.acting.RLock()
	if d.handedOver {
		d.acting.RUnlock()
		return nil, errReplaced
	}
	return d.acting.RUnlock, nil
}

// isReplaced reports whether another process has taken over.
func (d *Daemon) isReplaced() bool {
	select {
	case <-d.replaced:
		return true
	default:
		return false
	}
}

// errSuccessorFailed is the end of a process whose successor died: what that has begun nobody knows.
var errSuccessorFailed = errors.New("the new process failed after it had taken over")

// abandon ends a process that has handed everything over to one that does not say that it serves. The service
// manager starts another, as after a crash.
func (d *Daemon) abandon(h *successor, why error) error {
	err := errors.Join(fmt.Errorf("%w: %w", errSuccessorFailed, why), h.kill())
	d.notify(d.manager.MainPID(os.Getpid()))
	d.failed <- err
	return err
}

// successor is the process that is to take over.
type successor struct {
	conn *handover.Conn
	cmd  *exec.Cmd
	end  chan struct{} // closed when it has ended
}

// spawn starts the executable at path as this process was started.
func (d *Daemon) spawn(path string) (*successor, error) {
	conn, theirs, err := handover.Pair()
	if err != nil {
		return nil, err
	}
	defer func() { _ = theirs.Close() }()
	cmd := exec.Command(path, os.Args[1:]...)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	cmd.ExtraFiles = []*os.File{theirs}
	cmd.Env = slices.DeleteFunc(os.Environ(), func(v string) bool {
		// The watchdog watches whichever process is the main one.
		return strings.HasPrefix(v, "WATCHDOG_PID=") || strings.HasPrefix(v, handover.Variable+"=")
	})
	const extra = 3 // the first of ExtraFiles
	cmd.Env = append(cmd.Env, fmt.Sprintf("%s=%d", handover.Variable, extra))
	if err := cmd.Start(); err != nil {
		_ = conn.Close()
		return nil, err
	}
	h := &successor{conn: conn, cmd: cmd, end: make(chan struct{})}
	go func() {
		_ = cmd.Wait()
		close(h.end)
	}()
	return h, nil
}

// kill ends the process, and returns when it has ended.
func (h *successor) kill() error {
	_ = h.cmd.Process.Kill() // it may have ended by itself
	<-h.end
	return h.conn.Close()
}

// release lets go of a process that serves.
func (h *successor) release() { _ = h.conn.Close() }

// await receives one word, within a time.
func (h *successor) await(word string, within time.Duration, v any) error {
	if err := h.conn.SetDeadline(time.Now().Add(within)); err != nil {
		return err
	}
	p, err := h.conn.Receive()
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
		return fmt.Errorf("nothing came of it for %v", within)
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, unix.ECONNRESET), errors.Is(err, unix.EPIPE):
		return errors.New("it ended; its error is in the log")
	case err != nil:
		return err
	}
	p.Close()
	switch {
	case p.Name == wordError:
		return errors.New(string(p.Data))
	case p.Name != word:
		return fmt.Errorf("it said %q instead of %q", p.Name, word)
	case v != nil:
		return decode(p, v)
	}
	return nil
}

// prepare waits until the process has done what it can do while this one serves.
func (h *successor) prepare(within time.Duration, say hello) (got restored, err error) {
	data, err := encode(say)
	if err != nil {
		return got, err
	}
	if err := h.conn.SetDeadline(time.Now().Add(within)); err != nil {
		return got, err
	}
	if err := h.conn.Send(&handover.Part{Name: wordHello, Version: wordVersion, Data: data}); err != nil {
		return got, errors.New("it ended, or is no rstored that knows how to take over; its error is in the log")
	}
	err = h.await(wordPrepared, within, &got)
	return got, err
}

// freeze stops everything, once the calls that have arrived are answered and clients know the answers. thaw has it go
// on, and is to be called whatever freeze returns. Call with mu held.
func (d *Daemon) freeze(u *control.Upgraded) (thaw func() error, err error) {
	var undo []func() error
	thaw = func() error {
		var errs []error
		for _, fn := range slices.Backward(undo) {
			errs = append(errs, fn())
		}
		return errors.Join(errs...)
	}
	hold := func(fn func(bool)) {
		fn(true)
		undo = append(undo, func() error { fn(false); return nil })
	}
	for _, v := range d.softDevices() {
		hold(v.soft.Hold)
	}
	for _, e := range d.ends() {
		switch {
		case e.rdma != nil:
			hold(e.rdma.Pause)
		case e.tcp != nil:
			hold(e.tcp.Pause)
		}
	}
	hold(d.rpc.ServeDeferred)
	hold(d.portmap.ServeDeferred)
	began := time.Now()
	u.Dropped, err = d.drain()
	if err == nil {
		hold(d.nlm.Hold)
		hold(d.nfs4.StandStill)
		// What they were about to tell clients is to be on its way.
		var more int
		more, err = d.drain()
		u.Dropped += more
	}
	for until := time.Now().Add(d.times.drain); err == nil; {
		release := d.stopLoops()
		if d.quiet() {
			undo = append(undo, func() error { release(); return nil })
			break
		}
		// A client was in the middle of a message when the loops stood.
		release()
		if time.Now().After(until) {
			err = errors.New("clients do not come to rest")
			break
		}
		var more int
		more, err = d.drain()
		u.Dropped += more
	}
	u.DrainMillis = millis(time.Since(began))
	if err != nil {
		return thaw, err
	}
	for _, e := range d.exports.All() {
		s, ok := movable(e)
		if !ok {
			continue
		}
		if err := s.Release(); err != nil {
			return thaw, fmt.Errorf("export %s: %w", e.Pseudo, err)
		}
		undo = append(undo, func() error { return errors.Join(s.Resume(), s.Settle()) })
	}
	if err := d.state.Release(); err != nil {
		return thaw, err
	}
	undo = append(undo, d.state.Resume)
	return thaw, nil
}

// stopLoops stops the loops of all devices, until release is called.
func (d *Daemon) stopLoops() (release func()) {
	var all []func()
	for _, v := range d.softDevices() {
		all = append(all, v.soft.Park())
	}
	return func() {
		for _, fn := range all {
			fn()
		}
	}
}

// quiet reports whether nothing is under way over RDMA, while the loops stand. Call with mu held.
func (d *Daemon) quiet() bool {
	return !slices.ContainsFunc(d.ends(), func(e endpoint) bool { return e.rdma != nil && !e.rdma.Quiescent() })
}

// ends are all endpoints. Call with mu held.
func (d *Daemon) ends() (out []endpoint) {
	for _, p := range d.ports {
		out = append(out, p.ends...)
	}
	return out
}

// busy is what is under way on the connections: those that calls of clients wait on, and those that only clients can end.
func (d *Daemon) busy() (calls int, drops []func()) {
	for _, e := range d.ends() {
		switch {
		case e.rdma != nil:
			for _, b := range e.rdma.Busy() {
				calls += b.Calls
				if b.Calls == 0 {
					drops = append(drops, func() {
						e.rdma.Drop(b.Remote, errors.New("it does not answer, and another process takes over"))
					})
				}
			}
		case e.tcp != nil:
			for _, b := range e.tcp.Busy() {
				// What is only not written yet is not in progress in the server.
				drops = append(drops, func() { e.tcp.Drop(b.Remote) })
			}
		}
	}
	l := d.rpc.Load()
	return calls + l.Busy + l.Queued, drops
}

// drain waits until nothing is under way, and ends the connections of clients that are not there to end it. It returns
// their number. Call with mu held.
func (d *Daemon) drain() (dropped int, err error) {
	for until := time.Now().Add(d.times.drain); ; time.Sleep(drainTick) {
		calls, drops := d.busy()
		switch {
		case calls == 0 && len(drops) == 0:
			return dropped, nil
		case time.Now().Before(until):
		case calls > 0:
			what := d.rpc.InProgress()
			if len(what) == 0 {
				what = []string{"their clients are slow to give data, or to take it"}
			}
			return dropped, fmt.Errorf("%d calls take too long: %s", calls, strings.Join(what, "; "))
		case dropped > 0:
			return dropped, fmt.Errorf("%d connections do not come to rest", len(drops))
		default:
			for _, drop := range drops {
				drop()
			}
			dropped, until = len(drops), time.Now().Add(d.times.drop)
		}
	}
}

// hand sends everything to a process and waits until that has made it its own. Call with mu held.
func (d *Daemon) hand(h *successor, u *control.Upgraded) error {
	if err := h.conn.SetDeadline(time.Now().Add(d.times.restore)); err != nil {
		return err
	}
	parts, err := d.parts()
	defer func() {
		for _, p := range parts {
			p.Close()
		}
	}()
	if err != nil {
		return err
	}
	for _, p := range append(parts, &handover.Part{Name: wordRestore}) {
		if err := h.conn.Send(p); err != nil {
			// It may have said why it ended.
			if said := h.await(wordRestored, time.Second, nil); said != nil {
				err = said
			}
			return fmt.Errorf("the new process takes nothing over: %w", err)
		}
	}
	var got restored
	if err := h.await(wordRestored, d.times.restore, &got); err != nil {
		return fmt.Errorf("the new process cannot take over: %w", err)
	}
	u.RDMA, u.TCP = got.RDMA, got.TCP
	for _, e := range d.ends() {
		if e.tcp != nil {
			u.Dropped += e.tcp.Fixed()
		}
	}
	return nil
}

// Names of parts; those with an address are followed by it.
const (
	partSockets = "sockets"
	partState   = "state directory"
	partControl = "control"
	partDevice  = "device "
	partRDMA    = "rdma "
	partTCP     = "tcp "
	partStore   = "store "
	partCallers = "callers"
	partReplies = "replies"
	partLocks   = "locks"
	partNLM     = "lock manager"
	partNFS4    = "nfs4"

	// partVersion is that of all parts. It changes when what an earlier program hands over cannot be understood.
	partVersion = 1
)

// parts describes everything, while it stands still. Call with mu held.
func (d *Daemon) parts() (out []*handover.Part, err error) {
	add := func(name string, data []byte, files []*os.File, err error) error {
		if err != nil {
			for _, f := range files {
				_ = f.Close()
			}
			return fmt.Errorf("part %q of the handover: %w", name, err)
		}
		out = append(out, &handover.Part{Name: name, Version: partVersion, Data: data, Files: files})
		return nil
	}
	names, files, err := d.sockets.Copies()
	var data []byte
	if err == nil {
		data, err = encode(names)
	}
	if err := add(partSockets, data, files, err); err != nil {
		return out, err
	}
	lock, err := d.state.Lock()
	if err := add(partState, nil, []*os.File{lock}, err); err != nil {
		return out, err
	}
	sock, err := d.listener.(*net.UnixListener).File()
	if err := add(partControl, nil, []*os.File{sock}, err); err != nil {
		return out, err
	}
	for _, e := range d.exports.All() {
		if s, ok := movable(e); ok {
			data, files, err := s.Handover()
			if err := add(partStore+e.Pseudo, data, files, err); err != nil {
				return out, err
			}
		}
	}
	data, err = d.rpc.Snapshot()
	if err := add(partReplies, data, nil, err); err != nil {
		return out, err
	}
	data, err = d.locks.Snapshot()
	if err := add(partLocks, data, nil, err); err != nil {
		return out, err
	}
	data, err = d.nlm.Snapshot()
	if err := add(partNLM, data, nil, err); err != nil {
		return out, err
	}
	peers, numbers := d.callers()
	data, err = encode(peers)
	if err := add(partCallers, data, nil, err); err != nil {
		return out, err
	}
	data, err = d.nfs4.Snapshot(func(c rpc.Caller) (uint64, bool) {
		n, ok := numbers[c]
		return n, ok
	})
	if err := add(partNFS4, data, nil, err); err != nil {
		return out, err
	}
	for _, v := range d.softDevices() {
		s, err := v.soft.Export()
		if err == nil {
			data, err = encode(s)
		}
		if err := add(partDevice+v.addr.String(), data, nil, err); err != nil {
			return out, err
		}
	}
	for _, e := range d.ends() {
		switch {
		case e.onKernelDevice(): // its connections end
		case e.rdma != nil:
			data, files, err := e.rdma.Export()
			if err := add(partRDMA+e.addr.String(), data, files, err); err != nil {
				return out, err
			}
		case e.tcp != nil:
			data, files, err := e.tcp.Export()
			if err := add(partTCP+e.addr.String(), data, files, err); err != nil {
				return out, err
			}
		}
	}
	return out, nil
}

// restorable is a store that goes on in another process.
type restorable interface {
	Release() error
	Resume() error
	Settle() error
	Handover() (data []byte, files []*os.File, err error)
	Takeover(data []byte, files []*os.File) error
}

// movable is the store of an export, if it can go on in another process.
func movable(e *exports.Export) (restorable, bool) {
	if !e.Open() {
		return nil, false
	}
	m, ok := e.Store().(restorable)
	return m, ok
}

// onKernelDevice reports whether an endpoint's connections are the kernel's, which hands them to no other process.
func (e *endpoint) onKernelDevice() bool { return e.dev != nil && e.dev.kernel != nil }

// closeKernelPorts closes the endpoints on devices of the kernel, whose ports the new process can only have after this
// one, and returns how many clients of them have to connect again. Call with mu held.
func (d *Daemon) closeKernelPorts() (dropped int) {
	over, cancel := context.WithCancel(context.Background())
	cancel() // their calls have ended
	all := new(port)
	for _, e := range d.ends() {
		if !e.onKernelDevice() {
			continue
		}
		if e.rdma != nil {
			dropped += len(e.rdma.Conns())
		}
		all.ends = append(all.ends, e)
	}
	if err := all.stop(over); err != nil {
		d.log.Warn("closing the ports on devices of the kernel", zap.Error(err))
	}
	return dropped
}

// callers are those whom clients of connections can be called by: their peers, and their numbers, which are
// the places in the list of peers, from 1. Call with mu held.
func (d *Daemon) callers() (peers []rpc.Peer, numbers map[rpc.Caller]uint64) {
	numbers = make(map[rpc.Caller]uint64)
	for _, e := range d.ends() {
		var all map[rpc.Peer]rpc.Caller
		switch {
		case e.onKernelDevice():
		case e.rdma != nil:
			all = e.rdma.Callers()
		case e.tcp != nil:
			all = e.tcp.Callers()
		}
		for p, c := range all {
			peers = append(peers, p)
			numbers[c] = uint64(len(peers))
		}
	}
	return peers, numbers
}
