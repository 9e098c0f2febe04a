package client

import (
	"math/bits"
	"os/user"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/rstored/rstored/blockstore"
	"github.com/rstored/rstored/nfs"
	"github.com/rstored/rstored/nfs/acl"
	"github.com/rstored/rstored/nfs/nfs3"
	"github.com/rstored/rstored/nfs/nfs4"
	"github.com/rstored/rstored/rpcrdma/xdr"
)

// fattrMax bounds a fattr4 from a server, in bytes: one with an ACL is the longest.
const fattrMax = aclBytes

// ofObject are the attributes that make an nfs3.Attr.
var ofObject = nfs4.BitmapOf(nfs4.AttrType, nfs4.AttrSize, nfs4.AttrFSID, nfs4.AttrFileID, nfs4.AttrMode,
	nfs4.AttrNumLinks,
	nfs4.AttrOwner, nfs4.AttrOwnerGroup, nfs4.AttrRawDev, nfs4.AttrSpaceUsed, nfs4.AttrTimeAccess, nfs4.AttrTimeMetadata,
	nfs4.AttrTimeModify)

// ofEntry are the attributes that the client asks for of each entry of a directory.
var ofEntry = func() nfs4.Bitmap {
	b := nfs4.BitmapOf(nfs4.AttrRdattrError, nfs4.AttrFileHandle)
	ofObject.Each(func(n int) { b[n/32] |= 1 << (n % 32) })
	return b
}()

// attrs4 are the attributes of a fattr4 that the client uses.
type attrs4 struct {
	has    nfs4.Bitmap
	attr   nfs3.Attr
	change uint64
	fsid   [2]uint64
	fh     Handle
	fault  nfs.Status // rdattr_error
	lease  uint32     // seconds
	stat   blockstore.Stat
	info   Info
	conf   PathConf
	aces   []acl.ACE
	// aclErr is why the ACL cannot be mapped.
	aclErr error
}

// get is a GETATTR of the current file into a.
func (a *attrs4) get(want nfs4.Bitmap) op4 {
	return op4{nfs4.OpGetAttr, func(e *xdr.Encoder) { want.Encode(e) }, a.decode}
}

// decode reads a fattr4.
func (a *attrs4) decode(d *xdr.Decoder) {
	*a = attrs4{}
	has, more := nfs4.DecodeBitmap(d)
	vals := xdr.NewDecoder(d.Opaque(fattrMax))
	if d.Err() != nil {
		return
	}
	if more {
		d.Fail(errResults) // the server returned attributes that the client did not ask for
		return
	}
	a.has = has
	has.Each(func(n int) {
		switch {
		case vals.Err() != nil:
		case attrDecoders[n] == nil:
			vals.Fail(errResults)
		default:
			attrDecoders[n](a, &vals)
		}
	})
	if vals.Err() != nil || vals.Remaining() != 0 {
		d.Fail(errResults)
		return
	}
	if !has.Has(nfs4.AttrSpaceUsed) {
		a.attr.Used = a.attr.Size
	}
	if !has.Has(nfs4.AttrNumLinks) {
		a.attr.NLink = 1
	}
	a.attr.FSID = a.fsid[0] ^ bits.RotateLeft64(a.fsid[1], 32)
}

