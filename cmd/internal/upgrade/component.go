package upgrade

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/rstored/rstored/cmd/internal/handover"
)

// Component is a part of the server whose state an upgrade hands over. The old process freezes its
// components stage by stage, all components at one stage before any component at the next, and then
// takes a snapshot of each. The new process restores a component when it makes it: the component
// takes its parts from the Predecessor, and registers with Predecessor.WhenServing what must not
// happen before the old process has sent go.
type Component interface {
	// Freeze brings the component to a stage. thaw undoes it if the upgrade fails. Both results are
	// nil for a stage that means nothing to the component.
	Freeze(Stage) (thaw func() error, err error)
	// Snapshot adds the component's parts. The component is frozen at every stage.
	Snapshot(*Parts)
}

// Stage is a step in the freezing of a server.
type Stage int

// The stages, in order. Freeze waits for the calls in progress after Intake, and again after
// Callbacks.
const (
	Intake    Stage = iota // nothing new is received
	Callbacks              // nothing is sent to clients but replies
	Loops                  // no loop runs; ErrBusy if a client is in the middle of a message
	Files                  // no file of a store or of the state directory changes
	stages
)

// ErrBusy is returned by Component.Freeze at Loops: the component has taken the stage back, and can
// reach it when the calls in progress have ended.
var ErrBusy = errors.New("clients are in the middle of messages")

// Work is what must end before the loops can stop.
type Work struct {
	// Calls is the number of calls in progress. They end without the client's help.
	Calls int
	// Each of Drops ends a connection that waits for its client: for the rest of a message, or
	// until the client takes a reply.
	Drops []func()
}

// Times are the limits of the steps of an upgrade.
type Times struct {
	// Prepare is for the new process until it is ready, while the old one serves.
	Prepare time.Duration
	// Drain is for the calls in progress, Drop for the end of connections that still wait for their
	// client.
	Drain, Drop time.Duration
	// Restore is for the new process from the first part until it has reported "restored". It
	// bounds the pause of an upgrade that fails.
	Restore time.Duration
	// Serving is for the new process to report that it serves, once it may.
	Serving time.Duration
}

// DefaultTimes are the limits in production.
var DefaultTimes = Times{
	Prepare: 10 * time.Second, Drain: 500 * time.Millisecond, Drop: 200 * time.Millisecond, Restore: 5 * time.Second,
	Serving: 10 * time.Second,
}

// drainTick is the interval at which Freeze looks at the work in progress.
const drainTick = 500 * time.Microsecond

// Freezer freezes components.
type Freezer struct {
	Components []Component
	// Work returns the work in progress of all components. Slow names the calls that take long.
	Work func() Work
	Slow func() []string
	Times
	// Dropped counts the connections that Freeze has ended. Drained is the time in which the calls
	// ended and the loops stopped.
	Dropped int
	Drained time.Duration

	thaws []func() error
}

// Freeze brings all components to every stage. Thaw must be called if Freeze fails, too.
func (f *Freezer) Freeze() error {
	began := time.Now()
	for s := range stages {
		err := f.stage(s)
		for until := time.Now().Add(f.Drain); errors.Is(err, ErrBusy) && time.Now().Before(until); {
			if err = f.drain(); err == nil {
				err = f.stage(s)
			}
		}
		if err == nil && s < Loops {
			err = f.drain()
		}
		if s <= Loops {
			f.Drained = time.Since(began)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (f *Freezer) stage(s Stage) error {
	for _, r := range f.Components {
		thaw, err := r.Freeze(s)
		if thaw != nil {
			f.thaws = append(f.thaws, thaw)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// Thaw undoes every stage of every component, the last one first, and joins the errors.
func (f *Freezer) Thaw() error {
	var errs []error
	for _, thaw := range slices.Backward(f.thaws) {
		errs = append(errs, thaw())
	}
	f.thaws = nil
	return errors.Join(errs...)
}

// drain waits until no work is in progress. After Drain it ends the connections in Drops, which get
// Drop to end; calls that still run then make the upgrade fail.
func (f *Freezer) drain() error {
	dropped := 0
	for until := time.Now().Add(f.Drain); ; time.Sleep(drainTick) {
		w := f.Work()
		switch {
		case w.Calls == 0 && len(w.Drops) == 0:
			return nil
		case time.Now().Before(until):
		case w.Calls > 0:
			what := f.Slow()
			if len(what) == 0 {
				what = []string{"their clients are slow to give data, or to take it"}
			}
			return fmt.Errorf("%d calls take too long: %s", w.Calls, strings.Join(what, "; "))
		case dropped > 0:
			return fmt.Errorf("%d connections do not come to rest", len(w.Drops))
		default:
			for _, drop := range w.Drops {
				drop()
			}
			dropped, until = len(w.Drops), time.Now().Add(f.Drop)
			f.Dropped += dropped
		}
	}
}

// Switch calls fn(true), and returns a thaw that calls fn(false).
func Switch(fn func(frozen bool)) (thaw func() error) {
	fn(true)
	return func() error { fn(false); return nil }
}

// Parts collects what components hand over. After the first error nothing is added.
type Parts struct {
	list []*handover.Part
	err  error
}

// Add adds a part, or records the error. Parts owns the files, even after an error.
func (p *Parts) Add(name string, data []byte, files []*os.File, err error) {
	part := &handover.Part{Name: name, Version: PartVersion, Data: data, Files: files}
	if err != nil && p.err == nil {
		p.err = fmt.Errorf("part %q of the handover: %w", name, err)
	}
	if p.err != nil {
		part.Close()
		return
	}
	p.list = append(p.list, part)
}

// AddValue is Add with a gob value.
func (p *Parts) AddValue(name string, v any, files []*os.File, err error) {
	var data []byte
	if err == nil {
		data, err = Encode(v)
	}
	p.Add(name, data, files, err)
}

// AddFile is Add for a part that is one open file.
func (p *Parts) AddFile(name string, file *os.File, err error) {
	if err != nil {
		p.Add(name, nil, nil, err)
		return
	}
	p.Add(name, nil, []*os.File{file}, nil)
}

func (p *Parts) close() {
	for _, part := range p.list {
		part.Close()
	}
}
