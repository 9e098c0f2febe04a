package nfs4

import (
	"github.com/rstored/rstored/blockstore"
	"github.com/rstored/rstored/nfs"
)

// Attributes (RFC 8881 section 5, RFC 7862 section 12.2, RFC 8275, RFC 8276, RFC 9754). A number is
// the bit in a bitmap4. Numbers without a constant are attributes that this server does not
// support, such as those of layouts (62 to 66) and retention (69 to 73). A GETATTR of them leaves
// them out. A SETATTR of them is ATTRNOTSUPP.
const (
	AttrSupported     = 0
	AttrType          = 1
	AttrFHExpireType  = 2
	AttrChange        = 3
	AttrSize          = 4
	AttrLinkSupport   = 5
	AttrSymlinkSupp   = 6
	AttrNamedAttr     = 7
	AttrFSID          = 8
	AttrUniqueHandles = 9
	AttrLeaseTime     = 10
	AttrRdattrError   = 11
	AttrACL           = 12
	AttrACLSupport    = 13
	AttrCanSetTime    = 15
	AttrCaseInsens    = 16
	AttrCasePreserv   = 17
	AttrChownRestr    = 18
	AttrFileHandle    = 19
	AttrFileID        = 20
	AttrFilesAvail    = 21
	AttrFilesFree     = 22
	AttrFilesTotal    = 23
	AttrFSLocations   = 24
	AttrHomogeneous   = 26
	AttrMaxFileSize   = 27
	AttrMaxLink       = 28
	AttrMaxName       = 29
	AttrMaxRead       = 30
	AttrMaxWrite      = 31
	AttrMode          = 33
	AttrNoTrunc       = 34
	AttrNumLinks      = 35
	AttrOwner         = 36
	AttrOwnerGroup    = 37
	AttrQuotaHard     = 38
	AttrQuotaSoft     = 39
	AttrQuotaUsed     = 40
	AttrRawDev        = 41
	AttrSpaceAvail    = 42
	AttrSpaceFree     = 43
	AttrSpaceTotal    = 44
	AttrSpaceUsed     = 45
	AttrTimeAccess    = 47
	AttrTimeAccSet    = 48
	AttrTimeCreate    = 50
	AttrTimeDelta     = 51
	AttrTimeMetadata  = 52
	AttrTimeModify    = 53
	AttrTimeModSet    = 54
	AttrMountedOn     = 55
	AttrFSLocInfo     = 67
	AttrExclCreat     = 75
	AttrCharsetCap    = 76
	AttrCloneBlock    = 77
	AttrChangeType    = 79
	AttrSecLabel      = 80
	AttrModeUmask     = 81
	AttrXattrSupport  = 82
	AttrDelegAccess   = 84
	AttrDelegModify   = 85
	AttrOpenArguments = 86
)

// lastAttr is the highest attribute number of each minor version. RFC 7530 ends with
// mounted_on_fileid, RFC 8881 with fs_charset_cap. RFC 7862, 8275, 8276 and 9754 added those of
// version 4.2. A client of an earlier version that asks for a later attribute gets none: its own
// XDR does not know how long the value is.
var lastAttr = [minorMax + 1]int{AttrMountedOn, AttrCharsetCap, AttrOpenArguments}

var (
	// settable can be set by SETATTR. Every other supported attribute is INVAL there (RFC 8881
	// section 5.5). time_create is accepted and not set, see decodeSetAttr.
	settable = BitmapOf(AttrSize, AttrACL, AttrMode, AttrOwner, AttrOwnerGroup, AttrTimeAccSet, AttrTimeCreate,
		AttrTimeModSet, AttrSecLabel)
	// settableBack is settable, and the times that the holder of a delegation with times gives back by
	// SETATTR (RFC 9754 section 5).
	settableBack = settable.or(delegTimes)
	delegTimes   = BitmapOf(AttrDelegAccess, AttrDelegModify)
	// settableNew can be set at creation. mode_umask has a meaning only there (RFC 8275).
	settableNew = settable.or(BitmapOf(AttrModeUmask))
	// settableExcl can be set by an exclusive create. It has no times, because the store writes the
	// verifier into them (RFC 8881 section 18.16.4). suppattr_exclcreat has this set. The Linux
	// client sets the times by a SETATTR afterwards.
	settableExcl = settableNew.without(BitmapOf(AttrTimeAccSet, AttrTimeModSet))
	// writeOnly are attributes that cannot be read. GETATTR, READDIR, VERIFY and NVERIFY of one of
	// them are INVAL (RFC 8881 section 5.5). Only the server itself asks the holder of a delegation
	// for delegTimes, by CB_GETATTR.
	writeOnly = BitmapOf(AttrTimeAccSet, AttrTimeModSet, AttrModeUmask).or(delegTimes)
	// ofStat are the attributes that need the store's Stat, ofQuota those that need its Quota. A
	// GETATTR without them makes neither call. The limits of a quota are in both sets, because the
	// space that is left on the file system bounds them too.
	ofStat = BitmapOf(AttrQuotaHard, AttrQuotaSoft, AttrFilesAvail, AttrFilesFree, AttrFilesTotal,
		AttrSpaceAvail, AttrSpaceFree, AttrSpaceTotal)
	ofQuota = BitmapOf(AttrQuotaHard, AttrQuotaSoft, AttrQuotaUsed)

	// supportedBy is what each minor version supports if the store has every optional interface.
	supportedBy [minorMax + 1]Bitmap
)

// supported returns the attributes of the minor version that an export has. x is nil for the pseudo
// file system. The set is per file system (RFC 8881 section 5.8.1.1): all objects of an export have
// the same, so it depends on the store's Limits and not on the object.
func (k *compound) supported(x *nfs.Export) Bitmap {
	b := supportedBy[k.minor]
	if aclsOf(x) == nil {
		b.clear(AttrACL)
	}
	if quotasOf(x) == nil {
		b = b.without(ofQuota)
	}
	if birthsOf(x) == nil {
		b.clear(AttrTimeCreate)
	}
	if labelsOf(x) == nil {
		b.clear(AttrSecLabel)
	}
	if x == nil || !x.FS.Limits().Clones {
		b.clear(AttrCloneBlock)
	}
	return b
}

// quotasOf returns the store of an export if it has quotas, else nil. x may be nil.
func quotasOf(x *nfs.Export) blockstore.Quotas {
	return optional[blockstore.Quotas](x, func(l blockstore.Limits) bool { return l.Quotas })
}

// birthsOf returns the store of an export if it knows when objects were made, else nil. x may be
// nil.
func birthsOf(x *nfs.Export) blockstore.Births {
	return optional[blockstore.Births](x, func(l blockstore.Limits) bool { return l.Births })
}

// changeOf returns the change attribute: the ctime in nanoseconds since 1970. change_attr_type says
// so to the client (TIME_METADATA). A server may do this only if two changes never get the same
// time (RFC 8881 section 5.8.1.4). Stores make these times differ for every two changes of theirs.
func changeOf(a *blockstore.Attr) uint64 { return uint64(a.Ctime.UnixNano()) }
