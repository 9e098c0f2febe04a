package blockstore

import (
	"slices"
	"strings"
)

// Permission bits of a check, as in one digit of a mode.
const (
	MayExec  uint32 = 1
	MayWrite uint32 = 2
	MayRead  uint32 = 4
)

// Mode bits above the nine of rwxrwxrwx.
const (
	ModeSetUID uint32 = 0o4000
	ModeSetGID uint32 = 0o2000
	ModeSticky uint32 = 0o1000
	modeXGroup uint32 = 0o0010
	modeAll    uint32 = 0o7777
	modeAnyX   uint32 = 0o0111
)

// NameMax is the longest name of one component in bytes, in every store here.
const NameMax = 255

// CheckName says whether name can be made, removed or renamed as a directory
// entry. FS methods trust their callers with most of it, but not with memory
// outside the export: a store checks again.
func CheckName(name string) error {
	switch {
	case name == "" || name == "." || name == "..":
		return ErrInval
	case len(name) > NameMax:
		return ErrNameTooLong
	case strings.IndexByte(name, '/') >= 0 || strings.IndexByte(name, 0) >= 0:
		return ErrInval
	}
	return nil
}

// Privileged says whether c overrides ownership and mode bits: the server
// itself (nil) or an unsquashed root.
func (c *Cred) Privileged() bool { return c == nil || c.UID == 0 }

// Owns says whether c is the owner of an object, or above owners.
func (c *Cred) Owns(a *Attr) bool { return c.Privileged() || c.UID == a.UID }

// InGroup says whether gid is c's group or one of its supplementary groups.
func (c *Cred) InGroup(gid uint32) bool {
	if c == nil || c.GID == gid {
		return true
	}
	return slices.Contains(c.Groups, gid)
}

// May says whether mode, owner and group of a grant c all of want, by the
// rules of the Linux kernel: the first class that fits decides, by a's ACL if it
// has one, and root needs somebody's execute bit to execute what is not a directory.
func (c *Cred) May(a *Attr, want uint32) bool {
	if c.Privileged() {
		return want&MayExec == 0 || a.Type == TypeDir || a.Mode&modeAnyX != 0
	}
	if a.ACL != nil {
		return a.ACL.may(c, a, want)
	}
	bits := a.Mode
	switch {
	case c.UID == a.UID:
		bits >>= 6
	case c.InGroup(a.GID):
		bits >>= 3
	}
	return bits&want == want
}

// MayReadData says whether c may READ the file. Besides the read bit, the
// owner always may, because the client checked at open and the mode may have
// changed since, and so may whoever may execute the file: a client has to read
// what it runs. Both are what the Linux NFS server grants.
func (c *Cred) MayReadData(a *Attr) bool {
	return c.Owns(a) || c.May(a, MayRead) || c.May(a, MayExec)
}

// MayWriteData says whether c may WRITE to or truncate the file; its owner
// always may (see MayReadData).
func (c *Cred) MayWriteData(a *Attr) bool { return c.Owns(a) || c.May(a, MayWrite) }

// MayDelete says whether c may take the entry for victim out of dir: ErrAccess
// without write and search permission, ErrPerm if the sticky bit protects it.
func (c *Cred) MayDelete(dir, victim *Attr) error {
	if !c.May(dir, MayWrite|MayExec) {
		return ErrAccess
	}
	if dir.Mode&ModeSticky != 0 && !c.Owns(victim) && !c.Owns(dir) {
		return ErrPerm
	}
	return nil
}

// AccessBits returns which of the NFS access bits in want c has on a, by mode
// bits alone. The owner override of MayReadData is not part of ACCESS.
func (c *Cred) AccessBits(a *Attr, want uint32) uint32 {
	var got uint32
	grant := func(bits, need uint32) {
		if want&bits != 0 && c.May(a, need) {
			got |= want & bits
		}
	}
	grant(AccessRead, MayRead)
	if a.Type == TypeDir {
		grant(AccessLookup, MayExec)
		grant(AccessModify|AccessExtend|AccessDelete, MayWrite|MayExec)
		return got
	}
	grant(AccessModify|AccessExtend, MayWrite)
	grant(AccessExecute, MayExec)
	return got
}

// PrepareSetAttr checks that c may make the changes of s to an object with
// attributes a, and returns what is to be done: a change of mode is dropped for
// a symlink and loses the set-group-ID bit where c is not in the group; changing
// the owner together with the mode loses the set-ID bits, as on the Linux NFS
// server. Write permission is by mode bits; a store with ACLs passes mayWrite,
// which replaces that check.
func (c *Cred) PrepareSetAttr(a *Attr, s *SetAttr, mayWrite func() bool) (SetAttr, error) {
	out := *s
	canWrite := func() bool {
		if mayWrite != nil {
			return c.Owns(a) || mayWrite()
		}
		return c.MayWriteData(a)
	}
	if out.Size != nil {
		if a.Type == TypeDir {
			return out, ErrIsDir
		}
		if a.Type != TypeReg {
			return out, ErrInval
		}
		if !canWrite() {
			return out, ErrAccess
		}
		if out.Grow && a.Size >= *out.Size {
			out.Size = nil
		}
	}
	out.Grow = false // a is of now: the store changes the size or does not
	if (out.AtimeHow == TimeClient || out.MtimeHow == TimeClient) && !c.Owns(a) {
		return out, ErrPerm
	}
	if (out.AtimeHow == TimeServer || out.MtimeHow == TimeServer) && !canWrite() {
		return out, ErrAccess
	}
	if out.UID != nil && !c.Privileged() && (c.UID != a.UID || *out.UID != a.UID) {
		return out, ErrPerm
	}
	if out.GID != nil && !c.Privileged() && (c.UID != a.UID || (*out.GID != a.GID && !c.InGroup(*out.GID))) {
		return out, ErrPerm
	}
	if a.Type == TypeLnk {
		out.Mode = nil
	}
	if out.Mode != nil {
		if !c.Owns(a) {
			return out, ErrPerm
		}
		m := *out.Mode & modeAll
		gid := a.GID
		if out.GID != nil {
			gid = *out.GID
		}
		if !c.Privileged() && !c.InGroup(gid) {
			m &^= ModeSetGID
		}
		if (out.UID != nil || out.GID != nil) && a.Type != TypeDir {
			m = DropSetID(m)
		}
		out.Mode = &m
	}
	return out, nil
}

// DropSetID returns mode without set-user-ID, and without set-group-ID where
// that means set-group-ID and not mandatory locking: what a write or a change
// of owner by the unprivileged does to a file.
func DropSetID(mode uint32) uint32 {
	mode &^= ModeSetUID
	if mode&modeXGroup != 0 {
		mode &^= ModeSetGID
	}
	return mode
}

// InheritMode returns the mode and group of a new object made by c in dir: a
// set-group-ID directory gives its group to all and its bit to directories;
// a new directory has no set-ID bits of its own; and nobody makes a
// set-group-ID executable of a group that is not theirs.
func (c *Cred) InheritMode(dir *Attr, typ FileType, mode, gid uint32) (uint32, uint32) {
	mode &= modeAll
	if typ == TypeDir {
		mode &^= ModeSetUID | ModeSetGID
	}
	if dir.Mode&ModeSetGID != 0 {
		gid = dir.GID
		if typ == TypeDir {
			mode |= ModeSetGID
		}
	}
	if typ != TypeDir && mode&(ModeSetGID|modeXGroup) == ModeSetGID|modeXGroup && !c.Privileged() && !c.InGroup(gid) {
		mode &^= ModeSetGID
	}
	return mode, gid
}
