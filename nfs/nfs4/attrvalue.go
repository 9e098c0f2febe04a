package nfs4

import (
	"time"

	"github.com/rstored/rstored/blockstore"
	"github.com/rstored/rstored/nfs"
	"github.com/rstored/rstored/nfs/acl"
	"github.com/rstored/rstored/rpcrdma/xdr"
)

// subject is an object with everything that its attributes are made of. Only the parts that the
// wanted attributes need are filled in; the others are zero. Nothing in it is a reference into the
// call's buffers.
type subject struct {
	object
	k      *compound
	attr   blockstore.Attr
	change uint64     // the change attribute; knowledge.apply can replace it
	at     *node      // of a root, if mounted_on_fileid is wanted; else nil
	fault  nfs.Status // rdattr_error; if it is not OK the other attributes are left out

	stat  blockstore.Stat   // for ofStat
	quota blockstore.Quota  // for ofQuota
	birth time.Time         // for time_create
	aces  []acl.ACE         // for acl
	label []byte            // for sec_label; nil: the object has none
	limit blockstore.Limits // of the store
}

// subject collects from the store what the wanted attributes of an object need. The result is
// compound.sub, because a subject for each GETATTR would be allocated on the heap. It is valid
// until the next call of subject or newSubject, so there is one subject at a time.
func (k *compound) subject(o *object, want Bitmap) (*subject, nfs.Status) {
	s := k.newSubject(o)
	if o.node != nil {
		t := k.s.pseudo()
		s.attr, s.change = t.attr(o.node), o.node.change
		s.limit = blockstore.Limits{MaxFileSize: 1<<63 - 1, LinkMax: 1, NameMax: blockstore.NameMax}
		return s, nfs.OK
	}
	if o.moved() {
		return s, k.absent(s, want)
	}
	a, err := o.x.FS.GetAttr(k.who(o), o.h)
	if err != nil {
		return s, nfs.StatusOf(err)
	}
	return s, k.of(s, &a, want)
}

// newSubject returns the compound's subject, cleared but for the object.
func (k *compound) newSubject(o *object) *subject {
	k.sub = subject{object: *o, k: k}
	return &k.sub
}

