package nfs3

import (
	"bytes"
	"encoding/hex"
	"slices"
	"testing"

	"github.com/rstored/rstored/blockstore"
	"github.com/rstored/rstored/blockstore/memfs"
	"github.com/rstored/rstored/nfs"
	"github.com/rstored/rstored/nfs/lock"
	"github.com/rstored/rstored/rpcrdma/rpc"
	"github.com/rstored/rstored/rpcrdma/xdr"
)

// someACL names a user and a group.
var someACL = blockstore.ACL{
	{Tag: blockstore.ACLUserObj, Perm: 6},
	{Tag: blockstore.ACLUser, Perm: 6, ID: 1000},
	{Tag: blockstore.ACLUser, Perm: 4, ID: 1001},
	{Tag: blockstore.ACLGroupObj, Perm: 4},
	{Tag: blockstore.ACLGroup, Perm: 4, ID: 2000},
	{Tag: blockstore.ACLMask, Perm: 6},
	{Tag: blockstore.ACLOther},
}

// aclResult is what GETACL answered.
type aclResult struct {
	st              nfs.Status
	attr            *Attr
	mask            uint32
	access, inherit WireACL
}

func (r *rig) getACL(h []byte, mask uint32) (got aclResult) {
	r.t.Helper()
	d := r.call(ACLProgram, ProcGetACL, fhArgs(h, mask))
	got.st, got.attr = nfs.Status(d.Uint32()), DecodePostOp(d)
	if got.st == nfs.OK {
		got.mask, got.access, got.inherit = d.Uint32(), DecodeACL(d), DecodeACL(d)
	}
	r.end("GETACL", d)
	return got
}

// aclArgs are of a SETACL.
func aclArgs(h []byte, mask uint32, access, inherit WireACL) func(*xdr.Encoder) {
	return func(e *xdr.Encoder) {
		fhArgs(h, mask)(e)
		EncodeACL(e, access, false)
		EncodeACL(e, inherit, true)
	}
}

func (r *rig) setACL(h []byte, mask uint32, access, inherit WireACL) nfs.Status {
	r.t.Helper()
	d := r.call(ACLProgram, ProcSetACL, aclArgs(h, mask, access, inherit))
	st, a := nfs.Status(d.Uint32()), DecodePostOp(d)
	r.end("SETACL", d)
	if st == nfs.OK && a == nil {
		r.t.Error("SETACL without attributes")
	}
	return st
}

func wire(l blockstore.ACL) WireACL { return ACLToWire(l, 0, 0, true) }

// TestACLs: what is set is read, the mode follows, and what a mode says has a mask on the wire.
func TestACLs(t *testing.T) {
	r := newRig(t)
	r.call(ACLProgram, ProcACLNull, nil)
	root := r.root()
	fh := r.file(root, "f", "x")
	dir, _ := r.make(ProcMkdir, dirArgs(root, "d", sattr(&blockstore.SetAttr{})))

	got := r.getACL(fh, maskAll)
	plain := blockstore.ACLOfMode(0o644)
	if got.st != nfs.OK || got.attr == nil || got.mask != maskAll || got.access.Count != 4 || got.inherit.Count != 0 ||
		!slices.Equal(got.access.POSIX(), plain) {
		t.Errorf("of a mode: %+v", got)
	}
	for i, tag := range []blockstore.ACLTag{
		blockstore.ACLUserObj, blockstore.ACLGroupObj, blockstore.ACLMask, blockstore.ACLOther,
	} {
		if got.access.Entries[i].Tag != tag {
			t.Errorf("entry %d is %v", i, got.access.Entries[i])
		}
	}
	if st := r.setACL(fh, MaskACL, wire(someACL), WireACL{}); st != nfs.OK {
		t.Fatal(st)
	}
	if got = r.getACL(fh, MaskACL); !slices.Equal(got.access.POSIX(), someACL) || got.attr.Mode&0o777 != 0o660 {
		t.Errorf("%+v", got)
	}
	if got = r.getACL(fh, MaskACLCount); got.access.Count != uint32(len(someACL)) || len(got.access.Entries) > 0 {
		t.Errorf("the number: %+v", got)
	}
	// A client may send entries in any order.
	shuffled := slices.Clone(someACL)
	slices.Reverse(shuffled)
	if st := r.setACL(dir, MaskACL|MaskDefault, wire(someACL), wire(shuffled)); st != nfs.OK {
		t.Fatal(st)
	}
	if got = r.getACL(dir, MaskACL|MaskDefault); !slices.Equal(got.inherit.POSIX(), someACL) ||
		!slices.Equal(got.access.POSIX(), someACL) {
		t.Errorf("of a directory: %+v", got)
	}
	child := r.file(dir, "child", "")
	if got = r.getACL(child, MaskACL); len(got.access.POSIX()) != len(someACL) {
		t.Errorf("inherited: %+v", got)
	}
	// One without entries removes the default ACL. The mask says which ACL is meant.
	if st := r.setACL(dir, MaskDefault, wire(plain), WireACL{}); st != nfs.OK {
		t.Fatal(st)
	}
	if got = r.getACL(dir, MaskACL|MaskDefault); got.inherit.Count != 0 || !slices.Equal(got.access.POSIX(), someACL) {
		t.Errorf("default removed: %+v", got)
	}
	if st := r.setACL(dir, MaskACL, wire(plain), WireACL{}); st != nfs.OK {
		t.Fatal(st)
	}
	if got = r.getACL(dir, MaskACL); !slices.Equal(got.access.POSIX(), plain) || got.attr.Mode&0o777 != 0o644 {
		t.Errorf("to a mode: %+v", got)
	}
}

