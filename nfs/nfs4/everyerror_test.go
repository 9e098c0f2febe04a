package nfs4

import (
	"testing"

	"github.com/rstored/rstored/blockstore"
	"github.com/rstored/rstored/blockstore/fault"
	"github.com/rstored/rstored/nfs/state"
)

// world is a rig with one of everything that an operation can be about.
type world struct {
	*rig
	x, y   *sess
	z      *sess // see delegated
	faults *fault.FS

	fhs map[string][]byte // by kind
	ids map[string]state.Stateid
}

func newWorld(t testing.TB) *world {
	w := &world{fhs: make(map[string][]byte), ids: make(map[string]state.Stateid)}
	w.rig = newRigOver(t, func(fs blockstore.FS) blockstore.FS {
		w.faults = fault.New(fs, 1)
		return w.faults
	})
	w.partners.off.Store(false)
	w.x = w.session(2, "one")
	x := w.x
	dir := x.handle("one")
	w.fhs["dir"] = dir
	w.fhs["file"], w.ids["old"] = x.make(dir, "file")
	_, w.ids["open"] = x.make(dir, "file")
	w.fhs["other"], w.ids["of another file"] = x.make(dir, "other")
	w.fhs["gone"], _ = x.make(dir, "gone")
	x.do(op(OpPutFH, dir), op(OpRemove, "gone")).ok(OpPutFH).ok(OpRemove)
	x.do(op(OpPutFH, w.fhs["file"]), op(OpWrite, w.ids["open"], uint64(0), uint32(0), "some data"),
		op(OpSetXattr, uint32(0), "name", "value")).ok(OpPutFH).ok(OpWrite)
	for kind, how := range map[string]args{
		"link": part(uint32(5), "file"), "fifo": part(uint32(7)),
		"sub": part(uint32(2)),
	} {
		x.do(op(OpPutFH, dir), op(OpCreate, how, kind, attrs(Bitmap{}))).ok(OpPutFH).ok(OpCreate)
		w.fhs[kind] = x.handle("one", kind)
	}
	sub := w.fhs["sub"]
	x.make(sub, "inside")
	w.fhs["nested"] = x.handle("one", "nested")
	w.fhs["pseudo"] = x.handle("deep")
	w.peer = reader // read-only by its rule
	w.fhs["root"] = x.handle()
	w.peer = friend
	future, stale := w.ids["open"], w.ids["open"]
	future.Seq += 9
	stale.Other[0] ^= 1
	w.ids["to come"], w.ids["of another start"] = future, stale
	w.ids["anonymous"], w.ids["bypass"], w.ids["invalid"] = state.Anonymous, state.Bypass, state.Invalid
	w.ids["of nothing"] = state.Stateid{Seq: 1, Other: [12]byte{0, 0, 0, 7, 1}}
	only := func(access uint32, owner string) state.Stateid {
		id, _, _ := x.do(op(OpPutFH, dir), openOp(access, 0, owner, "file")).ok(OpPutFH).ok(OpOpen).opened()
		return id
	}
	w.ids["reads"], w.ids["writes"] = only(1, "reader"), only(2, "writer")
	locked := x.do(op(OpPutFH, w.fhs["file"]), op(OpLock, LockWrite, false, uint64(100), uint64(1), true, uint32(0),
		w.ids["open"], uint32(0), uint64(0), "locker")).ok(OpPutFH).ok(OpLock)
	w.ids["lock"] = DecodeStateid(locked.Decoder)
	w.y = w.session(2, "two")
	_, w.ids["of another client"] = w.y.make(dir, "other")
	return w
}

// given is what an operation is made of.
type given struct {
	id        state.Stateid
	name, two string
}

// subject4 is an operation to be made, with what it is made of where all is well.
type subject4 struct {
	op         uint32
	cur, saved string // kinds of file handles, or ""
	id         string
	name       string
	make       func(g given) args
}

