package nfs4

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rstored/rstored/blockstore"
	"github.com/rstored/rstored/blockstore/fault"
	"github.com/rstored/rstored/nfs"
	"github.com/rstored/rstored/nfs/lock"
	"github.com/rstored/rstored/nfs/state"
	"github.com/rstored/rstored/rpcrdma/rpc"
	"github.com/rstored/rstored/rpcrdma/xdr"
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
	{OpCopyNotify, "file", "", "open", "", func(g given) args { return op(OpCopyNotify, g.id, uint32(1), "there") }},
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
	{OpWriteSame, "file", "", "open", "", func(g given) args { return op(OpWriteSame, g.id) }},
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

// storeErrors are the errors of stores.
var storeErrors = []error{
	blockstore.ErrPerm, blockstore.ErrNotExist, blockstore.ErrIO, blockstore.ErrNXIO, blockstore.ErrAccess,
	blockstore.ErrExist, blockstore.ErrXDev,
	blockstore.ErrNotDir, blockstore.ErrIsDir, blockstore.ErrInval, blockstore.ErrFBig, blockstore.ErrNoSpace,
	blockstore.ErrROFS, blockstore.ErrMLink,
	blockstore.ErrNameTooLong, blockstore.ErrNotEmpty, blockstore.ErrQuota, blockstore.ErrStale, blockstore.ErrNotSupp,
	blockstore.ErrJukebox,
	blockstore.ErrNoXattr, blockstore.ErrXattrTooBig, blockstore.ErrBadCookie,
}

// vary makes a subject in all ways that there are for all of them.
func vary(t *testing.T, s *subject4, each func(what string, f func(w *world))) {
	each("as it should be", func(w *world) { w.x.do(w.ops(s, s.cur, s.saved, w.given(s))...) })
	for _, kind := range []string{"dir", "file", "link", "fifo", "gone", "nested", "pseudo", "root", "sub"} {
		if s.cur != "" {
			each("the file handle of "+kind, func(w *world) { w.x.do(w.ops(s, kind, s.saved, w.given(s))...) })
			each("anonymous, the file handle of "+kind, func(w *world) {
				g := w.given(s)
				g.id = state.Anonymous
				w.x.do(w.ops(s, kind, s.saved, g)...)
			})
		}
		if s.saved != "" {
			each("the saved file handle of "+kind, func(w *world) { w.x.do(w.ops(s, s.cur, kind, w.given(s))...) })
		}
	}
	each("no file handle", func(w *world) { w.x.do(s.make(w.given(s))) })
	each("no session", func(w *world) { w.compound(2, s.make(w.given(s))) })
	each("by another user", func(w *world) { w.uid = 1000; w.x.do(w.ops(s, s.cur, s.saved, w.given(s))...) })
	each("by a reader", func(w *world) { w.peer = reader; w.x.do(w.ops(s, s.cur, s.saved, w.given(s))...) })
	each("cut short", func(w *world) {
		list := w.ops(s, s.cur, s.saved, w.given(s))
		last := encoded(list[len(list)-1])
		if len(last) == 4 {
			return
		}
		list[len(list)-1] = func(e *xdr.Encoder) { e.B = append(e.B, last[:len(last)-4]...) }
		w.x.do(list...)
	})
	if s.name != "" {
		for _, n := range []string{
			"", ".", "..", "a/b", "a\x00", strings.Repeat("n", 300), "file", "link", "sub", "nested",
			"none",
		} {
			each(fmt.Sprintf("the name %.5q", n), func(w *world) {
				g := w.given(s)
				g.name = n
				w.x.do(w.ops(s, s.cur, s.saved, g)...)
			})
			each(fmt.Sprintf("the second name %.5q", n), func(w *world) {
				g := w.given(s)
				g.two = n
				w.x.do(w.ops(s, s.cur, s.saved, g)...)
			})
		}
	}
	for _, n := range []string{
		"old", "to come", "of another start", "of another file", "of another client", "anonymous", "bypass", "invalid",
		"of nothing", "reads", "writes", "lock", "open",
	} {
		if s.id == "" {
			break
		}
		each("the stateid "+n, func(w *world) {
			g := w.given(s)
			g.id = w.ids[n]
			w.x.do(w.ops(s, s.cur, s.saved, g)...)
		})
		each("the stateid "+n+" of a file that others deny", func(w *world) {
			g := w.given(s)
			g.id = w.ids[n]
			w.x.do(op(OpPutFH, w.fhs["file"]), op(OpClose, uint32(0), w.ids["open"]))
			w.x.do(op(OpPutFH, w.fhs["file"]), op(OpClose, uint32(0), w.ids["writes"]))
			w.x.do(op(OpPutFH, w.fhs["file"]), op(OpClose, uint32(0), w.ids["reads"]))
			w.y.do(op(OpPutFH, w.fhs["dir"]), openOp(1, 3, "denier", "file")).ok(OpPutFH).ok(OpOpen)
			w.x.do(w.ops(s, s.cur, s.saved, g)...)
		})
	}
	if s.id != "" {
		each("the stateid of a delegation that was taken away", func(w *world) {
			deleg := w.delegated()
			for range 3 { // recalled, then revoked, and the file is had
				w.y.do(op(OpPutFH, w.fhs["file"]), op(OpWrite, state.Anonymous, uint64(0), uint32(0), "x"))
				w.now = w.now.Add(60 * time.Second)
				w.x.do()
				w.z.do()
			}
			g := w.given(s)
			g.id = deleg
			w.z.do(w.ops(s, s.cur, s.saved, g)...)
		})
	}
	for _, fail := range storeErrors {
		// No store fails so that the status makes no sense.
		if !valid(2, s.op, nfs.StatusOf(fail)) {
			continue
		}
		each("the store says "+fail.Error(), func(w *world) {
			w.faults.Set(fault.Rule{Ops: fault.Any, P: 1, Err: fail})
			w.x.do(w.ops(s, s.cur, s.saved, w.given(s))...)
		})
		each("the store says later "+fail.Error(), func(w *world) {
			// What looks only succeeds; what does something fails.
			w.faults.Set(fault.Rule{Ops: fault.Any &^ (fault.GetAttr | fault.Lookup | fault.Access), P: 1, Err: fail})
			w.x.do(w.ops(s, s.cur, s.saved, w.given(s))...)
		})
	}
	each("in the grace period", func(w *world) {
		list := w.ops(s, s.cur, s.saved, w.given(s))
		anon := w.given(s)
		anon.id = state.Anonymous
		w.locks = lock.New(0)
		w.start(8)
		w.x = w.session(2, "three")
		w.x.do(list...)
		w.x.do(w.ops(s, s.cur, s.saved, anon)...)
	})
	each("delegated to somebody", func(w *world) {
		w.delegated()
		anon := w.given(s)
		anon.id = state.Anonymous
		w.x.do(w.ops(s, s.cur, s.saved, anon)...)
		if s.name != "" {
			anon.name = "file"
			w.x.do(w.ops(s, s.cur, s.saved, anon)...)
		}
	})
	each("a reply that is too long", func(w *world) {
		for _, cache := range []bool{false, true} {
			for n := 40; n < 125; n++ {
				x := w.sessionOf(2, fmt.Sprint(cache), channelArgs(8<<10, 1024, 512, 200, 1))
				x.cache = cache
				list := slices.Repeat([]args{op(OpPutFH, w.fhs[cmpOr(s.cur, "dir")])}, n)
				g := w.given(s)
				g.id = state.Anonymous
				x.do(append(list, w.ops(s, s.cur, s.saved, g)...)...)
				w.s.state.DestroySession(x.id, &state.By{Principal: state.Principal{Flavor: rpc.AuthSys}})
			}
		}
	})
	each("a retry whose reply was not kept", func(w *world) {
		x := w.x
		x.seq++
		var e xdr.Encoder
		encodeCompound(&e, "tag", 2, x.sequence(x.seq, 0), s.make(w.given(s)))
		cred := rpc.Cred{Flavor: rpc.AuthSys}
		use, _, st := w.s.state.Sequence(w.now,
			&state.Request{
				Session: x.id, From: w.from(), Sequence: x.seq, Ops: 2, Minor: 2,
				Digest: digest(xdr.NewDecoder(e.B), &cred),
			})
		if st != nfs.OK {
			t.Fatal(st)
		}
		use.Finish(nil)
		w.parse(w.send(e.B))
	})
}

