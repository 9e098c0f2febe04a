package sockets

import (
	"maps"
	"os"
	"slices"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"
)

// Copies are descriptors of the sockets in use, and their names, for another process to make a Set of
// by FromFiles. The files are the caller's.
func (s *Set) Copies() (names []string, files []*os.File, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, name := range slices.Sorted(maps.Keys(s.open)) {
		f, err := s.open[name]()
		if err != nil {
			for _, f := range files {
				_ = f.Close()
			}
			return nil, nil, err
		}
		names, files = append(names, name), append(files, f)
	}
	return names, files, nil
}

// FromFiles makes a Set of what another process had in use, and takes the files. The store, which
// has those sockets already, is not told anything before Live: the other process may go on.
func FromFiles(store Store, log *zap.Logger, files []*os.File, names []string) *Set {
	fds := make([]int, 0, len(files))
	for _, f := range files {
		fd, err := copyOf(f)
		_ = f.Close()
		if err != nil {
			log.Warn("a socket that was handed over is of no use", zap.Error(err))
		}
		fds = append(fds, fd)
	}
	s := New(nil, log, fds, names)
	s.store, s.waits = store, true
	return s
}

// Live has the store told of what has changed since FromFiles, and what will.
func (s *Set) Live() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.waits = false
	for _, fn := range s.pending {
		fn()
	}
	s.pending = nil
}

// copyOf is another descriptor of an open file, which does not change the file.
func copyOf(f *os.File) (fd int, err error) {
	raw, err := f.SyscallConn()
	if err != nil {
		return -1, err
	}
	if e := raw.Control(func(p uintptr) { fd, err = unix.FcntlInt(p, unix.F_DUPFD_CLOEXEC, 0) }); e != nil {
		return -1, e
	}
	return fd, err
}

// duplicate is another descriptor of a socket.
func duplicate(fd int) (*os.File, error) {
	n, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(n), "socket"), nil
}
