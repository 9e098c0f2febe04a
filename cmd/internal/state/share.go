package state

import (
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"path/filepath"
	"time"

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

// GiveTo closes a directory that is frozen, and releases the lease to one node. The Store must not
// be used any more.
func (s *Store) GiveTo(node, token string) error {
	return errors.Join(s.lease.ReleaseTo(node, token), s.lock.Close())
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
