package nfs4

import (
	"time"

	"github.com/rstored/rstored/blockstore"
	"github.com/rstored/rstored/nfs"
	"github.com/rstored/rstored/nfs/acl"
	"github.com/rstored/rstored/rpcrdma/xdr"
)

// Attributes (RFC 8881 section 5, RFC 7862 section 12.2).
const (
	attrSupported      = 0
	attrType           = 1
	attrFHExpireType   = 2
	attrChange         = 3
	attrSize           = 4
	attrLinkSupport    = 5
	attrSymlinkSupport = 6
	attrNamedAttr      = 7
	attrFSID           = 8
	attrUniqueHandles  = 9
	attrLeaseTime      = 10
	attrRdattrError    = 11
	attrACL            = 12
	attrACLSupport     = 13
	attrCanSetTime     = 15
	attrCaseInsens     = 16
	attrCasePreserving = 17
	attrChownRestrict  = 18
	attrFileHandle     = 19
	attrFileID         = 20
	attrFilesAvail     = 21
	attrFilesFree      = 22
	attrFilesTotal     = 23
	attrFSLocations    = 24
	attrHomogeneous    = 26
	attrMaxFileSize    = 27
	attrMaxLink        = 28
	attrMaxName        = 29
	attrMaxRead        = 30
	attrMaxWrite       = 31
	attrMode           = 33
	attrNoTrunc        = 34
	attrNumLinks       = 35
	attrOwner          = 36
	attrOwnerGroup     = 37
	attrQuotaHard      = 38
	attrQuotaSoft      = 39
	attrQuotaUsed      = 40
	attrRawDev         = 41
	attrSpaceAvail     = 42
	attrSpaceFree      = 43
	attrSpaceTotal     = 44
	attrSpaceUsed      = 45
	attrTimeAccess     = 47
	attrTimeAccessSet  = 48
	attrTimeDelta      = 51
	attrTimeMetadata   = 52
	attrTimeModify     = 53
	attrTimeModifySet  = 54
	attrMountedOn      = 55
	attrExclCreat      = 75
	attrCharsetCap     = 76
	attrCloneBlock     = 77
	attrChangeType     = 79
	attrModeUmask      = 81
	attrXattrSupport   = 82
)

var (
	// settable can be set by SETATTR; settableExcl by an exclusive create, which keeps
	// its verifier in the times.
	settable     = bits4(attrSize, attrACL, attrMode, attrOwner, attrOwnerGroup, attrTimeAccessSet, attrTimeModifySet)
	settableExcl = bits4(attrSize, attrACL, attrMode, attrOwner, attrOwnerGroup, attrModeUmask)
	// settableNew can be set at creation.
	settableNew = settable.or(bits4(attrModeUmask))
	// writeOnly cannot be read.
	writeOnly = bits4(attrTimeAccessSet, attrTimeModifySet, attrModeUmask)
	// ofStat are attributes of the file system that a store has to be asked for.
	ofStat = bits4(attrQuotaHard, attrQuotaSoft, attrFilesAvail, attrFilesFree, attrFilesTotal, attrSpaceAvail, attrSpaceFree, attrSpaceTotal)

	supported41 = bits4(attrSupported, attrType, attrFHExpireType, attrChange, attrSize, attrLinkSupport, attrSymlinkSupport,
		attrNamedAttr, attrFSID, attrUniqueHandles, attrLeaseTime, attrRdattrError, attrACL, attrACLSupport, attrCanSetTime, attrCaseInsens,
		attrCasePreserving, attrChownRestrict, attrFileHandle, attrFileID, attrFilesAvail, attrFilesFree, attrFilesTotal,
		attrFSLocations, attrHomogeneous, attrMaxFileSize, attrMaxLink, attrMaxName, attrMaxRead, attrMaxWrite, attrMode, attrNoTrunc,
		attrNumLinks, attrOwner, attrOwnerGroup, attrQuotaHard, attrQuotaSoft, attrQuotaUsed, attrRawDev, attrSpaceAvail, attrSpaceFree, attrSpaceTotal, attrSpaceUsed,
		attrTimeAccess, attrTimeAccessSet, attrTimeDelta, attrTimeMetadata, attrTimeModify, attrTimeModifySet, attrMountedOn,
		attrExclCreat, attrCharsetCap)
	supported42 = supported41.or(bits4(attrCloneBlock, attrChangeType, attrModeUmask, attrXattrSupport))
)

