package exports

import (
	"crypto/rand"
	"encoding/binary"
	"encoding/hex"
	"fmt"

	"go.uber.org/zap"

	"github.com/rstored/rstored/blockstore/posixfs"
	"github.com/rstored/rstored/cmd/internal/config"
	"github.com/rstored/rstored/cmd/internal/control"
	"github.com/rstored/rstored/cmd/internal/state"
)

// filesystem is an exported filesystem, and the identity in its handles.
type filesystem struct {
	posixfs.Filesystem
	path string
	id   uint64
}

// filesystem is the identity of the filesystem that an export without an fsid is in. The state
// directory records it at first use. It stays while the filesystem has the recorded UUID, or,
// without a UUID, the recorded f_fsid. Only Apply and Prepare call this.
func (s *Set) filesystem(e *config.Export, export uint32) (uint64, error) {
	found, err := posixfs.ProbeFilesystem(e.Path)
	if err != nil {
		return 0, err
	}
	log := s.Log.With(zap.String("export", e.Pseudo), zap.String("path", e.Path))
	was, known := s.State.Filesystem(export)
	is, same := recognize(was, &found)
	if known && !same {
		log.Warn("another filesystem is here: file handles of the one before are stale",
			zap.String("uuid", is.UUID), zap.String("uuid_before", was.UUID))
	}
	if found.ByDevice {
		log.Warn("the filesystem has no UUID: file handles become stale when its device gets another number, " +
			"and nothing tells it from another filesystem on that device; the option fsid= gives the export an " +
			"identity")
	}
	if o := s.copyOf(export, is.ID, &found); o != nil {
		if is.ID, err = newID(); err != nil {
			return 0, err
		}
		log.Warn("the filesystem has the UUID of another one that is exported: it is known by an identity of its "+
			"own, which "+
			"the state directory alone has; give it a UUID of its own, or the export the option fsid=",
			zap.String("uuid", is.UUID), zap.String("other", o.path))
	}
	if !known || is != was {
		if err := s.State.SetFilesystem(export, is); err != nil {
			return 0, err
		}
	}
	if s.filesystems == nil {
		s.filesystems = make(map[uint32]filesystem)
	}
	s.filesystems[export] = filesystem{found, e.Path, is.ID}
	return is.ID, nil
}

// dependsOn is control.Export.Identity of exports in the filesystem.
func (f *filesystem) dependsOn() string {
	switch {
	case f.ByDevice:
		return control.IdentityDevice
	case f.id != f.ID():
		return control.IdentityState
	}
	return ""
}

// recognize returns what to record of a filesystem, and whether it is the recorded one.
func recognize(was state.Filesystem, found *posixfs.Filesystem) (is state.Filesystem, same bool) {
	is = state.Filesystem{Statfs: found.Statfs, ID: found.ID()}
	if found.UUID != [16]byte{} {
		is.UUID = hex.EncodeToString(found.UUID[:])
	}
	// Another kernel may tell the UUID, or no longer.
	same = was.UUID == is.UUID && (is.UUID != "" || was.Statfs == is.Statfs) ||
		(was.UUID == "" || is.UUID == "") && was.Statfs == is.Statfs
	if !same || was.ID == 0 {
		return is, false
	}
	is.ID = was.ID
	if is.UUID == "" {
		is.UUID = was.UUID
	}
	return is, true
}

// copyOf returns an export whose filesystem is another one with the same identity: a copy, such as
// a snapshot of a block device.
func (s *Set) copyOf(export uint32, id uint64, found *posixfs.Filesystem) *filesystem {
	for n, o := range s.filesystems {
		if n != export && o.id == id && o.Dev != found.Dev && o.SameDirectory(found) {
			return &o
		}
	}
	return nil
}

func newID() (uint64, error) {
	var b [8]byte
	if _, err := rand.Read(b[:]); err != nil {
		return 0, fmt.Errorf("making an identity for a filesystem: %w", err)
	}
	return binary.BigEndian.Uint64(b[:]) | 1, nil
}
