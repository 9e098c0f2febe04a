package nfs3

import (
	"time"

	"github.com/rstored/rstored/blockstore"
	"github.com/rstored/rstored/nfs"
	"github.com/rstored/rstored/rpcrdma/xdr"
)

// Program is the RPC program number of NFS, and Version is the version that this package serves.
const (
	Program = 100003
	Version = 3
)

// Procedures (RFC 1813 section 3.3).
const (
	ProcNull        = 0
	ProcGetAttr     = 1
	ProcSetAttr     = 2
	ProcLookup      = 3
	ProcAccess      = 4
	ProcReadLink    = 5
	ProcRead        = 6
	ProcWrite       = 7
	ProcCreate      = 8
	ProcMkdir       = 9
	ProcSymlink     = 10
	ProcMknod       = 11
	ProcRemove      = 12
	ProcRmdir       = 13
	ProcRename      = 14
	ProcLink        = 15
	ProcReadDir     = 16
	ProcReadDirPlus = 17
	ProcFSStat      = 18
	ProcFSInfo      = 19
	ProcPathConf    = 20
	ProcCommit      = 21

	numProcs = 22
)

// Words of sattr3 and createhow3.
const (
	timeDontChange = 0
	timeServer     = 1
	timeClient     = 2

	CreateUnchecked = 0
	CreateGuarded   = 1
	CreateExclusive = 2
)

// Properties of FSINFO (FSF3_*).
const (
	PropLink        = 0x01
	PropSymlink     = 0x02
	PropHomogeneous = 0x08
	PropCanSetTime  = 0x10
)

// Sizes and limits, in bytes.
const (
	AttrLen     = 84 // fattr3
	PostOpLen   = 4 + AttrLen
	VerifierLen = 8
	// NameLimit and PathLimit bound a name and the target of a symlink when they are decoded. Both are
	// longer than any store accepts. So a name that is too long gets NAMETOOLONG and not GARBAGE_ARGS.
	NameLimit = 4096
	PathLimit = 8192
)

// Attr has the attributes of an object, and the identity of its file system.
type Attr struct {
	blockstore.Attr
	FSID uint64
}

// PreAttr are the attributes before a change (wcc_attr).
type PreAttr struct {
	Size         uint64
	Mtime, Ctime time.Time
}

// Wcc is a decoded wcc_data. A nil part was not sent.
type Wcc struct {
	Pre  *PreAttr
	Post *Attr
}

// EncodeTime appends an nfstime3. The seconds are unsigned, so a time before 1970 becomes 0, and a
// time after 2106 becomes the largest one.
//
//	seconds (4) | nanoseconds (4)
func EncodeTime(e *xdr.Encoder, t time.Time) {
	s := t.Unix()
	switch {
	case s < 0:
		e.Uint64(0)
	case s > 1<<32-1:
		e.Uint64((1<<32 - 1) << 32)
	default:
		e.Uint32(uint32(s))
		e.Uint32(uint32(t.Nanosecond()))
	}
}

// DecodeTime reads an nfstime3; 10^9 nanoseconds or more are an error.
func DecodeTime(d *xdr.Decoder) time.Time {
	s, ns := d.Uint32(), d.Uint32()
	if ns >= uint32(time.Second) {
		d.Fail(xdr.ErrValue)
		return time.Time{}
	}
	return time.Unix(int64(s), int64(ns))
}

// EncodeAttr appends a fattr3 (RFC 1813 section 2.6) of AttrLen bytes. The widths are in bytes:
//
//	type 4 | mode 4 | nlink 4 | uid 4 | gid 4 | size 8 | used 8 | rdev: major 4, minor 4
//	fsid 8 | fileid 8 | atime 8 | mtime 8 | ctime 8
func EncodeAttr(e *xdr.Encoder, a *blockstore.Attr, fsid uint64) {
	e.Uint32(uint32(a.Type))
	e.Uint32(a.Mode)
	e.Uint32(a.NLink)
	e.Uint32(a.UID)
	e.Uint32(a.GID)
	e.Uint64(a.Size)
	e.Uint64(a.Used)
	e.Uint32(a.Major)
	e.Uint32(a.Minor)
	e.Uint64(fsid)
	e.Uint64(a.FileID)
	EncodeTime(e, a.Atime)
	EncodeTime(e, a.Mtime)
	EncodeTime(e, a.Ctime)
}

// DecodeAttr reads a fattr3.
func DecodeAttr(d *xdr.Decoder) (a Attr) {
	a.Type = blockstore.FileType(d.Uint32())
	a.Mode = d.Uint32()
	a.NLink = d.Uint32()
	a.UID = d.Uint32()
	a.GID = d.Uint32()
	a.Size = d.Uint64()
	a.Used = d.Uint64()
	a.Major = d.Uint32()
	a.Minor = d.Uint32()
	a.FSID = d.Uint64()
	a.FileID = d.Uint64()
	a.Atime = DecodeTime(d)
	a.Mtime = DecodeTime(d)
	a.Ctime = DecodeTime(d)
	return a
}