// supported are the attributes of the minor version that there are in an export, or if it
// is nil in the pseudo file system.
func (k *compound) supported(x *nfs.Export) bitmap {
	b := supported41
	if k.minor >= 2 {
		b = supported42
	}
	if k.minor == 0 {
		b[2] = 0 // its attributes end with mounted_on_fileid
	}
	if aclsOf(x) == nil {
		b.clear(attrACL)
	}
	if quotasOf(x) == nil {
		b = b.without(ofQuota)
	}
	if x == nil || !x.FS.Limits().Clones {
		b.clear(attrCloneBlock)
	}
	return b
}

// changeOf is the change attribute. That it is the time of the last change is what
// change_attr_type says. Stores make these times differ for every two changes of theirs.
func changeOf(a *blockstore.Attr) uint64 { return uint64(a.Ctime.UnixNano()) }

// Values of change_attr_type.
const (
	changeTimeMetadata = 3
	changeUndefined    = 4
)

// Values of fs_charset_cap (RFC 8881 section 14.4).
const (
	charsetNonUTF8  = 1
	charsetOnlyUTF8 = 2
)

// subject is an object whose attributes are told.
type subject struct {
	object
	attr   blockstore.Attr
	change uint64
	at     *node // where it is mounted, or nil

	stat  blockstore.Stat
	quota blockstore.Quota
	aces  []acl.ACE
	limit blockstore.Limits
}

// subject looks at an object for the attributes that are wanted.
func (k *compound) subject(o *object, want bitmap) (s subject, st nfs.Status) {
	s.object = *o
	if o.node != nil {
		t := k.s.tree()
		s.attr, s.change = t.attr(o.node), o.node.change
		s.limit = blockstore.Limits{MaxFileSize: 1<<63 - 1, LinkMax: 1, NameMax: blockstore.NameMax}
		return s, nfs.OK
	}
	a, err := o.x.FS.GetAttr(k.who(o), o.h)
	if err != nil {
		return s, nfs.StatusOf(err)
	}
	return s, k.of(&s, &a, want)
}

// of fills in a subject of an export whose attributes are known.
func (k *compound) of(s *subject, a *blockstore.Attr, want bitmap) nfs.Status {
	s.attr, s.change, s.limit = *a, changeOf(a), s.x.FS.Limits()
	if want.has(attrMountedOn) && a.Type == blockstore.TypeDir {
		s.at = k.mountpoint(&s.object)
	}
	if want.has(attrACL) && aclsOf(s.x) != nil {
		var st nfs.Status
		if s.aces, st = k.aces(&s.object, a); st != nfs.OK {
			return st
		}
	}
	if q := quotasOf(s.x); q != nil && !want.and(ofQuota).empty() {
		var err error
		if s.quota, err = q.Quota(k.who(&s.object), s.h); err != nil {
			return nfs.StatusOf(err)
		}
	}
	if !want.and(ofStat).empty() {
		var err error
		if s.stat, err = s.x.FS.Stat(k.who(&s.object), s.h); err != nil {
			return nfs.StatusOf(err)
		}
	}
	return nfs.OK
}

// encodeAttrs appends a fattr4 of what is wanted and supported. fault is what
// rdattr_error says; if it is not OK nothing else is told.
func (k *compound) encodeAttrs(e *xdr.Encoder, want bitmap, s *subject, fault nfs.Status) {
	want = want.and(k.supported(s.x))
	if fault != nfs.OK {
		want = want.and(bits4(attrRdattrError))
	}
	want.encode(e)
	at := len(e.B)
	e.Uint32(0)
	want.each(func(n int) { k.encodeAttr(e, n, s, fault) })
	patch(e, at, uint32(len(e.B)-at-4))
}

