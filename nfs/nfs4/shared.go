package nfs4

import (
	"time"

	"github.com/rstored/rstored/nfs/state"
	"github.com/rstored/rstored/rpcrdma/xdr"
)

// What follows is the protocol as both of its ends need it: the Go client encodes
// what the server decodes.

// Attributes, by their numbers.
const (
	AttrType         = attrType
	AttrSize         = attrSize
	AttrFSID         = attrFSID
	AttrLeaseTime    = attrLeaseTime
	AttrRdattrError  = attrRdattrError
	AttrCaseInsens   = attrCaseInsens
	AttrCasePreserv  = attrCasePreserving
	AttrChownRestr   = attrChownRestrict
	AttrFileHandle   = attrFileHandle
	AttrFileID       = attrFileID
	AttrFilesAvail   = attrFilesAvail
	AttrFilesFree    = attrFilesFree
	AttrFilesTotal   = attrFilesTotal
	AttrHomogeneous  = attrHomogeneous
	AttrLinkSupport  = attrLinkSupport
	AttrSymlinkSupp  = attrSymlinkSupport
	AttrCanSetTime   = attrCanSetTime
	AttrMaxFileSize  = attrMaxFileSize
	AttrMaxLink      = attrMaxLink
	AttrMaxName      = attrMaxName
	AttrMaxRead      = attrMaxRead
	AttrMaxWrite     = attrMaxWrite
	AttrMode         = attrMode
	AttrNoTrunc      = attrNoTrunc
	AttrNumLinks     = attrNumLinks
	AttrOwner        = attrOwner
	AttrOwnerGroup   = attrOwnerGroup
	AttrRawDev       = attrRawDev
	AttrSpaceAvail   = attrSpaceAvail
	AttrSpaceFree    = attrSpaceFree
	AttrSpaceTotal   = attrSpaceTotal
	AttrSpaceUsed    = attrSpaceUsed
	AttrTimeAccess   = attrTimeAccess
	AttrTimeAccSet   = attrTimeAccessSet
	AttrTimeDelta    = attrTimeDelta
	AttrTimeMetadata = attrTimeMetadata
	AttrTimeModify   = attrTimeModify
	AttrTimeModSet   = attrTimeModifySet
	AttrMountedOn    = attrMountedOn
)

// Words of OPEN (RFC 8881 section 18.16).
const (
	OpenNoCreate      = openNoCreate
	OpenCreate        = openCreate
	CreateUnchecked   = createUnchecked
	CreateGuarded     = createGuarded
	CreateExclusive41 = createExclusive41
	ClaimNull         = claimNull
	ClaimPrevious     = claimPrevious
	ClaimFH           = claimFH
	WantNoDeleg       = wantNoDeleg
	DelegNone         = delegNone
	DelegNoneExt      = delegNoneExt
	LockRead          = lockRead
	LockWrite         = lockWrite
)

// FHMax is the longest file handle in bytes, OwnerMax the longest owner string or
// other short opaque item, VerifierLen the length of a verifier.
const (
	FHMax       = fhMax
	OwnerMax    = ownerMax
	VerifierLen = verifierLen
)

// Bitmap is a bitmap4 of the attributes that have numbers here.
type Bitmap = bitmap

// BitmapOf is the bitmap of the attributes with these numbers.
func BitmapOf(attrs ...int) Bitmap { return bits4(attrs...) }

// DecodeBitmap reads a bitmap4. more says that there are bits beyond those of Bitmap.
func DecodeBitmap(d *xdr.Decoder) (b Bitmap, more bool) { return decodeBitmap(d) }

// Encode appends the bitmap4.
func (b bitmap) Encode(e *xdr.Encoder) { b.encode(e) }

// Has reports whether attribute n is in the bitmap.
func (b *bitmap) Has(n int) bool { return b.has(n) }

// Each calls f for every attribute in the bitmap, in ascending order.
func (b bitmap) Each(f func(n int)) { b.each(f) }

// EncodeStateid appends a stateid4.
func EncodeStateid(e *xdr.Encoder, id state.Stateid) { encodeStateid(e, id) }

// DecodeStateid reads a stateid4.
func DecodeStateid(d *xdr.Decoder) state.Stateid { return decodeStateid(d) }

// DecodeSessionID reads a sessionid4.
func DecodeSessionID(d *xdr.Decoder) state.SessionID { return decodeSessionID(d) }

// EncodeChannel appends a channel_attrs4.
func EncodeChannel(e *xdr.Encoder, c *state.Channel) { encodeChannel(e, c) }

// DecodeChannel reads a channel_attrs4.
func DecodeChannel(d *xdr.Decoder) state.Channel { return decodeChannel(d) }

// EncodeID appends the owner string of a user or group by number.
func EncodeID(e *xdr.Encoder, id uint32) { encodeID(e, id) }

// DecodeID takes the owner string of a user or group apart; ok is false for a name.
func DecodeID(b []byte) (id uint32, ok bool) { return decodeID(b) }

// EncodeTime appends an nfstime4.
func EncodeTime(e *xdr.Encoder, t time.Time) { encodeTime(e, t) }

// DecodeTime reads an nfstime4; 10^9 nanoseconds or more are an error.
func DecodeTime(d *xdr.Decoder) time.Time {
	t, ok := decodeTime(d)
	if !ok {
		d.Fail(xdr.ErrValue)
	}
	return t
}
