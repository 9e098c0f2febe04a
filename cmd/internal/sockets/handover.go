package sockets

import (
	"maps"
	"os"
	"slices"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"github.com/rstored/rstored/cmd/internal/upgrade"
)

// partSockets is the part of the handover with the sockets in use.
const partSockets = "sockets"

// Freeze implements upgrade.Component: a Set changes with the ports only.
func (s *Set) Freeze(upgrade.Stage) (thaw func() error, err error) { return nil, nil }

// Snapshot implements upgrade.Component.
func (s *Set) Snapshot(p *upgrade.Parts) {
	names, files, err := s.copies()
	p.AddValue(partSockets, names, files, err)
}

// restore makes a Set of the sockets that the old process uses. The store learns of changes only
// when this process serves.
func restore(store Store, log *zap.Logger, from *upgrade.Predecessor) (*Set, error) {
	p, err := from.Need(partSockets, -1)
	if err != nil {
		return nil, err
	}
	var names []string
	if err := upgrade.Decode(p, &names); err != nil {
		return nil, err
	}
	s := fromFiles(store, log, p.Files, names)
	from.WhenServing(s.live)
	return s, nil
}

// copies returns new descriptors of the sockets in use, and the names of the sockets. Another
// process makes a Set of them by fromFiles. The files are the caller's.
func (s *Set) copies() (names []string, files []*os.File, err error) {
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

// fromFiles makes a Set of the sockets of another process, and owns the files. The store has those
// sockets already. It learns of changes only after live, because the other process may continue
// until then.
func fromFiles(store Store, log *zap.Logger, files []*os.File, names []string) *Set {
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

// live tells the store of the changes since fromFiles. From then on the store learns of each
// change.
func (s *Set) live() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.waits = false
	for _, fn := range s.pending {
		fn()
	}
	s.pending = nil
}

// copyOf returns another descriptor of an open file. It does not change the file.
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

// duplicate returns another descriptor of a socket.
func duplicate(fd int) (*os.File, error) {
	n, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(n), "socket"), nil
}
