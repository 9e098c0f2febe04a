package state

import (
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rstored/rstored/cmd/internal/lease"
)

// Sharing is for a directory on storage that several nodes share. One of them serves at a time.
type Sharing struct {
	Node string        // the name of this node
	Term time.Duration // of the lease
	// Lost is called when the lease was lost. The process must end then.
	Lost func(error)
	// Waiting is called again and again while Open waits for the lease.
	Waiting func(lease.Record)
	// Demoted says that this process must not take the lease that the process before it on this node
	// had: that one was demoted, and may have ended before it released the lease.
	Demoted bool
	// May, Abandon and Wake are those of lease.Config.
	May     func() bool
	Abandon bool
	Wake    <-chan struct{}
}

// provide makes the directory, unless nodes share it. A shared directory may be missing because its
// storage is not mounted, and a new one would belong to this node alone.
func (s *Sharing) provide(dir string) error {
	if s == nil {
		return os.MkdirAll(dir, 0o700)
	}
	if _, err := os.Stat(dir); err != nil {
		return fmt.Errorf("%w: is the storage that the nodes share mounted? Make the directory there before the first "+
			"start", err)
	}
	return nil
}

// config is the configuration of the lease. alone reports whether no other process of this node has
// the directory.
func (s *Sharing) config(dir string, alone func() bool) lease.Config {
	if s.Demoted {
		alone = nil
	}
	return lease.Config{
		Dir: dir, Node: s.Node, Term: s.Term, Alone: alone,
		Lost: s.Lost, Waiting: s.Waiting, May: s.May, Abandon: s.Abandon, Wake: s.Wake,
	}
}

// lockName is the name of the file that a process of a node locks. Each node has its own, because
// some file systems show the lock of one node to the others.
func (s *Sharing) lockName() string {
	if s == nil {
		return lockName
	}
	return lockName + "." + url.PathEscape(s.Node)
}

// openCommon opens the file that is locked where nodes do not share the directory, or nothing there.
func (s *Sharing) openCommon(dir string) (*os.File, error) {
	if s == nil {
		return nil, nil
	}
	return os.OpenFile(filepath.Join(dir, lockName), os.O_RDWR|os.O_CREATE, 0o600)
}

// lockCommon locks a file of openCommon, in common with the processes of all nodes. So a process
// that takes no lease does not start beside them. Another process that has the file for itself may
// be one of this node and of a program that did not know lockName of a node: then this process is
// not alone.
func lockCommon(f *os.File) error {
	if f == nil {
		return nil
	}
	return unix.Flock(int(f.Fd()), unix.LOCK_SH|unix.LOCK_NB)
}

// own returns the lock of a node, and the common one, for a process that has restored lock from the
// process before it. That one can be of a program that locked the common file alone.
func (s *Sharing) own(dir string, lock *os.File) (own, common *os.File, err error) {
	if s == nil {
		return lock, nil, nil
	}
	if common, err = s.openCommon(dir); err != nil {
		return nil, nil, err
	}
	was, err := lock.Stat()
	is, e := common.Stat()
	if err = errors.Join(err, e); err != nil {
		return nil, nil, err
	}
	if !os.SameFile(was, is) {
		_ = lockCommon(common) // a process that has it for itself is of another program, and another node
		return lock, common, nil
	}
	closeAll(common)
	own, err = os.OpenFile(filepath.Join(dir, s.lockName()), os.O_RDWR|os.O_CREATE, 0o600)
	if err == nil {
		err = unix.Flock(int(own.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	}
	return own, lock, err
}

// GiveTo closes a directory that is frozen, and releases the lease to one node. The Store must not
// be used any more.
func (s *Store) GiveTo(node, token string) error {
	err := s.lease.ReleaseTo(node, token)
	closeAll(s.lock, s.common)
	return err
}

// Lease is the lease on a directory that nodes share, or nil.
func (s *Store) Lease() *lease.Holder { return s.lease }

// detach replaces the files that the holder of the lease before this one may have open or mapped by
// copies of them. If that process was stopped, and continues, it writes into the old files. Its
// locks are on the old files too: a process that was stopped keeps its locks.
//
// The list of clients and the files of stores are of bbolt. Such a file may be copied while a
// transaction of the process before is under way: bbolt writes pages that the last transaction does
// not use, and then one of two headers with a checksum.
func detach(dir string) error {
	for _, c := range []struct {
		pattern string
		do      func(name string) error
	}{
		{copyPrefix + "*", os.Remove}, // of a process that was killed here
		{"exports/*/" + copyPrefix + "*", os.Remove},
		{journalFile, recopy},
		{"exports/*/*.db", recopy},
		{"*.journal", recopy},
		{"connections-*", recopy},
	} {
		list, err := filepath.Glob(filepath.Join(dir, c.pattern))
		if err != nil {
			return err
		}
		for _, name := range list {
			if err := c.do(name); err != nil {
				return fmt.Errorf("taking over %s: %w", name, err)
			}
		}
	}
	return nil
}

// copyPrefix begins the name of a copy that is not complete.
const copyPrefix = ".copy-"

// recopy replaces a file by a copy of itself.
func recopy(name string) error {
	from, err := os.Open(name)
	if err != nil {
		return err
	}
	defer from.Close()
	to, err := os.CreateTemp(filepath.Dir(name), copyPrefix+"*")
	if err != nil {
		return err
	}
	_, err = io.Copy(to, from)
	if err = errors.Join(err, to.Sync(), to.Close()); err == nil {
		err = os.Rename(to.Name(), name)
	}
	if err != nil {
		return errors.Join(err, os.Remove(to.Name()))
	}
	return nil
}
