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
	"github.com/rstored/rstored/nfs/nfs3"
	"github.com/rstored/rstored/nfs/nfs4"
	"github.com/rstored/rstored/rpcrdma/xdr"
)

// fattrMax bounds a fattr4 from a server, in bytes.
const fattrMax = 8 << 10

// ofObject are the attributes that make an nfs3.Attr.
var ofObject = nfs4.BitmapOf(nfs4.AttrType, nfs4.AttrSize, nfs4.AttrFSID, nfs4.AttrFileID, nfs4.AttrMode, nfs4.AttrNumLinks,
	nfs4.AttrOwner, nfs4.AttrOwnerGroup, nfs4.AttrRawDev, nfs4.AttrSpaceUsed, nfs4.AttrTimeAccess, nfs4.AttrTimeMetadata,
	nfs4.AttrTimeModify)

// ofEntry are those that are asked for of the entries of a directory.
var ofEntry = func() nfs4.Bitmap {
	b := nfs4.BitmapOf(nfs4.AttrRdattrError, nfs4.AttrFileHandle)
	ofObject.Each(func(n int) { b[n/32] |= 1 << (n % 32) })
	return b
}()

// attrs4 are the attributes of a fattr4 that mean something to the client.
type attrs4 struct {
	has   nfs4.Bitmap
	attr  nfs3.Attr
	fsid  [2]uint64
	fh    Handle
	fault nfs.Status // rdattr_error
	lease uint32     // seconds
	stat  blockstore.Stat
	info  Info
	conf  PathConf
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
		d.Fail(errResults) // nobody asked for those
		return
	}
	a.has = has
	has.Each(func(n int) {
		if vals.Err() == nil && !a.value(&vals, n) {
			vals.Fail(errResults)
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

// value reads one attribute. It reports false for one that it does not know.
func (a *attrs4) value(d *xdr.Decoder, n int) bool {
	o := &a.attr
	switch n {
	case nfs4.AttrType:
		o.Type = blockstore.FileType(d.Uint32())
	case nfs4.AttrSize:
		o.Size = d.Uint64()
	case nfs4.AttrFSID:
		a.fsid = [2]uint64{d.Uint64(), d.Uint64()}
	case nfs4.AttrLeaseTime:
		a.lease = d.Uint32()
	case nfs4.AttrRdattrError:
		a.fault = nfs.Status(d.Uint32())
	case nfs4.AttrFileHandle:
		a.fh = copyHandle(d.Opaque(nfs4.FHMax))
	case nfs4.AttrFileID:
		o.FileID = d.Uint64()
	case nfs4.AttrMode:
		o.Mode = d.Uint32()
	case nfs4.AttrNumLinks:
		o.NLink = d.Uint32()
	case nfs4.AttrOwner:
		o.UID = ids.users.id(d.Opaque(nfs4.OwnerMax))
	case nfs4.AttrOwnerGroup:
		o.GID = ids.groups.id(d.Opaque(nfs4.OwnerMax))
	case nfs4.AttrRawDev:
		o.Major, o.Minor = d.Uint32(), d.Uint32()
	case nfs4.AttrSpaceUsed:
		o.Used = d.Uint64()
	case nfs4.AttrTimeAccess:
		o.Atime = nfs4.DecodeTime(d)
	case nfs4.AttrTimeMetadata:
		o.Ctime = nfs4.DecodeTime(d)
	case nfs4.AttrTimeModify:
		o.Mtime = nfs4.DecodeTime(d)
	default:
		return a.ofFileSystem(d, n)
	}
	return true
}

// ofFileSystem is value for what is the same for all objects of a file system.
func (a *attrs4) ofFileSystem(d *xdr.Decoder, n int) bool {
	switch n {
	case nfs4.AttrFilesAvail:
		a.stat.AvailFiles = d.Uint64()
	case nfs4.AttrFilesFree:
		a.stat.FreeFiles = d.Uint64()
	case nfs4.AttrFilesTotal:
		a.stat.TotalFiles = d.Uint64()
	case nfs4.AttrSpaceAvail:
		a.stat.AvailBytes = d.Uint64()
	case nfs4.AttrSpaceFree:
		a.stat.FreeBytes = d.Uint64()
	case nfs4.AttrSpaceTotal:
		a.stat.TotalBytes = d.Uint64()
	case nfs4.AttrMaxFileSize:
		a.info.FileMax = d.Uint64()
	case nfs4.AttrMaxRead:
		a.info.ReadMax = uint32(min(d.Uint64(), 1<<32-1))
	case nfs4.AttrMaxWrite:
		a.info.WriteMax = uint32(min(d.Uint64(), 1<<32-1))
	case nfs4.AttrTimeDelta:
		s, ns := d.Uint64(), d.Uint32()
		a.info.TimeDelta = time.Duration(min(s, 1<<32))*time.Second + time.Duration(ns)
	case nfs4.AttrLinkSupport:
		a.property(d, nfs3.PropLink)
	case nfs4.AttrSymlinkSupp:
		a.property(d, nfs3.PropSymlink)
	case nfs4.AttrHomogeneous:
		a.property(d, nfs3.PropHomogeneous)
	case nfs4.AttrCanSetTime:
		a.property(d, nfs3.PropCanSetTime)
	case nfs4.AttrMaxLink:
		a.conf.LinkMax = d.Uint32()
	case nfs4.AttrMaxName:
		a.conf.NameMax = d.Uint32()
	case nfs4.AttrNoTrunc:
		a.conf.NoTrunc = d.Bool()
	case nfs4.AttrChownRestr:
		a.conf.ChownRestricted = d.Bool()
	case nfs4.AttrCaseInsens:
		a.conf.CaseInsensitive = d.Bool()
	case nfs4.AttrCasePreserv:
		a.conf.CasePreserving = d.Bool()
	default:
		return false
	}
	return true
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
		e.Uint32(1) // a mask without any words passes for one that is missing
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

// nobody is who an owner is taken for whose name is not known here.
const nobody = 65534

// idNames remembers what owner strings that are names stand for. Servers send numbers
// to clients that prove nothing of who they are (RFC 8881 section 5.9); some do not.
type idNames struct {
	mu     sync.Mutex
	known  map[string]uint32
	lookup func(name string) (string, error)
}

// namesMax bounds how many names are remembered.
const namesMax = 4096

var ids = struct{ users, groups idNames }{
	idNames{lookup: func(name string) (string, error) {
		u, err := user.Lookup(name)
		if err != nil {
			return "", err
		}
		return u.Uid, nil
	}},
	idNames{lookup: func(name string) (string, error) {
		g, err := user.LookupGroup(name)
		if err != nil {
			return "", err
		}
		return g.Gid, nil
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
	if s, err := n.lookup(name); err == nil {
		if v, err := strconv.ParseUint(s, 10, 32); err == nil {
			id = uint32(v)
		}
	}
	if n.known == nil || len(n.known) >= namesMax {
		n.known = make(map[string]uint32)
	}
	n.known[name] = id
	return id
}