func (k *compound) encodeAttr(e *xdr.Encoder, n int, s *subject, fault nfs.Status) {
	a := &s.attr
	switch n {
	case attrSupported:
		k.supported(s.x).encode(e)
	case attrType:
		e.Uint32(uint32(a.Type))
	case attrFHExpireType:
		e.Uint32(0) // FH4_PERSISTENT
	case attrChange:
		e.Uint64(s.change)
	case attrSize:
		e.Uint64(a.Size)
	case attrLinkSupport, attrSymlinkSupport:
		e.Bool(s.x != nil)
	case attrNamedAttr, attrCaseInsens:
		e.Bool(false)
	case attrUniqueHandles, attrCanSetTime, attrCasePreserving, attrChownRestrict, attrHomogeneous, attrNoTrunc:
		e.Bool(true)
	case attrFSID:
		major, minor := s.fsid()
		e.Uint64(major)
		e.Uint64(minor)
	case attrLeaseTime:
		e.Uint32(uint32(k.s.state.Lease() / time.Second))
	case attrRdattrError:
		e.Uint32(uint32(fault))
	case attrACL:
		k.encodeACL(e, s.aces)
	case attrACLSupport:
		if aclsOf(s.x) != nil {
			e.Uint32(acl.SupportAllow | acl.SupportDeny)
		} else {
			e.Uint32(0)
		}
	case attrFSLocations:
		k.encodeLocations(e, &s.object)
	case attrFileHandle:
		var b [nfs.HandleMax]byte
		e.Opaque(k.appendHandle(b[:0], &s.object))
	case attrFileID:
		e.Uint64(a.FileID)
	case attrFilesAvail:
		e.Uint64(s.stat.AvailFiles)
	case attrFilesFree:
		e.Uint64(s.stat.FreeFiles)
	case attrFilesTotal:
		e.Uint64(s.stat.TotalFiles)
	case attrMaxFileSize:
		e.Uint64(s.limit.MaxFileSize)
	case attrMaxLink:
		e.Uint32(s.limit.LinkMax)
	case attrMaxName:
		e.Uint32(s.limit.NameMax)
	case attrMaxRead:
		e.Uint64(uint64(s.rules().ReadMax()))
	case attrMaxWrite:
		e.Uint64(uint64(s.rules().WriteMax()))
	case attrMode:
		e.Uint32(a.Mode)
	case attrNumLinks:
		e.Uint32(a.NLink)
	case attrOwner:
		k.encodeWho(e, a.UID, false)
	case attrOwnerGroup:
		k.encodeWho(e, a.GID, true)
	case attrQuotaHard:
		e.Uint64(s.quota.Left(s.quota.Hard, s.stat.AvailBytes))
	case attrQuotaSoft:
		e.Uint64(s.quota.Left(s.quota.Soft, s.stat.AvailBytes))
	case attrQuotaUsed:
		e.Uint64(s.quota.Used)
	case attrRawDev:
		e.Uint32(a.Major)
		e.Uint32(a.Minor)
	case attrSpaceAvail:
		e.Uint64(s.stat.AvailBytes)
	case attrSpaceFree:
		e.Uint64(s.stat.FreeBytes)
	case attrSpaceTotal:
		e.Uint64(s.stat.TotalBytes)
	case attrSpaceUsed:
		e.Uint64(a.Used)
	case attrTimeAccess:
		encodeTime(e, a.Atime)
	case attrTimeDelta:
		e.Uint64(0)
		e.Uint32(1)
	case attrTimeMetadata:
		encodeTime(e, a.Ctime)
	case attrTimeModify:
		encodeTime(e, a.Mtime)
	case attrMountedOn:
		if s.at != nil && s.at.parent != nil {
			e.Uint64(s.at.id)
		} else {
			e.Uint64(a.FileID)
		}
	case attrExclCreat:
		settableExcl.and(k.supported(s.x)).encode(e)
	case attrCharsetCap:
		if k.s.utf8 {
			e.Uint32(charsetOnlyUTF8)
		} else {
			e.Uint32(charsetNonUTF8)
		}
	case attrCloneBlock:
		e.Uint32(s.limit.BlockSize)
	case attrXattrSupport:
		e.Bool(s.limit.Xattrs)
	case attrChangeType:
		if s.x != nil {
			e.Uint32(changeTimeMetadata)
		} else {
			e.Uint32(changeUndefined)
		}
	}
}