var subjects = []subject4{
	{OpAccess, "file", "", "", "", func(given) args { return op(OpAccess, uint32(63)) }},
	{OpClose, "file", "", "open", "", func(g given) args { return op(OpClose, uint32(0), g.id) }},
	{OpCommit, "file", "", "", "", func(given) args { return op(OpCommit, uint64(0), uint32(0)) }},
	{OpCreate, "dir", "", "", "new", func(g given) args {
		return op(OpCreate, uint32(2), g.name,
			attrs(BitmapOf(AttrMode), uint32(0o755)))
	}},
	{OpDelegPurge, "", "", "", "", func(given) args { return op(OpDelegPurge, uint64(1)) }},
	{OpDelegReturn, "file", "", "open", "", func(g given) args { return op(OpDelegReturn, g.id) }},
	{OpGetAttr, "file", "", "", "", func(given) args { return op(OpGetAttr, supportedBy[2].without(writeOnly)) }},
	{OpGetFH, "file", "", "", "", func(given) args { return op(OpGetFH) }},
	{OpLink, "dir", "file", "", "new", func(g given) args { return op(OpLink, g.name) }},
	{OpLock, "file", "", "open", "", func(g given) args {
		return op(OpLock, LockWrite, false, uint64(1), uint64(2), true, uint32(0), g.id, uint32(0), uint64(0), "o")
	}},
	{OpLockT, "file", "", "", "", func(given) args {
		return op(OpLockT, LockWrite, uint64(1), uint64(2), uint64(0),
			"o")
	}},
	{OpLockU, "file", "", "lock", "", func(g given) args {
		return op(OpLockU, LockWrite, uint32(0), g.id, uint64(1),
			uint64(2))
	}},
	{OpLookup, "dir", "", "", "file", func(g given) args { return op(OpLookup, g.name) }},
	{OpLookupP, "sub", "", "", "", func(given) args { return op(OpLookupP) }},
	{OpNVerify, "file", "", "", "", func(given) args { return op(OpNVerify, attrs(BitmapOf(AttrSize), uint64(7))) }},
	{OpOpen, "dir", "", "", "new", func(g given) args {
		return openCreateOp(3, "o", g.name, CreateUnchecked, attrs(BitmapOf(AttrMode), uint32(0o644)))
	}},
	{OpOpenAttr, "file", "", "", "", func(given) args { return op(OpOpenAttr, false) }},
	{OpOpenConfirm, "file", "", "", "", func(given) args { return op(OpOpenConfirm, state.Anonymous, uint32(0)) }},
	{
		OpOpenDowngrade, "file", "", "open", "",
		func(g given) args { return op(OpOpenDowngrade, g.id, uint32(0), uint32(3), uint32(0)) },
	},
	{OpPutFH, "", "", "", "", func(given) args { return op(OpPutFH, []byte("none")) }},
	{OpPutPubFH, "", "", "", "", func(given) args { return op(OpPutPubFH) }},
	{OpPutRootFH, "", "", "", "", func(given) args { return op(OpPutRootFH) }},
	{OpRead, "file", "", "open", "", func(g given) args { return op(OpRead, g.id, uint64(0), uint32(9)) }},
	{OpReadDir, "dir", "", "", "", func(given) args {
		return op(OpReadDir, uint64(0), [8]byte{}, uint32(0), uint32(4096), BitmapOf(AttrFileID, AttrMode, AttrFilesFree))
	}},
	{OpReadLink, "link", "", "", "", func(given) args { return op(OpReadLink) }},
	{OpRemove, "dir", "", "", "fifo", func(g given) args { return op(OpRemove, g.name) }},
	{OpRename, "dir", "dir", "", "fifo", func(g given) args { return op(OpRename, g.name, cmpOr(g.two, "new")) }},
	{OpRenew, "", "", "", "", func(given) args { return op(OpRenew, uint64(1)) }},
	{OpRestoreFH, "", "dir", "", "", func(given) args { return op(OpRestoreFH) }},
	{OpSaveFH, "dir", "", "", "", func(given) args { return op(OpSaveFH) }},
	{OpSecInfo, "dir", "", "", "file", func(g given) args { return op(OpSecInfo, g.name) }},
	{OpSetAttr, "file", "", "open", "", func(g given) args {
		return op(OpSetAttr, g.id, attrs(BitmapOf(AttrSize, AttrMode), uint64(5), uint32(0o640)))
	}},
	{OpSetClientID, "", "", "", "", func(given) args { return op(OpSetClientID) }},
	{OpSetClientIDConfirm, "", "", "", "", func(given) args { return op(OpSetClientIDConfirm, uint64(1), [8]byte{}) }},
	{OpVerify, "file", "", "", "", func(given) args { return op(OpVerify, attrs(BitmapOf(AttrSize), uint64(9))) }},
	{OpWrite, "file", "", "open", "", func(g given) args { return op(OpWrite, g.id, uint64(0), uint32(0), "data") }},
	{OpReleaseLockOwner, "", "", "", "", func(given) args { return op(OpReleaseLockOwner, uint64(0), "o") }},
	{OpBackchannelCtl, "", "", "", "", func(given) args { return op(OpBackchannelCtl, uint32(1), uint32(1), uint32(0)) }},
	{OpFreeStateID, "", "", "lock", "", func(g given) args { return op(OpFreeStateID, g.id) }},
	{OpGetDirDelegation, "dir", "", "", "", func(given) args {
		return op(OpGetDirDelegation, false, Bitmap{}, uint64(0), uint32(0), uint64(0), uint32(0), Bitmap{}, Bitmap{})
	}},
	{OpGetDeviceInfo, "", "", "", "", func(given) args {
		return op(OpGetDeviceInfo, state.SessionID{}, uint32(1),
			uint32(0), Bitmap{})
	}},
	{
		OpGetDeviceList, "dir", "", "", "",
		func(given) args { return op(OpGetDeviceList, uint32(1), uint32(1), uint64(0), [8]byte{}) },
	},
	{OpLayoutCommit, "file", "", "", "", func(given) args {
		return op(OpLayoutCommit, uint64(0), uint64(1), false, state.Anonymous, false, false, uint32(1), "")
	}},
	{OpLayoutGet, "file", "", "", "", func(given) args {
		return op(OpLayoutGet, false, uint32(1), uint32(1), uint64(0), uint64(1), uint64(1), state.Anonymous, uint32(9))
	}},
	{
		OpLayoutReturn, "", "", "", "",
		func(given) args { return op(OpLayoutReturn, false, uint32(1), uint32(1), uint32(3)) },
	},
	{OpSecInfoNoName, "sub", "", "", "", func(given) args { return op(OpSecInfoNoName, uint32(1)) }},
	{OpSetSSV, "", "", "", "", func(given) args { return op(OpSetSSV, "a", "b") }},
	{OpTestStateID, "", "", "open", "", func(g given) args { return op(OpTestStateID, uint32(1), g.id) }},
	{OpWantDelegation, "file", "", "", "", func(given) args {
		return op(OpWantDelegation, uint32(wantRead),
			uint32(ClaimFH))
	}},
	{OpReclaimComplete, "", "", "", "", func(given) args { return op(OpReclaimComplete, false) }},
	{OpAllocate, "file", "", "open", "", func(g given) args { return op(OpAllocate, g.id, uint64(0), uint64(10)) }},
	{OpCopy, "file", "other", "open", "", func(g given) args {
		return op(OpCopy, state.Anonymous, g.id, uint64(0), uint64(0), uint64(0), true, true, uint32(0))
	}},
	{OpCopyNotify, "file", "", "open", "", func(g given) args {
		return op(OpCopyNotify, g.id, address("tcp", partner+".8.1"))
	}},
	{OpDeallocate, "file", "", "open", "", func(g given) args { return op(OpDeallocate, g.id, uint64(0), uint64(10)) }},
	{OpIOAdvise, "file", "", "open", "", func(g given) args {
		return op(OpIOAdvise, g.id, uint64(0), uint64(10),
			BitmapOf(2))
	}},
	{
		OpLayoutError, "file", "", "", "",
		func(given) args { return op(OpLayoutError, uint64(0), uint64(1), state.Anonymous, uint32(0)) },
	},
	{OpLayoutStats, "file", "", "", "", func(given) args { return op(OpLayoutStats) }},
	{OpOffloadCancel, "file", "", "open", "", func(g given) args { return op(OpOffloadCancel, g.id) }},
	{OpOffloadStatus, "file", "", "open", "", func(g given) args { return op(OpOffloadStatus, g.id) }},
	{OpReadPlus, "file", "", "open", "", func(g given) args { return op(OpReadPlus, g.id, uint64(0), uint32(9)) }},
	{OpSeek, "file", "", "open", "", func(g given) args { return op(OpSeek, g.id, uint64(0), uint32(1)) }},
	{OpWriteSame, "file", "", "open", "", func(g given) args {
		return writeSameOp(g.id, 0, dataBlocks{size: 4, count: 2, numAt: noNumber, pattern: []byte("same")})
	}},
	{
		OpClone, "file", "other", "open", "",
		func(g given) args { return op(OpClone, state.Anonymous, g.id, uint64(0), uint64(0), uint64(0)) },
	},
	{OpGetXattr, "file", "", "", "name", func(g given) args { return op(OpGetXattr, g.name) }},
	{OpSetXattr, "file", "", "", "name", func(g given) args { return op(OpSetXattr, uint32(0), g.name, "value") }},
	{OpListXattrs, "file", "", "", "", func(given) args { return op(OpListXattrs, uint64(0), uint32(1000)) }},
	{OpRemoveXattr, "file", "", "", "name", func(g given) args { return op(OpRemoveXattr, g.name) }},
}

func cmpOr(a, b string) string {
	if a != "" {
		return a
	}
	return b
}

// ops are the operations that make a subject, of these kinds.
func (w *world) ops(s *subject4, cur, saved string, g given) (list []args) {
	if saved != "" {
		list = append(list, op(OpPutFH, w.fhs[saved]), op(OpSaveFH))
	}
	if cur != "" {
		list = append(list, op(OpPutFH, w.fhs[cur]))
	}
	return append(list, s.make(g))
}

func (w *world) given(s *subject4) given { return given{id: w.ids[s.id], name: s.name} }
