package lock

import (
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/rstored/rstored/blockstore"
)

// Hosts finds who takes the locks of an export in the host's kernel, nil if nobody does.
// take is false if no new ones are to be taken there. It is called from any goroutine.
type Hosts func(export uint32) (h blockstore.HostLocker, take bool)

// HostClient is the client of the locks of the host's own programs.
const HostClient = "host"

// UseHost has the locks of clients taken on the host too. Call it before anything else.
func (t *Table) UseHost(h Hosts) { t.hosts = h }

// OnHost reports whether there may be locks of the host.
func (t *Table) OnHost() bool { return t.hosts != nil }

type hostCounts struct{ conflicts, without, full atomic.Uint64 }

// HostCounts are totals since the start.
type HostCounts struct {
	// Conflicts are locks that a program of the host was in the way of.
	Conflicts uint64
	// Without are locks that could not be taken on the host, so that only clients see
	// them.
	Without uint64
	// Full are locks that were refused because too many files are locked on the host.
	Full uint64
}

// HostCounts returns them.
func (t *Table) HostCounts() HostCounts {
	return HostCounts{Conflicts: t.host.conflicts.Load(), Without: t.host.without.Load(), Full: t.host.full.Load()}
}

func (t *Table) hostOf(f File) (h blockstore.HostLocker, take bool) {
	if t.hosts == nil {
		return nil, false
	}
	return t.hosts(f.Export)
}

// onHost is what became of a lock on the host.
type onHost uint8

const (
	hostAside  onHost = iota // it is none of the host's business
	hostTaken                // it is to be given up there
	hostHeld                 // somebody there is in the way
	hostFilled               // too much is locked there
)

// takeOnHost takes on the host what l makes of the range of all clients together: as no
// other client is in the way, that is as l says. Call in the file's turn.
func (t *Table) takeOnHost(f File, l *Lock) (holder Lock, what onHost) {
	h, take := t.hostOf(f)
	if h == nil || !take {
		return holder, hostAside
	}
	in, err := h.LockHost(f.Handle, l.Start, l.End, l.Exclusive)
	switch {
	case in != nil:
		t.host.conflicts.Add(1)
		return hostHolder(in), hostHeld
	case err == nil:
		return holder, hostTaken
	case errors.Is(err, blockstore.ErrJukebox):
		t.host.full.Add(1)
		return holder, hostFilled
	}
	t.host.without.Add(1)
	return holder, hostAside
}

// hostHolder is a lock of the host as one of the table.
func hostHolder(in *blockstore.HostLock) Lock {
	id := "a program of the server's host"
	if in.PID > 0 {
		id = fmt.Sprintf("process %d of the server's host", in.PID)
	}
	return Lock{Owner: Owner{Client: HostClient, ID: id}, Start: in.Start, End: in.End, Exclusive: in.Exclusive}
}

// Probe is Test that asks the host, too.
func (t *Table) Probe(f File, l Lock) (holder Lock, free bool) {
	if holder, free = t.Test(f, l); !free {
		return holder, false
	}
	h, take := t.hostOf(f)
	if h == nil || !take {
		return holder, true
	}
	s := t.shard(f)
	s.turn.Lock()
	defer s.turn.Unlock()
	in, err := h.TestHost(f.Handle, l.Start, l.End, l.Exclusive)
	if err != nil || in == nil {
		return holder, true
	}
	return hostHolder(in), false
}

// Retry grants what waited for the host alone and can be had now, and reports how many
// requests are waiting for whomever.
func (t *Table) Retry() (waiting int) {
	var files []File
	t.each(func(f File, x *file) {
		if len(x.queue) > 0 {
			files = append(files, f)
		}
	})
	for _, f := range files {
		t.change(f, everything, func(*file) {})
	}
	_, waiting = t.Count()
	return waiting
}

// span is a range of bytes, end included.
type span struct{ start, end uint64 }

var everything = span{0, ToEnd}

// spans are the bytes of a file from start to end that are locked, in order, without
// overlaps.
func (f *file) spans(within span) (out []span) {
	for i := range f.held {
		l := span{max(f.held[i].Start, within.start), min(f.held[i].End, within.end)}
		n := len(out) - 1
		switch {
		case l.start > l.end:
		case n < 0 || out[n].end != ToEnd && l.start > out[n].end+1:
			out = append(out, l)
		default:
			out[n].end = max(out[n].end, l.end)
		}
	}
	return out
}

// without is a without the bytes of b; both are in order.
func without(a, b []span) (out []span) {
	for _, x := range a {
		done := false
		for _, y := range b {
			if y.end < x.start || y.start > x.end {
				continue
			}
			if y.start > x.start {
				out = append(out, span{x.start, y.start - 1})
			}
			if y.end >= x.end {
				done = true
				break
			}
			x.start = y.end + 1
		}
		if !done {
			out = append(out, x)
		}
	}
	return out
}

// giveUpOnHost gives up what was held by any client, and is by none now. What is still
// held is held as it was: two clients can only share. Call in the file's turn.
func (t *Table) giveUpOnHost(f File, gone []span) {
	h, _ := t.hostOf(f)
	if h == nil {
		return
	}
	for _, s := range gone {
		h.UnlockHost(f.Handle, s.start, s.end)
	}
}

func (t *Table) releaseOnHost(f File) {
	if h, _ := t.hostOf(f); h != nil {
		h.ReleaseHost(f.Handle)
	}
}