// of fills in the subject of an object of an export. The caller already has the object's attributes
// from the store. of calls the store at most once for each of: root, ACL (twice for a directory),
// time of creation, label, quota, statfs. These calls come after the one for the attributes, so a
// GETATTR is no snapshot of one moment.
func (k *compound) of(s *subject, a *blockstore.Attr, want Bitmap) nfs.Status {
	s.attr, s.change, s.limit = *a, changeOf(a), s.x.FS.Limits()
	if want.Has(AttrMountedOn) && a.Type == blockstore.TypeDir {
		s.at = k.mountpoint(&s.object)
	}
	if want.Has(AttrACL) && aclsOf(s.x) != nil {
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
	if b := birthsOf(s.x); b != nil && want.Has(AttrTimeCreate) {
		var err error
		if s.birth, err = b.Birth(k.who(&s.object), s.h); err != nil {
			return nfs.StatusOf(err)
		}
	}
	if l := labelsOf(s.x); l != nil && want.Has(AttrSecLabel) {
		var err error
		if s.label, err = l.GetLabel(k.who(&s.object), s.h); err != nil {
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

// encodeAttrs appends a fattr4 of the attributes that are wanted and supported. If the object's
// attributes could not be read, it appends only rdattr_error (RFC 8881 section 5.8.1.12), and for
// an absent file system a few more.
//
//	bitmap4 | uint32 length of the values in bytes | values in ascending order of their numbers
//
// The values have no lengths of their own. If one of them has a wrong size the client misreads all
// behind it, so the order of Bitmap.Each and the XDR type of each encoder matter.
func encodeAttrs(e *xdr.Encoder, want Bitmap, s *subject) {
	want = want.and(s.k.supported(s.x))
	switch s.fault {
	case nfs.OK:
	case nfs.ErrMoved:
		want = want.and(ofAbsent)
	default:
		want = want.and(BitmapOf(AttrRdattrError))
	}
	if s.label == nil {
		want.clear(AttrSecLabel)
	}
	want.Encode(e)
	at := len(e.B)
	e.Uint32(0)
	want.Each(func(n int) { encoders[n](e, s) })
	patch(e, at, uint32(len(e.B)-at-4))
}

// encoders has a function for each attribute that can be read, by its number. A nil function is an
// attribute that is write-only or not supported. init fills it in: the functions refer to
// supportedBy, which init derives from encoders, so an initializer would be a cycle. Afterwards
// nothing changes encoders or supportedBy.
var encoders [AttrOpenArguments + 1]func(e *xdr.Encoder, s *subject)

func init() {
	always := func(e *xdr.Encoder, _ *subject) { e.Bool(true) }
	never := func(e *xdr.Encoder, _ *subject) { e.Bool(false) }
	links := func(e *xdr.Encoder, s *subject) { e.Bool(s.x != nil) }
	const persistent = 0 // FH4_PERSISTENT (RFC 8881 section 4.2.2): a handle is valid as long as its object exists
	encoders = [...]func(e *xdr.Encoder, s *subject){
		AttrSupported:    func(e *xdr.Encoder, s *subject) { s.k.supported(s.x).Encode(e) },
		AttrType:         func(e *xdr.Encoder, s *subject) { e.Uint32(uint32(s.attr.Type)) },
		AttrFHExpireType: func(e *xdr.Encoder, _ *subject) { e.Uint32(persistent) },
		AttrChange:       func(e *xdr.Encoder, s *subject) { e.Uint64(s.change) },
		AttrSize:         func(e *xdr.Encoder, s *subject) { e.Uint64(s.attr.Size) },
		AttrLinkSupport:  links, AttrSymlinkSupp: links,
		AttrNamedAttr:     never,
		AttrCaseInsens:    func(e *xdr.Encoder, s *subject) { e.Bool(s.limit.CaseInsensitive) },
		AttrUniqueHandles: always, AttrCanSetTime: always, AttrCasePreserv: always,
		AttrChownRestr: always, AttrHomogeneous: always, AttrNoTrunc: always,
		AttrFSID:         encodeFSID,
		AttrLeaseTime:    func(e *xdr.Encoder, s *subject) { e.Uint32(uint32(s.k.s.state.Lease() / time.Second)) },
		AttrRdattrError:  func(e *xdr.Encoder, s *subject) { e.Uint32(uint32(s.fault)) },
		AttrACL:          func(e *xdr.Encoder, s *subject) { acl.Encode(e, s.aces, s.k.s.cfg.Names.Append) },
		AttrACLSupport:   encodeACLSupport,
		AttrFSLocations:  encodeLocations,
		AttrFileHandle:   func(e *xdr.Encoder, s *subject) { s.k.encodeHandle(e, &s.object) },
		AttrFileID:       func(e *xdr.Encoder, s *subject) { e.Uint64(s.attr.FileID) },
		AttrFilesAvail:   func(e *xdr.Encoder, s *subject) { e.Uint64(s.stat.AvailFiles) },
		AttrFilesFree:    func(e *xdr.Encoder, s *subject) { e.Uint64(s.stat.FreeFiles) },
		AttrFilesTotal:   func(e *xdr.Encoder, s *subject) { e.Uint64(s.stat.TotalFiles) },
		AttrMaxFileSize:  func(e *xdr.Encoder, s *subject) { e.Uint64(s.limit.MaxFileSize) },
		AttrMaxLink:      func(e *xdr.Encoder, s *subject) { e.Uint32(s.limit.LinkMax) },
		AttrMaxName:      func(e *xdr.Encoder, s *subject) { e.Uint32(s.limit.NameMax) },
		AttrMaxRead:      func(e *xdr.Encoder, s *subject) { e.Uint64(uint64(s.rules().ReadMax())) },
		AttrMaxWrite:     func(e *xdr.Encoder, s *subject) { e.Uint64(uint64(s.rules().WriteMax())) },
		AttrMode:         func(e *xdr.Encoder, s *subject) { e.Uint32(s.attr.Mode) },
		AttrNumLinks:     func(e *xdr.Encoder, s *subject) { e.Uint32(s.attr.NLink) },
		AttrOwner:        func(e *xdr.Encoder, s *subject) { s.k.encodeWho(e, s.attr.UID, false) },
		AttrOwnerGroup:   func(e *xdr.Encoder, s *subject) { s.k.encodeWho(e, s.attr.GID, true) },
		AttrQuotaHard:    func(e *xdr.Encoder, s *subject) { e.Uint64(s.quota.Left(s.quota.Hard, s.stat.AvailBytes)) },
		AttrQuotaSoft:    func(e *xdr.Encoder, s *subject) { e.Uint64(s.quota.Left(s.quota.Soft, s.stat.AvailBytes)) },
		AttrQuotaUsed:    func(e *xdr.Encoder, s *subject) { e.Uint64(s.quota.Used) },
		AttrRawDev:       func(e *xdr.Encoder, s *subject) { e.Uint64(uint64(s.attr.Major)<<32 | uint64(s.attr.Minor)) },
		AttrSpaceAvail:   func(e *xdr.Encoder, s *subject) { e.Uint64(s.stat.AvailBytes) },
		AttrSpaceFree:    func(e *xdr.Encoder, s *subject) { e.Uint64(s.stat.FreeBytes) },
		AttrSpaceTotal:   func(e *xdr.Encoder, s *subject) { e.Uint64(s.stat.TotalBytes) },
		AttrSpaceUsed:    func(e *xdr.Encoder, s *subject) { e.Uint64(s.attr.Used) },
		AttrTimeAccess:   func(e *xdr.Encoder, s *subject) { EncodeTime(e, s.attr.Atime) },
		AttrTimeCreate:   func(e *xdr.Encoder, s *subject) { EncodeTime(e, s.birth) },
		AttrTimeDelta:    func(e *xdr.Encoder, _ *subject) { EncodeTime(e, time.Unix(0, 1)) },
		AttrTimeMetadata: func(e *xdr.Encoder, s *subject) { EncodeTime(e, s.attr.Ctime) },
		AttrTimeModify:   func(e *xdr.Encoder, s *subject) { EncodeTime(e, s.attr.Mtime) },
		AttrMountedOn:    encodeMountedOn,
		AttrFSLocInfo:    encodeLocationsInfo,
		AttrExclCreat:    func(e *xdr.Encoder, s *subject) { settableExcl.and(s.k.supported(s.x)).Encode(e) },
		AttrCharsetCap:   encodeCharset,
		AttrCloneBlock:   func(e *xdr.Encoder, s *subject) { e.Uint32(s.limit.BlockSize) },
		AttrChangeType:   encodeChangeType,
		AttrSecLabel:     func(e *xdr.Encoder, s *subject) { encodeLabel(e, s.label) },
		AttrXattrSupport: func(e *xdr.Encoder, s *subject) { e.Bool(s.limit.Xattrs) },

		AttrOpenArguments: encodeOpenArguments,
	}
	for minor, last := range lastAttr {
		for n := range last + 1 {
			if encoders[n] != nil || writeOnly.Has(n) {
				supportedBy[minor].set(n)
			}
		}
	}
}

// encodeFSID appends an fsid4 (RFC 8881 section 5.8.1.9): uint64 major, uint64 minor. major is the
// export's FSID, minor its number. Every export is a file system, even two exports of the same
// directory tree, because their handles differ. The pseudo file system is 0, 0. An export's number
// is never 0, so that no export is mistaken for it.
func encodeFSID(e *xdr.Encoder, s *subject) {
	if s.x == nil {
		e.Uint64(0)
		e.Uint64(0)
		return
	}
	e.Uint64(s.x.FSID())
	e.Uint64(uint64(s.x.ID))
}

// encodeACLSupport appends aclsupport (RFC 8881 section 6.2.1.2). A POSIX ACL can express ALLOW and
// DENY, and neither AUDIT nor ALARM. 0 makes the Linux client send no ACL at all.
func encodeACLSupport(e *xdr.Encoder, s *subject) {
	support := uint32(acl.SupportAllow | acl.SupportDeny)
	if aclsOf(s.x) == nil {
		support = 0
	}
	e.Uint32(support)
}

// encodeMountedOn appends mounted_on_fileid: at the root of an export the number of its node in the
// pseudo file system, elsewhere fileid (RFC 8881 section 5.8.2.23). The Linux client shows
// mounted_on_fileid as d_ino of the mount point. Once it has mounted the export there, it shows
// fileid as st_ino. Programs that find their working directory by readdir and stat rely on the
// difference. The root of all covers no directory, so its mounted_on_fileid is its fileid.
func encodeMountedOn(e *xdr.Encoder, s *subject) {
	id := s.attr.FileID
	if s.at != nil && s.at.parent != nil {
		id = s.at.id
	}
	e.Uint64(id)
}

// encodeCharset appends fs_charset_cap (RFC 8881 section 14.4). It agrees with checkName, which
// refuses a name that is not UTF-8 if Config.UTF8 is set.
func encodeCharset(e *xdr.Encoder, s *subject) {
	const anyBytes, onlyUTF8 = 1, 2 // FSCHARSET_CAP4_CONTAINS_NON_UTF8, FSCHARSET_CAP4_ALLOWS_ONLY_UTF8
	capability := uint32(anyBytes)
	if s.k.s.cfg.UTF8 {
		capability = onlyUTF8
	}
	e.Uint32(capability)
}

// encodeChangeType appends change_attr_type (RFC 7862 section 12.2.3). With TIME_METADATA the Linux
// client can order two values of the change attribute, and ignores attributes that are older than
// those in its cache. With UNDEFINED it can only see that two values differ. If TIME_METADATA were
// wrong, the client would ignore newer attributes.
func encodeChangeType(e *xdr.Encoder, s *subject) {
	const timeMetadata, undefined = 3, 4
	how := uint32(timeMetadata)
	if s.x == nil {
		how = undefined // the change attribute of the pseudo file system is a hash
	}
	e.Uint32(how)
}

// EncodeTime appends an nfstime4: int64 seconds since 1970, uint32 nanoseconds. Before 1970 the
// seconds are negative and the nanoseconds still count forward, as time.Time has them.
func EncodeTime(e *xdr.Encoder, t time.Time) {
	e.Uint64(uint64(t.Unix()))
	e.Uint32(uint32(t.Nanosecond()))
}

// DecodeTime reads an nfstime4. 10^9 nanoseconds or more are an error of the decoder. It is for
// clients and tools that read what a server sent.
func DecodeTime(d *xdr.Decoder) time.Time {
	t, ok := decodeTime(d)
	if !ok {
		d.Fail(xdr.ErrValue)
	}
	return t
}

// decodeTime is DecodeTime for the server. 10^9 nanoseconds or more are well-formed XDR, so the
// status is INVAL and not BADXDR: ok is false, and the decoder goes on behind the time.
func decodeTime(d *xdr.Decoder) (t time.Time, ok bool) {
	s, ns := int64(d.Uint64()), d.Uint32()
	return time.Unix(s, int64(ns)), ns < uint32(time.Second)
}
