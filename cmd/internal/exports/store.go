package exports

import (
	"errors"
	"fmt"
	"math"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rstored/rstored/blockstore"
	"github.com/rstored/rstored/blockstore/cephfs"
	"github.com/rstored/rstored/blockstore/memfs"
	"github.com/rstored/rstored/blockstore/posixfs"
	"github.com/rstored/rstored/cmd/internal/config"
	"github.com/rstored/rstored/rdma/verbs"
)

// openStore opens what an export exports. Each posix store keeps its state in a
// directory of its own, named after the export's number, which never changes.
func (s *Set) openStore(e *config.Export, id uint32) (blockstore.FS, error) {
	switch e.Type {
	case config.TypePosix:
		dir := s.State.ExportDir(id)
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return nil, err
		}
		fsid, _ := config.ParseFSID(e.FSID) // it was checked
		var filesystem uint64
		if fsid == 0 {
			var err error
			if filesystem, err = s.filesystem(e, id); err != nil {
				return nil, err
			}
		}
		return posixfs.Open(e.Path, posixfs.Options{
			StateDir:   dir,
			FSID:       fsid,
			Filesystem: filesystem,
			NoUmask:    s.NoUmask,
			// The kernel's RDMA devices take nothing from a thread that was once another user.
			OwnThreads: verbs.Available() == nil,
			Files:      s.Files,
			Logger:     s.Log.Slog("posixfs").With("export", e.Pseudo),
		})
	case config.TypeMemory:
		limit, err := memoryLimit()
		if err != nil {
			return nil, err
		}
		return memfs.New(memfs.Options{MaxBytes: limit, FSID: uint64(id), RootMode: memoryRootMode}), nil
	case config.TypeCeph:
		s.awaitClosed(id, closeWait)
		name, dir, _ := strings.Cut(e.Path, "/")
		session, err := s.Session(name, id)
		if err != nil {
			return nil, err
		}
		return cephfs.Open(cephfs.Options{
			Filesystem: name, Root: "/" + dir, Session: session,
			// Two leases, and a little for the server: a client that goes on writing keeps a recalled
			// delegation so long (state.FreeLease).
			Delegations: 2*s.Lease + 5*time.Second, Lost: s.Lost,
		})
	}
	return nil, fmt.Errorf("no store of type %q", e.Type)
}

// memoryRootMode lets everyone use a memory export as they would /tmp: nobody
// could give it an owner beforehand.
const memoryRootMode = 0o1777

// memoryLimit is how much a memory export may hold: half of the host's memory,
// so that a client cannot take the host down by filling it.
func memoryLimit() (uint64, error) {
	var info unix.Sysinfo_t
	if err := unix.Sysinfo(&info); err != nil {
		return 0, fmt.Errorf("size of memory: %w", err)
	}
	total := uint64(info.Totalram) * uint64(info.Unit)
	if total == 0 || total > math.MaxInt64 {
		return 0, errors.New("the size of the host's memory is unknown")
	}
	return total / 2, nil
}
