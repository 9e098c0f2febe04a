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
