package nfs4

import (
	"strings"
	"time"

	"github.com/rstored/rstored/blockstore"
	"github.com/rstored/rstored/nfs"
	"github.com/rstored/rstored/nfs/acl"
	"github.com/rstored/rstored/rpcrdma/xdr"
)

// subject is an object with everything that its attributes are made of.
type subject struct {
	object
	k      *compound
	attr   blockstore.Attr
	change uint64     // the change attribute
	at     *node      // the node of the pseudo file system whose export's root it is, or nil
	fault  nfs.Status // what rdattr_error says

	stat  blockstore.Stat
	quota blockstore.Quota
	aces  []acl.ACE
	limit blockstore.Limits
}

// subject asks the store for what the wanted attributes of an object are made of.
// It belongs to the compound until the next call of subject: on the heap, each GETATTR would
// allocate one.
func (k *compound) subject(o *object, want Bitmap) (*subject, nfs.Status) {
	s := k.newSubject(o)
	if o.node != nil {
		t := k.s.pseudo()
		s.attr, s.change = t.attr(o.node), o.node.change
		s.limit = blockstore.Limits{MaxFileSize: 1<<63 - 1, LinkMax: 1, NameMax: blockstore.NameMax}
		return s, nfs.OK
	}
	a, err := o.x.FS.GetAttr(k.who(o), o.h)
	if err != nil {
		return s, nfs.StatusOf(err)
	}
	return s, k.of(s, &a, want)
}

func (k *compound) newSubject(o *object) *subject {
	k.sub = subject{object: *o, k: k}
	return &k.sub
}

// of is subject for an object of an export whose attributes the store has returned already.
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
	if !want.and(ofStat).empty() {
		var err error
		if s.stat, err = s.x.FS.Stat(k.who(&s.object), s.h); err != nil {
			return nfs.StatusOf(err)
		}
	}
	return nfs.OK
}

// encodeAttrs appends a fattr4 of the attributes that are wanted and supported. If the object's
// attributes could not be read, rdattr_error is the only one (RFC 8881 section 5.8.1.12).
func encodeAttrs(e *xdr.Encoder, want Bitmap, s *subject) {
	want = want.and(s.k.supported(s.x))
	if s.fault != nfs.OK {
		want = want.and(BitmapOf(AttrRdattrError))
	}
	want.Encode(e)
	at := len(e.B)
	e.Uint32(0)
	want.Each(func(n int) { encoders[n](e, s) })
	patch(e, at, uint32(len(e.B)-at-4))
}

// encoders has a function for each attribute that can be read. init fills it in, because the
// functions refer to supportedBy, which is made of it.
var encoders [AttrXattrSupport + 1]func(e *xdr.Encoder, s *subject)

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
		AttrNamedAttr: never, AttrCaseInsens: never,
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
		AttrTimeDelta:    func(e *xdr.Encoder, _ *subject) { EncodeTime(e, time.Unix(0, 1)) },
		AttrTimeMetadata: func(e *xdr.Encoder, s *subject) { EncodeTime(e, s.attr.Ctime) },
		AttrTimeModify:   func(e *xdr.Encoder, s *subject) { EncodeTime(e, s.attr.Mtime) },
		AttrMountedOn:    encodeMountedOn,
		AttrExclCreat:    func(e *xdr.Encoder, s *subject) { settableExcl.and(s.k.supported(s.x)).Encode(e) },
		AttrCharsetCap:   encodeCharset,
		AttrCloneBlock:   func(e *xdr.Encoder, s *subject) { e.Uint32(s.limit.BlockSize) },
		AttrChangeType:   encodeChangeType,
		AttrXattrSupport: func(e *xdr.Encoder, s *subject) { e.Bool(s.limit.Xattrs) },
	}
	for minor, last := range lastAttr {
		for n := range last + 1 {
			if encoders[n] != nil || writeOnly.Has(n) {
				supportedBy[minor].set(n)
			}
		}
	}
}

// encodeFSID appends an fsid4. Every export is a file system, even two exports of the same
// directory tree, because their handles differ. The pseudo file system is 0, 0.
func encodeFSID(e *xdr.Encoder, s *subject) {
	if s.x == nil {
		e.Uint64(0)
		e.Uint64(0)
		return
	}
	e.Uint64(s.x.FSID())
	e.Uint64(uint64(s.x.ID))
}

func encodeACLSupport(e *xdr.Encoder, s *subject) {
	support := uint32(acl.SupportAllow | acl.SupportDeny)
	if aclsOf(s.x) == nil {
		support = 0
	}
	e.Uint32(support)
}

// encodeLocations appends an fs_locations: the path of the file system in the pseudo file system.
// It names no other server.
func encodeLocations(e *xdr.Encoder, s *subject) {
	var names []string
	if s.x != nil { // the pseudo file system is at the root
		if n := s.k.s.pseudo().byExport[s.x.ID]; n != nil && n.parent != nil {
			names = strings.Split(strings.Trim(n.path, "/"), "/")
		}
	}
	e.Uint32(uint32(len(names)))
	for _, name := range names {
		e.String(name)
	}
	e.Uint32(0)
}

// encodeMountedOn appends mounted_on_fileid: at the root of an export the number of the directory
// that the export covers, elsewhere fileid (RFC 8881 section 5.8.2.23).
func encodeMountedOn(e *xdr.Encoder, s *subject) {
	id := s.attr.FileID
	if s.at != nil && s.at.parent != nil {
		id = s.at.id
	}
	e.Uint64(id)
}

// encodeCharset appends fs_charset_cap (RFC 8881 section 14.4).
func encodeCharset(e *xdr.Encoder, s *subject) {
	const anyBytes, onlyUTF8 = 1, 2 // FSCHARSET_CAP4_CONTAINS_NON_UTF8, FSCHARSET_CAP4_ALLOWS_ONLY_UTF8
	capability := uint32(anyBytes)
	if s.k.s.cfg.UTF8 {
		capability = onlyUTF8
	}
	e.Uint32(capability)
}

// encodeChangeType appends change_attr_type (RFC 7862 section 12.2.3).
func encodeChangeType(e *xdr.Encoder, s *subject) {
	const timeMetadata, undefined = 3, 4
	how := uint32(timeMetadata)
	if s.x == nil {
		how = undefined // that of the pseudo file system is a hash
	}
	e.Uint32(how)
}

// EncodeTime appends an nfstime4.
func EncodeTime(e *xdr.Encoder, t time.Time) {
	e.Uint64(uint64(t.Unix()))
	e.Uint32(uint32(t.Nanosecond()))
}

// DecodeTime reads an nfstime4; 10^9 nanoseconds or more are an error.
func DecodeTime(d *xdr.Decoder) time.Time {
	t, ok := decodeTime(d)
	if !ok {
		d.Fail(xdr.ErrValue)
	}
	return t
}

// decodeTime is DecodeTime for the server: too many nanoseconds are well-formed XDR, whose status
// is INVAL.
func decodeTime(d *xdr.Decoder) (t time.Time, ok bool) {
	s, ns := int64(d.Uint64()), d.Uint32()
	return time.Unix(s, int64(ns)), ns < uint32(time.Second)
}
