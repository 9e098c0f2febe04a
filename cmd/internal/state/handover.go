package state

import (
	"context"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/rstored/rstored/cmd/internal/lease"
	"github.com/rstored/rstored/cmd/internal/upgrade"
)

// A state directory goes from one process to another while neither changes anything in it: the
// first releases it, the second restores it, and either resumes. A change waits meanwhile.

// partState is the part of the handover with a copy of the file by which a process locks the
// directory. While one copy is open, no other process can open the directory.
const partState = "state directory"

// partLease is the part with the lease on the directory, if nodes share it.
const partLease = "lease"

// Freeze implements upgrade.Component.
func (s *Store) Freeze(at upgrade.Stage) (thaw func() error, err error) {
	if at != upgrade.Files {
		return nil, nil
	}
	if err := s.release(); err != nil {
		return nil, err
	}
	return s.resume, nil
}

// Snapshot implements upgrade.Component.
func (s *Store) Snapshot(p *upgrade.Parts) {
	lock, err := duplicate(s.lock)
	p.AddFile(partState, lock, err)
	if s.lease == nil {
		return
	}
	r, f := s.lease.Share()
	file, err := duplicate(f)
	p.AddValue(partLease, r, []*os.File{file}, err)
}

// release stops changes until resume, so that another process can open the directory.
func (s *Store) release() error {
	s.gate.Lock()
	s.journal.gate.Lock()
	if err := s.journal.db.Close(); err != nil {
		s.journal.gate.Unlock()
		s.gate.Unlock()
		return err
	}
	return nil
}

// resume continues after release. The other process must have ended.
func (s *Store) resume() error {
	defer s.gate.Unlock()
	defer s.journal.gate.Unlock()
	db, _, err := openClients(s.dir)
	if err != nil {
		return err
	}
	s.journal.db = db
	return nil
}

// Restore opens a directory that the old process has released. The list of clients does not change
// before this process serves. Without a predecessor it is Open.
func Restore(ctx context.Context, dir string, share *Sharing, from *upgrade.Predecessor) (*Store, error) {
	if from == nil {
		return Open(ctx, dir, share)
	}
	p, err := from.Need(partState, 1)
	if err != nil {
		return nil, err
	}
	var held *lease.Holder
	if share != nil {
		// The process before this one renews the lease until it has sent go, and this one from now on.
		q, err := from.Need(partLease, 1)
		if err != nil {
			return nil, err
		}
		var r lease.Shared
		if err := upgrade.Decode(q, &r); err != nil {
			return nil, err
		}
		held = lease.Adopt(share.config(dir, nil), r, q.Files[0])
	}
	lock, common, err := share.own(dir, p.Files[0])
	if err != nil {
		return nil, fmt.Errorf("lock of %s: %w", dir, err)
	}
	s, err := inherit(dir, lock, common, held)
	if err == nil {
		from.WhenServing(s.journal.gate.Unlock)
	}
	return s, err
}

// inherit opens a directory by its lock. The list of clients does not change until the caller
// unlocks the journal's gate.
func inherit(dir string, lock, common *os.File, held *lease.Holder) (*Store, error) {
	s, err := load(dir, lock, common, held)
	if err == nil {
		s.journal.gate.Lock()
	}
	return s, err
}

// duplicate is another descriptor of the same open file.
func duplicate(f *os.File) (*os.File, error) {
	raw, err := f.SyscallConn()
	if err != nil {
		return nil, err
	}
	fd := -1
	if e := raw.Control(func(p uintptr) { fd, err = unix.FcntlInt(p, unix.F_DUPFD_CLOEXEC, 0) }); e != nil {
		return nil, e
	}
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), f.Name()), nil
}