func TestACLErrors(t *testing.T) {
	r := newRig(t)
	root := r.root()
	fh := r.file(root, "f", "x")
	if got := r.getACL(fh, 0x10); got.st != nfs.ErrInval {
		t.Errorf("unknown mask: %v", got.st)
	}
	if got := r.getACL([]byte("no handle"), MaskACL); got.st != nfs.ErrBadHandle || got.attr != nil {
		t.Errorf("bad handle: %+v", got)
	}
	twice := append(slices.Clone(someACL[:1]), someACL...)
	if st := r.setACL(fh, MaskACL, wire(twice), WireACL{}); st != nfs.ErrInval {
		t.Errorf("two owners: %v", st)
	}
	if st := r.setACL(fh, MaskDefault, WireACL{}, wire(someACL)); st != nfs.ErrAcces {
		t.Errorf("default ACL of a file: %v", st)
	}
	r.peer = reader
	if st := r.setACL(fh, MaskACL, wire(someACL), WireACL{}); st != nfs.ErrROFS {
		t.Errorf("read-only: %v", st)
	}
	r.peer = stranger
	if got := r.getACL(fh, MaskACL); got.st != nfs.ErrAcces {
		t.Errorf("stranger: %v", got.st)
	}
	r.peer = friend
	for name, args := range map[string]func(*xdr.Encoder){
		"unknown mask": aclArgs(fh, 0x10, WireACL{}, WireACL{}),
		"no entries":   aclArgs(fh, MaskACL, WireACL{Count: 3}, WireACL{}),
		"a length that is not the count": aclArgs(fh, MaskACL,
			WireACL{Count: 9, Entries: someACL}, WireACL{}),
		"too many": aclArgs(fh, MaskACL, wire(make(blockstore.ACL, ACLMax+1)), WireACL{}),
		"unknown tag": aclArgs(fh, MaskACL,
			WireACL{1, blockstore.ACL{{Tag: 3}}}, WireACL{}),
		"nobody": aclArgs(fh, MaskACL,
			WireACL{1, blockstore.ACL{{Tag: blockstore.ACLUser, ID: aclNobody}}}, WireACL{}),
		"permissions": aclArgs(fh, MaskACL,
			WireACL{1, blockstore.ACL{{Tag: blockstore.ACLOther, Perm: 8}}}, WireACL{}),
		"half":            fhArgs(fh, MaskACL, 1, 1),
		"4 billion of it": fhArgs(fh, MaskACL, ^uint32(0), ^uint32(0)),
	} {
		if _, st := r.try(ACLProgram, ProcSetACL, args); st != rpc.GarbageArgs {
			t.Errorf("%s: %v", name, st)
		}
	}
}

// plainStore hides the optional interfaces of a store.
type plainStore struct{ blockstore.FS }

func (p plainStore) Limits() blockstore.Limits {
	l := p.FS.Limits()
	l.ACLs = false
	return l
}

// TestNoACLs: a store without ACLs has those of modes, and none can be set.
func TestNoACLs(t *testing.T) {
	r := newRig(t)
	store := plainStore{memfs.New(memfs.Options{})}
	if err := r.table.Replace([]*nfs.Export{{ID: 1, Pseudo: "/one", FS: store}}); err != nil {
		t.Fatal(err)
	}
	h, err := store.Root()
	if err != nil {
		t.Fatal(err)
	}
	root := r.codec.Append(nil, 1, &h)
	if got := r.getACL(root, maskAll); got.st != nfs.OK || got.access.Count != 4 || got.inherit.Count != 0 {
		t.Errorf("%+v", got)
	}
	if st := r.setACL(root, MaskACL, wire(someACL), WireACL{}); st != nfs.ErrNotSupp {
		t.Error(st)
	}
}