// attrDecoders decode the attributes that the client asks for, by their numbers (RFC 8881
// section 5.8).
var attrDecoders = [32 * len(nfs4.Bitmap{})]func(*attrs4, *xdr.Decoder){
	nfs4.AttrType:         func(a *attrs4, d *xdr.Decoder) { a.attr.Type = blockstore.FileType(d.Uint32()) },
	nfs4.AttrChange:       func(a *attrs4, d *xdr.Decoder) { a.change = d.Uint64() },
	nfs4.AttrSize:         func(a *attrs4, d *xdr.Decoder) { a.attr.Size = d.Uint64() },
	nfs4.AttrFSID:         func(a *attrs4, d *xdr.Decoder) { a.fsid = [2]uint64{d.Uint64(), d.Uint64()} },
	nfs4.AttrLeaseTime:    func(a *attrs4, d *xdr.Decoder) { a.lease = d.Uint32() },
	nfs4.AttrRdattrError:  func(a *attrs4, d *xdr.Decoder) { a.fault = nfs.Status(d.Uint32()) },
	nfs4.AttrACL:          func(a *attrs4, d *xdr.Decoder) { a.aces, a.aclErr = acl.Decode(d, aclID) },
	nfs4.AttrFileHandle:   func(a *attrs4, d *xdr.Decoder) { a.fh = copyHandle(d.Opaque(nfs4.FHMax)) },
	nfs4.AttrFileID:       func(a *attrs4, d *xdr.Decoder) { a.attr.FileID = d.Uint64() },
	nfs4.AttrMode:         func(a *attrs4, d *xdr.Decoder) { a.attr.Mode = d.Uint32() },
	nfs4.AttrNumLinks:     func(a *attrs4, d *xdr.Decoder) { a.attr.NLink = d.Uint32() },
	nfs4.AttrOwner:        func(a *attrs4, d *xdr.Decoder) { a.attr.UID = ids.users.id(d.Opaque(nfs4.OwnerMax)) },
	nfs4.AttrOwnerGroup:   func(a *attrs4, d *xdr.Decoder) { a.attr.GID = ids.groups.id(d.Opaque(nfs4.OwnerMax)) },
	nfs4.AttrRawDev:       func(a *attrs4, d *xdr.Decoder) { a.attr.Major, a.attr.Minor = d.Uint32(), d.Uint32() },
	nfs4.AttrSpaceUsed:    func(a *attrs4, d *xdr.Decoder) { a.attr.Used = d.Uint64() },
	nfs4.AttrTimeAccess:   func(a *attrs4, d *xdr.Decoder) { a.attr.Atime = nfs4.DecodeTime(d) },
	nfs4.AttrTimeMetadata: func(a *attrs4, d *xdr.Decoder) { a.attr.Ctime = nfs4.DecodeTime(d) },
	nfs4.AttrTimeModify:   func(a *attrs4, d *xdr.Decoder) { a.attr.Mtime = nfs4.DecodeTime(d) },
	nfs4.AttrFilesAvail:   func(a *attrs4, d *xdr.Decoder) { a.stat.AvailFiles = d.Uint64() },
	nfs4.AttrFilesFree:    func(a *attrs4, d *xdr.Decoder) { a.stat.FreeFiles = d.Uint64() },
	nfs4.AttrFilesTotal:   func(a *attrs4, d *xdr.Decoder) { a.stat.TotalFiles = d.Uint64() },
	nfs4.AttrSpaceAvail:   func(a *attrs4, d *xdr.Decoder) { a.stat.AvailBytes = d.Uint64() },
	nfs4.AttrSpaceFree:    func(a *attrs4, d *xdr.Decoder) { a.stat.FreeBytes = d.Uint64() },
	nfs4.AttrSpaceTotal:   func(a *attrs4, d *xdr.Decoder) { a.stat.TotalBytes = d.Uint64() },
	nfs4.AttrMaxFileSize:  func(a *attrs4, d *xdr.Decoder) { a.info.FileMax = d.Uint64() },
	nfs4.AttrMaxRead:      func(a *attrs4, d *xdr.Decoder) { a.info.ReadMax = uint32(min(d.Uint64(), 1<<32-1)) },
	nfs4.AttrMaxWrite:     func(a *attrs4, d *xdr.Decoder) { a.info.WriteMax = uint32(min(d.Uint64(), 1<<32-1)) },
	nfs4.AttrTimeDelta: func(a *attrs4, d *xdr.Decoder) {
		s, ns := d.Uint64(), d.Uint32()
		a.info.TimeDelta = time.Duration(min(s, 1<<32))*time.Second + time.Duration(ns)
	},
	nfs4.AttrLinkSupport: func(a *attrs4, d *xdr.Decoder) { a.property(d, nfs3.PropLink) },
	nfs4.AttrSymlinkSupp: func(a *attrs4, d *xdr.Decoder) { a.property(d, nfs3.PropSymlink) },
	nfs4.AttrHomogeneous: func(a *attrs4, d *xdr.Decoder) { a.property(d, nfs3.PropHomogeneous) },
	nfs4.AttrCanSetTime:  func(a *attrs4, d *xdr.Decoder) { a.property(d, nfs3.PropCanSetTime) },
	nfs4.AttrMaxLink:     func(a *attrs4, d *xdr.Decoder) { a.conf.LinkMax = d.Uint32() },
	nfs4.AttrMaxName:     func(a *attrs4, d *xdr.Decoder) { a.conf.NameMax = d.Uint32() },
	nfs4.AttrNoTrunc:     func(a *attrs4, d *xdr.Decoder) { a.conf.NoTrunc = d.Bool() },
	nfs4.AttrChownRestr:  func(a *attrs4, d *xdr.Decoder) { a.conf.ChownRestricted = d.Bool() },
	nfs4.AttrCaseInsens:  func(a *attrs4, d *xdr.Decoder) { a.conf.CaseInsensitive = d.Bool() },
	nfs4.AttrCasePreserv: func(a *attrs4, d *xdr.Decoder) { a.conf.CasePreserving = d.Bool() },
}