// fsid tells file systems apart: every export is one, even two of the same directory
// tree, as their handles differ. The pseudo file system is 0, 0.
func (s *subject) fsid() (major, minor uint64) {
	if s.x == nil {
		return 0, 0
	}
	return s.x.FSID(), uint64(s.x.ID)
}

func encodeTime(e *xdr.Encoder, t time.Time) {
	e.Uint64(uint64(t.Unix()))
	e.Uint32(uint32(t.Nanosecond()))
}

// decodeTime reads an nfstime4; 10^9 nanoseconds or more are INVAL.
func decodeTime(d *xdr.Decoder) (time.Time, bool) {
	s, ns := int64(d.Uint64()), d.Uint32()
	return time.Unix(s, int64(ns)), ns < uint32(time.Second)
}

// fattrMax bounds a fattr4 from a client, in bytes.
const fattrMax = 64 << 10

// decodeSetAttr reads a fattr4 of attributes to be set, all of which must be in
// allowed. The status is for a fattr4 that decodes; one that does not is an error of
// the decoder.
func (k *compound) decodeSetAttr(allowed bitmap) (s attrSet, set bitmap, st nfs.Status) {
	d := &k.c.Args
	set, more := decodeBitmap(d)
	vals := xdr.NewDecoder(d.Opaque(fattrMax))
	if d.Err() != nil {
		return s, set, nfs.OK
	}
	switch {
	case more || !set.without(k.supported(k.cur.x)).empty():
		return s, set, nfs.ErrAttrNotSupp
	case !set.without(allowed).empty(), set.has(attrMode) && set.has(attrModeUmask):
		return s, set, nfs.ErrInval
	}
	st = nfs.OK
	fault := func(f nfs.Status) {
		if st == nfs.OK {
			st = f
		}
	}
	whole := true
	set.each(func(n int) {
		switch n {
		case attrACL:
			var f nfs.Status
			if s.acl, f, whole = k.decodeACL(&vals); f != nfs.OK {
				fault(f)
			}
		case attrSize:
			v := vals.Uint64()
			s.Size = &v
		case attrMode:
			v := vals.Uint32()
			if v&^0o7777 != 0 {
				fault(nfs.ErrInval)
			}
			s.Mode = &v
		case attrOwner, attrOwnerGroup:
			name := vals.Opaque(ownerMax)
			v, ok := k.s.people.Parse(name, n == attrOwnerGroup)
			switch {
			case len(name) == 0:
				fault(nfs.ErrInval) // nobody's name, as the Linux server has it
			case !ok:
				fault(nfs.ErrBadOwner)
			}
			if n == attrOwner {
				s.UID = &v
			} else {
				s.GID = &v
			}
		case attrModeUmask:
			v := vals.Uint32()
			s.Mode, s.umask = &v, vals.Uint32()
			if v&^0o7777 != 0 || s.umask&^0o777 != 0 {
				fault(nfs.ErrInval)
			}
		case attrTimeAccessSet:
			s.AtimeHow, s.Atime = decodeSetTime(&vals, fault)
		case attrTimeModifySet:
			s.MtimeHow, s.Mtime = decodeSetTime(&vals, fault)
		}
	})
	if whole && (vals.Err() != nil || vals.Remaining() != 0) {
		d.Fail(xdr.ErrValue)
	}
	return s, set, st
}

// decodeSetTime reads a settime4.
func decodeSetTime(d *xdr.Decoder, fault func(nfs.Status)) (blockstore.TimeSet, time.Time) {
	const server, client = 0, 1
	switch d.Uint32() {
	case server:
		return blockstore.TimeServer, time.Time{}
	case client:
		t, ok := decodeTime(d)
		if !ok {
			fault(nfs.ErrInval)
		}
		return blockstore.TimeClient, t
	}
	d.Fail(xdr.ErrValue)
	return blockstore.TimeKeep, time.Time{}
}