// TestACLDelegated: SETACL recalls delegations, GETACL does not.
func TestACLDelegated(t *testing.T) {
	r := newRig(t)
	fh := r.file(r.root(), "f", "x")
	_, h, err := r.codec.Parse(fh)
	if err != nil {
		t.Fatal(err)
	}
	g := &delegated{t: t, held: make(map[lock.File]int)}
	g.all = []lock.File{{Export: 1, Handle: h}}
	g.write = g.all
	r.srv = rpc.NewServer(rpc.ServerConfig{
		Programs: Programs(nfs.Config{Exports: r.table, Codec: r.codec, Counters: &r.count, Delegations: g}), Workers: 1,
	})
	t.Cleanup(r.srv.Close)
	if got := r.getACL(fh, MaskACL); got.st != nfs.OK {
		t.Errorf("GETACL: %v", got.st)
	}
	if st := r.setACL(fh, MaskACL, wire(someACL), WireACL{}); st != nfs.ErrJukebox {
		t.Errorf("SETACL: %v", st)
	}
	g.all, g.write = nil, nil
	st := r.setACL(fh, MaskACL, wire(someACL), WireACL{})
	if st != nfs.OK || g.held[lock.File{Export: 1, Handle: h}] != 0 {
		t.Errorf("SETACL: %v, %v", st, g.held)
	}
}

func FuzzACL(f *testing.F) {
	r := newRig(f)
	fh := r.file(r.root(), "f", "data")
	for _, mask := range []uint32{0, MaskACL, maskAll} {
		var e xdr.Encoder
		aclArgs(fh, mask, wire(someACL), wire(someACL))(&e)
		f.Add(e.B)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		r.t = t
		for proc := range uint32(ProcSetACL + 1) {
			switch d, st := r.try(ACLProgram, proc, func(e *xdr.Encoder) { e.B = append(e.B, b...) }); {
			case st == rpc.RPCSuccess && d.Remaining()%4 == 0, st == rpc.GarbageArgs:
			default:
				t.Errorf("procedure %d: accept status %d, %d bytes", proc, st, d.Remaining())
			}
		}
		d := xdr.NewDecoder(b)
		if w := DecodeACL(&d); d.Err() == nil {
			var e xdr.Encoder
			EncodeACL(&e, w, false)
			again := xdr.NewDecoder(e.B)
			if v := DecodeACL(&again); again.Err() != nil || v.Count != w.Count || !slices.Equal(v.Entries, w.Entries) {
				t.Errorf("%v becomes %v", w, v)
			}
			if l := w.POSIX(); l.Check() == nil && !slices.Equal(ACLToWire(l, 1, 2, true).POSIX(), l) {
				t.Errorf("%v becomes %v", l, ACLToWire(l, 1, 2, true).POSIX())
			}
		}
	})
}

// TestKernelACL has an ACL in the layout of nfs_stream_encode_acl in fs/nfs_common/nfsacl.c,
// written by hand: that of a file of root with mode 644 after `setfacl -m u:1000:rw`.
func TestKernelACL(t *testing.T) {
	b, err := hex.DecodeString("00000005" + "00000005" +
		"000000010000000000000006" + "00000002000003e800000006" + "000000040000000000000004" +
		"000000100000000000000006" + "000000200000000000000004")
	if err != nil {
		t.Fatal(err)
	}
	d := xdr.NewDecoder(b)
	w := DecodeACL(&d)
	want := blockstore.ACL{
		{Tag: blockstore.ACLUserObj, Perm: 6},
		{Tag: blockstore.ACLUser, Perm: 6, ID: 1000},
		{Tag: blockstore.ACLGroupObj, Perm: 4},
		{Tag: blockstore.ACLMask, Perm: 6},
		{Tag: blockstore.ACLOther, Perm: 4},
	}
	if d.Err() != nil || d.Remaining() != 0 || !slices.Equal(w.POSIX(), want) {
		t.Fatalf("%v %+v", d.Err(), w)
	}
	var e xdr.Encoder
	EncodeACL(&e, ACLToWire(want, 0, 0, true), false)
	if !bytes.Equal(e.B, b) {
		t.Errorf("%x", e.B)
	}
}
