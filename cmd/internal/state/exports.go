package state

import (
	"path/filepath"
	"strconv"

	"github.com/rstored/rstored/cmd/internal/config"
)

// Filesystem is what an export's filesystem was found to be.
type Filesystem struct {
	UUID   string `json:"uuid,omitempty"` // hexadecimal
	Statfs uint64 `json:"statfs"`         // f_fsid
	// ID is in the export's file handles: it stays as long as the filesystem does.
	ID uint64 `json:"id"`
}

// ExportID is the number of an export, by what it exports and where. It is
// chosen at the first use and never given to another export, not even after a
// removal: old handles must not open something new.
func (s *Store) ExportID(e *config.Export) (uint32, error) {
	key := exportKey(e)
	if s.shared != nil {
		return s.shared.Number(key)
	}
	s.mu.Lock()
	id, ok := s.cur.IDs[key]
	s.mu.Unlock()
	if ok {
		return id, nil
	}
	err := s.update(func(c *contents) {
		if id, ok = c.IDs[key]; ok {
			return
		}
		id = c.NextID
		c.NextID++
		c.IDs[key] = id
	})
	return id, err
}

// ForgetExport removes what is recorded of an export whose data is gone for good. Its number is
// given to no other export. The caller removes ExportDir.
func (s *Store) ForgetExport(e *config.Export, id uint32) error {
	return s.update(func(c *contents) {
		if key := exportKey(e); c.IDs[key] == id {
			delete(c.IDs, key)
		}
		delete(c.Filesystems, id)
	})
}

// ExportDir is the directory for the data of the store of an export.
func (s *Store) ExportDir(id uint32) string {
	return filepath.Join(s.dir, "exports", strconv.FormatUint(uint64(id), 10))
}

func exportKey(e *config.Export) string { return e.Type + ":" + e.Path + " at " + e.Pseudo }

// Filesystem is what was recorded of an export's filesystem.
func (s *Store) Filesystem(export uint32) (Filesystem, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f, ok := s.cur.Filesystems[export]
	return f, ok
}

// SetFilesystem records the filesystem of an export.
func (s *Store) SetFilesystem(export uint32, f Filesystem) error {
	return s.update(func(c *contents) {
		if c.Filesystems == nil {
			c.Filesystems = make(map[uint32]Filesystem)
		}
		c.Filesystems[export] = f
	})
}
