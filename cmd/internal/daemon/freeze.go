package daemon

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/rstored/rstored/cmd/internal/control"
	"github.com/rstored/rstored/cmd/internal/upgrade"
)

// freeze stops everything, once the calls that have arrived are answered and clients know the
// answers. thaw has it go on, and is to be called whatever freeze returns. Call with mu held.
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
	resume, err := d.ports.Freeze(upgrade.Intake)
	undo = append(undo, resume)
	if err != nil {
		return thaw, err
	}
	hold(d.rpc.ServeDeferred)
	began := time.Now()
	u.Dropped, err = d.drain()
	if err == nil {
		hold(d.nlm.Hold)
		hold(d.nfs4.Pause)
		// What they were about to tell clients is to be on its way.
		var more int
		more, err = d.drain()
		u.Dropped += more
	}
	for until := time.Now().Add(d.times.drain); err == nil; {
		if release, stopErr := d.ports.Freeze(upgrade.Loops); stopErr == nil {
			undo = append(undo, release)
			break
		}
		// A client was in the middle of a message when the loops stood.
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

// busy is what is under way on the connections: those that calls of clients wait on, and those that
// only clients can end.
func (d *Daemon) busy() (calls int, drops []func()) {
	w, l := d.ports.Work(), d.rpc.Load()
	return w.Calls + l.Busy + l.Queued, w.Drops
}

// drain waits until nothing is under way, and ends the connections of clients that are not there to
// end it. It returns their number. Call with mu held.
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