// delegated has the file delegated to a client that does not return it.
func (w *world) delegated() state.Stateid {
	for _, id := range []string{"open", "reads", "writes"} {
		w.x.do(op(OpPutFH, w.fhs["file"]), op(OpClose, uint32(0), w.ids[id]))
	}
	k := newCallee(w.t)
	w.back = k
	z := w.session(2, "three")
	z.do()
	w.z, w.back = z, nil
	p := z.do(op(OpPutFH, w.fhs["dir"]), openOp(3|wantWrite, 0, "o", "file")).ok(OpPutFH).ok(OpOpen)
	p.opened()
	if p.delegKind != delegWrite {
		w.t.Fatalf("no delegation: %d, %d", p.delegKind, p.why)
	}
	return p.deleg
}

// TestEveryError makes every operation in every way, and looks at whether each error that
// the RFCs give it was there, but for those that cannot be.
func TestEveryError(t *testing.T) {
	seen := make(map[opStatus]string)
	for i := range subjects {
		s := &subjects[i]
		t.Run(table[s.op].name, func(t *testing.T) {
			vary(t, s, func(what string, f func(w *world)) {
				t.Run(what, func(t *testing.T) {
					w := newWorld(t)
					clear(w.seen)
					f(w)
					for k := range w.seen {
						seen[k] = what
					}
				})
			})
		})
	}
	special(t, seen)
	for op, list := range errorsOf41 {
		for _, st := range list {
			k := opStatus{op, st}
			reason := never[st]
			if of := neverOf[k]; of != "" {
				reason = of
			}
			name := "ILLEGAL"
			if op < numOps {
				name = table[op].name
				if table[op].do == nil && reason == "" && st != nfs.ErrNotSupp && anywhere[st] == "" && st != nfs.ErrNoFileHandle {
					reason = "it is not there"
				}
				if table[op].do == nil && (anywhere[st] != "" || st == nfs.ErrNoFileHandle) {
					continue // what goes before it decides
				}
			}
			switch what := seen[k]; {
			case what == "" && reason == "":
				t.Errorf("%s never had %v", name, st)
			case what != "" && reason != "":
				t.Errorf("%s had %v (%s), which cannot be: %s", name, st, what, reason)
			}
		}
	}
}
