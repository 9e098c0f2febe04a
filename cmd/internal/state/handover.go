package state

import (
	"os"

	"golang.org/x/sys/unix"
)

// A state directory goes from one process to another while neither changes anything in it: the first
// releases it, the second inherits it, and either resumes. Who changes something meanwhile waits.

// Lock is a copy of the file by which the process holds the directory. As long as one copy is open, nobody else can
// open it.
func (s *Store) Lock() (*os.File, error) { return duplicate(s.lock) }

// Release stops changes until Resume, so that another process can inherit the directory.
func (s *Store) Release() error {
	s.gate.Lock()
	s.journal.gate.Lock()
	if err := s.journal.db.Close(); err != nil {
		s.journal.gate.Unlock()
		s.gate.Unlock()
		return err
	}
	return nil
}

// Resume goes on after Release. The other process must have ended.
func (s *Store) Resume() error {
	defer s.gate.Unlock()
	defer s.journal.gate.Unlock()
	db, _, err := openClients(s.dir)
	if err != nil {
		return err
	}
	s.journal.db = db
	return nil
}

// Inherit opens a directory that another process has released, by a copy of its lock. The list of
// clients does not change before Begin.
func Inherit(dir string, lock *os.File) (*Store, error) {
	s, err := load(dir, lock)
	if err != nil {
		return nil, err
	}
	s.journal.gate.Lock()
	return s, nil
}

// Begin lets the list of clients of an inherited directory change.
func (s *Store) Begin() { s.journal.gate.Unlock() }

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
