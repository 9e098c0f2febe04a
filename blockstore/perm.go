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

// CheckName returns an error if name cannot be an entry of a directory that is made, removed or
// renamed. The callers of a store have checked the name already. A store checks it again, because a
// name such as ".." would lead out of the export.
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

// Owns says whether c is the owner of an object, or is privileged.
func (c *Cred) Owns(a *Attr) bool { return c.Privileged() || c.UID == a.UID }

// InGroup says whether gid is c's group or one of its supplementary groups.
func (c *Cred) InGroup(gid uint32) bool {
	if c == nil || c.GID == gid {
		return true
	}
	return slices.Contains(c.Groups, gid)
}

// May says whether an object with the attributes a grants c all bits of want, by the rules of the
// Linux kernel. The ACL decides if there is one, else the mode, by the first class that c is in:
// owner, group, others. Root may do everything, but may execute a file only if at least one class
// may.
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

// MayReadData says whether c may READ the file. Read permission suffices. Two more users may, as on
// the Linux NFS server:
//
//   - the owner: the client has checked the mode at open, and the mode may have changed since
//   - a user who may execute the file: the client has to read a program that it runs
func (c *Cred) MayReadData(a *Attr) bool {
	return c.Owns(a) || c.May(a, MayRead) || c.May(a, MayExec)
}

// MayWriteData says whether c may WRITE to or truncate the file; its owner
// always may (see MayReadData).
func (c *Cred) MayWriteData(a *Attr) bool { return c.Owns(a) || c.May(a, MayWrite) }

// MayDelete returns nil if c may remove the entry of victim from dir. It returns ErrAccess if c has
// no write and search permission, and ErrPerm if the sticky bit of dir protects the entry.
func (c *Cred) MayDelete(dir, victim *Attr) error {
	if !c.May(dir, MayWrite|MayExec) {
		return ErrAccess
	}
	if dir.Mode&ModeSticky != 0 && !c.Owns(victim) && !c.Owns(dir) {
		return ErrPerm
	}
	return nil
}

// AccessBits returns which of the NFS access bits in want c has on a, as May decides. The
// exceptions of MayReadData are not part of ACCESS.
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

// PrepareSetAttr checks that c may make the changes of s to an object with the attributes a. It
// returns the changes that the store has to make. They differ from s as on the Linux NFS server:
//
//   - the mode of a symbolic link stays
//   - a new mode has no set-group-ID bit if c is not in the group
//   - a change of the owner together with the mode clears the set-ID bits
//
// The owner always has write permission. mayWrite reports whether another user has it; if mayWrite
// is nil, the mode or a.ACL decides.
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
	out.Grow = false // a is current, so Size alone says whether the store changes the size
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

// DropSetID returns the mode of a file after a write or a change of the owner by an unprivileged
// user: without set-user-ID, and without set-group-ID if the group may execute the file. Without
// that permission the bit means mandatory locking, and stays.
func DropSetID(mode uint32) uint32 {
	mode &^= ModeSetUID
	if mode&modeXGroup != 0 {
		mode &^= ModeSetGID
	}
	return mode
}

// InheritMode returns the mode and group of a new object that c makes in dir. If dir has the
// set-group-ID bit, the object gets the group of dir, and a new directory gets the bit too. A new
// directory has no other set-ID bits. A file that its group may execute has the set-group-ID bit
// only if c is in the group, or is privileged.
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