func (a *attrs4) property(d *xdr.Decoder, bit uint32) {
	if d.Bool() {
		a.info.Properties |= bit
	}
}

// encodeSetAttr4 appends a fattr4 of what s changes; nil changes nothing.
func encodeSetAttr4(e *xdr.Encoder, s *blockstore.SetAttr) {
	if s == nil {
		s = &blockstore.SetAttr{}
	}
	var set nfs4.Bitmap
	var v xdr.Encoder
	add := func(n int) { set[n/32] |= 1 << (n % 32) }
	// In the order of the attributes' numbers.
	if s.Size != nil {
		add(nfs4.AttrSize)
		v.Uint64(*s.Size)
	}
	if s.Mode != nil {
		add(nfs4.AttrMode)
		v.Uint32(*s.Mode)
	}
	if s.UID != nil {
		add(nfs4.AttrOwner)
		nfs4.EncodeID(&v, *s.UID)
	}
	if s.GID != nil {
		add(nfs4.AttrOwnerGroup)
		nfs4.EncodeID(&v, *s.GID)
	}
	if s.AtimeHow != blockstore.TimeKeep {
		add(nfs4.AttrTimeAccSet)
		encodeSetTime4(&v, s.AtimeHow, s.Atime)
	}
	if s.MtimeHow != blockstore.TimeKeep {
		add(nfs4.AttrTimeModSet)
		encodeSetTime4(&v, s.MtimeHow, s.Mtime)
	}
	if set == (nfs4.Bitmap{}) {
		e.Uint32(1) // a server could take a mask without any words for a missing mask
		e.Uint32(0)
	} else {
		set.Encode(e)
	}
	e.Opaque(v.B)
}

// encodeSetTime4 appends a settime4.
func encodeSetTime4(e *xdr.Encoder, how blockstore.TimeSet, t time.Time) {
	const server, client = 0, 1
	if how == blockstore.TimeServer {
		e.Uint32(server)
		return
	}
	e.Uint32(client)
	nfs4.EncodeTime(e, t)
}

// nobody is the UID and GID of objects whose owner has a name that this host cannot resolve.
const nobody = 65534

// idNames caches the users or groups of owner strings. Most servers send numbers in decimal to
// clients that use AUTH_SYS (RFC 8881 section 5.9). Others send names with a domain.
type idNames struct {
	mu     sync.Mutex
	known  map[string]uint32
	lookup func(name string) string // empty if there is none
}

// namesMax bounds how many names are remembered.
const namesMax = 4096

var ids = struct{ users, groups idNames }{
	idNames{lookup: func(name string) string {
		if u, err := user.Lookup(name); err == nil {
			return u.Uid
		}
		return ""
	}},
	idNames{lookup: func(name string) string {
		if g, err := user.LookupGroup(name); err == nil {
			return g.Gid
		}
		return ""
	}},
}

func (n *idNames) id(owner []byte) uint32 {
	if id, ok := nfs4.DecodeID(owner); ok {
		return id
	}
	name, _, _ := strings.Cut(string(owner), "@")
	n.mu.Lock()
	defer n.mu.Unlock()
	if id, ok := n.known[name]; ok {
		return id
	}
	id := uint32(nobody)
	if v, err := strconv.ParseUint(n.lookup(name), 10, 32); err == nil {
		id = uint32(v)
	}
	if n.known == nil || len(n.known) >= namesMax {
		n.known = make(map[string]uint32)
	}
	n.known[name] = id
	return id
}