// EncodePostOp appends a post_op_attr. A nil a stands for unknown attributes.
//
//	attributes follow: bool | if TRUE: fattr3
func EncodePostOp(e *xdr.Encoder, a *blockstore.Attr, fsid uint64) {
	e.Bool(a != nil)
	if a != nil {
		EncodeAttr(e, a, fsid)
	}
}

// DecodePostOp reads a post_op_attr.
func DecodePostOp(d *xdr.Decoder) *Attr {
	if !d.Bool() || d.Err() != nil {
		return nil
	}
	a := DecodeAttr(d)
	return &a
}

// SkipPostOp skips a post_op_attr.
func SkipPostOp(d *xdr.Decoder) {
	if d.Bool() && d.Err() == nil {
		DecodeAttr(d)
	}
}

// EncodeWcc appends a wcc_data (RFC 1813 section 2.6):
//
//	before follows: bool | if TRUE: size 8, mtime 8, ctime 8
//	after: post_op_attr
func EncodeWcc(e *xdr.Encoder, w *blockstore.Wcc, fsid uint64) {
	e.Bool(w.Pre.Known)
	if w.Pre.Known {
		e.Uint64(w.Pre.Size)
		EncodeTime(e, w.Pre.Mtime)
		EncodeTime(e, w.Pre.Ctime)
	}
	e.Bool(w.Post.Known)
	if w.Post.Known {
		EncodeAttr(e, &w.Post.Attr, fsid)
	}
}

// DecodeWcc reads a wcc_data.
func DecodeWcc(d *xdr.Decoder) (w Wcc) {
	if d.Bool() {
		w.Pre = &PreAttr{Size: d.Uint64(), Mtime: DecodeTime(d), Ctime: DecodeTime(d)}
	}
	w.Post = DecodePostOp(d)
	return w
}

// SkipWcc skips a wcc_data.
func SkipWcc(d *xdr.Decoder) {
	if d.Bool() {
		d.Uint64()
		DecodeTime(d)
		DecodeTime(d)
	}
	SkipPostOp(d)
}

// EncodeSetAttr appends a sattr3 (RFC 1813 section 2.6). A nil s changes nothing.
//
//	mode, uid, gid   each: set: bool | if TRUE: uint32
//	size             set: bool | if TRUE: uint64
//	atime, mtime     each: 0 keep, 1 the server's time, 2 the client's | if 2: nfstime3
func EncodeSetAttr(e *xdr.Encoder, s *blockstore.SetAttr) {
	if s == nil {
		s = &blockstore.SetAttr{}
	}
	for _, v := range [...]*uint32{s.Mode, s.UID, s.GID} {
		e.Bool(v != nil)
		if v != nil {
			e.Uint32(*v)
		}
	}
	e.Bool(s.Size != nil)
	if s.Size != nil {
		e.Uint64(*s.Size)
	}
	encodeTimeSet(e, s.AtimeHow, s.Atime)
	encodeTimeSet(e, s.MtimeHow, s.Mtime)
}

func encodeTimeSet(e *xdr.Encoder, how blockstore.TimeSet, t time.Time) {
	switch how {
	case blockstore.TimeServer:
		e.Uint32(timeServer)
	case blockstore.TimeClient:
		e.Uint32(timeClient)
		EncodeTime(e, t)
	default:
		e.Uint32(timeDontChange)
	}
}

// DecodeSetAttr reads a sattr3.
func DecodeSetAttr(d *xdr.Decoder) (s blockstore.SetAttr) {
	for _, p := range [...]**uint32{&s.Mode, &s.UID, &s.GID} {
		if d.Bool() {
			v := d.Uint32()
			*p = &v
		}
	}
	if d.Bool() {
		v := d.Uint64()
		s.Size = &v
	}
	s.AtimeHow, s.Atime = decodeTimeSet(d)
	s.MtimeHow, s.Mtime = decodeTimeSet(d)
	return s
}

func decodeTimeSet(d *xdr.Decoder) (blockstore.TimeSet, time.Time) {
	switch d.Uint32() {
	case timeDontChange:
		return blockstore.TimeKeep, time.Time{}
	case timeServer:
		return blockstore.TimeServer, time.Time{}
	case timeClient:
		return blockstore.TimeClient, DecodeTime(d)
	}
	d.Fail(xdr.ErrValue)
	return blockstore.TimeKeep, time.Time{}
}

// EncodeHandle appends an nfs_fh3: length | bytes, padded to 4.
func EncodeHandle(e *xdr.Encoder, h []byte) { e.Opaque(h) }

// DecodeHandle reads an nfs_fh3 of at most nfs.HandleMax bytes. The result aliases the message.
func DecodeHandle(d *xdr.Decoder) []byte { return d.Opaque(nfs.HandleMax) }

// DecodePostOpHandle reads a post_op_fh3: bool | if TRUE: nfs_fh3. nil: there is none. The result
// aliases the message.
func DecodePostOpHandle(d *xdr.Decoder) []byte {
	if !d.Bool() || d.Err() != nil {
		return nil
	}
	return DecodeHandle(d)
}

// DecodeVerifier reads the 8 bytes of a cookie, create or write verifier.
func DecodeVerifier(d *xdr.Decoder) (v [VerifierLen]byte) {
	copy(v[:], d.Fixed(VerifierLen))
	return v
}
