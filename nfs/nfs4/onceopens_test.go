package nfs4

import (
	"fmt"
	"testing"
	"time"

	"github.com/rstored/rstored/blockstore"
	"github.com/rstored/rstored/nfs"
	"github.com/rstored/rstored/nfs/state"
	"github.com/rstored/rstored/rpcrdma/xdr"
)

func (f *cut) Create(c *blockstore.Cred, dir blockstore.Handle, name string, m blockstore.CreateMode,
	s *blockstore.SetAttr, v [8]byte,
) (h blockstore.Handle, a blockstore.Attr, w blockstore.Wcc, err error) {
	if err = f.err(dir); err != nil {
		return h, a, w, err
	}
	return f.FS.Create(c, dir, name, m, s, v)
}

func (f *cut) SetAttr(c *blockstore.Cred, h blockstore.Handle, s *blockstore.SetAttr,
	guard *time.Time,
) (w blockstore.Wcc, err error) {
	if f.off {
		return w, blockstore.ErrIO
	}
	if *s == (blockstore.SetAttr{}) {
		delete(f.unsynced, h)
	}
	return f.FS.SetAttr(c, h, s, guard)
}

// TestKilledServerOpensAndSetsOnce kills the server before it makes or truncates a file, or sets
// attributes, and afterwards. Somebody else then writes into the file or sets its mode. The client
// sends its call again in the session of before, or with the client ID of before, and then with
// those that it has next.
func TestKilledServerOpensAndSetsOnce(t *testing.T) {
	const (
		made = iota // it has to make the file, which is empty then and cannot be written
		there
		trunc
		set
	)
	verf := [8]byte{7: 9}
	readOnly, empty := attrs(BitmapOf(AttrMode), uint32(0o400)), attrs(BitmapOf(AttrSize), uint64(0))
	verfAttrs := func(e *xdr.Encoder) { part(verf, readOnly)(e) }
	for _, c := range []struct {
		name  string
		mode  uint32
		how   args
		file  string
		kind  int
		again nfs.Status // of another call that looks the same
		minor uint32     // the least
	}{
		{"GUARDED", CreateGuarded, readOnly, "new", made, nfs.ErrExist, 0},
		{"UNCHECKED", CreateUnchecked, readOnly, "new", made, nfs.ErrAcces, 0},
		// somebody has written, so the verifier is gone
		{"EXCLUSIVE", createExclusive, part(verf), "new", made, nfs.ErrExist, 0},
		{"EXCLUSIVE4_1", CreateExclusive41, verfAttrs, "new", made, nfs.ErrExist, 1},
		{"GUARDED, is there", CreateGuarded, readOnly, "file", there, nfs.ErrExist, 0},
		{"truncated", CreateUnchecked, empty, "file", trunc, nfs.OK, 0},
		{"SETATTR", 0, nil, "file", set, nfs.OK, 1},
	} {
		for minor := c.minor; minor <= 2; minor++ {
			for _, kill := range []string{"before", "after", "twice", "answered", "another user", "replaced"} {
				t.Run(fmt.Sprintf("%s/4.%d/%s", c.name, minor, kill), func(t *testing.T) {
					fs := new(cut)
					r := newRigOver(t, func(s blockstore.FS) blockstore.FS { fs.FS = s; return fs })
					r.calls = make([]byte, 16*callRecord)
					r.start(8)
					host := r.session(1, "host")
					dir := host.handle("one")
					host.do(op(OpPutFH, dir), op(OpSetAttr, state.Anonymous,
						attrs(BitmapOf(AttrMode), uint32(0o777)))).ok(OpPutFH).ok(OpSetAttr)
					file, id := host.make(dir, "file")
					host.do(op(OpPutFH, file), op(OpWrite, id, uint64(0), uint32(0), []byte("before"))).ok(OpPutFH).ok(OpWrite)
					host.do(op(OpPutFH, file), op(OpSetAttr, id, attrs(BitmapOf(AttrMode), uint32(0o666)))).ok(OpPutFH).ok(OpSetAttr)
					// call is the client's call, by what it has of the server at the time.
					type call func() nfs.Status
					begin := func() call {
						var client uint64
						var x *sess
						if minor > 0 {
							x = r.session(minor, "owner")
							x.seq++
						} else {
							client = r.client40("owner", 1).id
						}
						return func() nfs.Status {
							r.uid = max(r.uid, 1000)
							defer func() { r.uid = 0 }()
							ops := []args{op(OpPutFH, dir), op(OpOpen, uint32(1), uint32(state.Write), uint32(0), client, "opener",
								uint32(OpenCreate), c.mode, c.how, uint32(ClaimNull), c.file), op(OpGetFH)}
							if c.kind == set {
								ops = []args{op(OpPutFH, file), op(OpSetAttr, state.Anonymous, attrs(BitmapOf(AttrSize), uint64(0)))}
							}
							if x != nil {
								ops = append([]args{x.sequence(x.seq, 0)}, ops...)
							}
							p := r.compound(minor, ops...)
							if st := p.status; st != nfs.OK || c.kind != made || kill == "replaced" {
								return st
							}
							if x != nil {
								p.ok(OpSequence)
								p.Skip(16 + 4*5)
							}
							p.ok(OpPutFH).ok(OpOpen)
							p.Skip(16 + 4)
							if before, after := p.Uint64(), p.Uint64(); before == after {
								t.Error("a directory with a new file did not change")
							}
							return nfs.OK
						}
					}
					content := func() (s string, there bool) {
						x := r.session(1, "host")
						h, st := x.tryHandle("one", c.file)
						if st != nfs.OK {
							return "", false
						}
						p := x.do(op(OpPutFH, h), op(OpRead, state.Anonymous, uint64(0), uint32(100))).ok(OpPutFH).ok(OpRead)
						p.Uint32()
						return string(p.Opaque(100)), true
					}
					first := begin()
					fs.off = kill == "before"
					want := nfs.OK
					if c.kind == there {
						want = nfs.ErrExist
					}
					if st := first(); (st == want) == (fs.off && c.kind != there) {
						t.Fatal(st)
					}
					fs.off = false
					restart := func(boot uint32, write string) {
						r.known = nil // nobody need reclaim
						r.start(boot)
						if write == "" {
							return
						}
						x := r.session(1, "host")
						if h, st := x.tryHandle("one", c.file); st == nfs.OK {
							x.do(op(OpPutFH, h), op(OpWrite, state.Anonymous, uint64(0), uint32(0), []byte(write))).ok(OpPutFH).ok(OpWrite)
						}
					}
					left := "since"
					restart(9, left)
					resend := func() {
						if st := first(); st != nfs.ErrBadSession && st != nfs.ErrStaleClientID {
							t.Errorf("sent again as before: %v", st)
						}
					}
					switch kill {
					case "answered":
						want = c.again
						if c.kind != made {
							left = ""
						}
					case "twice":
						resend()
						restart(10, "")
					case "before":
						left = ""
						resend()
					case "replaced":
						resend()
						x := r.session(1, "host")
						x.do(op(OpPutFH, dir), op(OpRemove, c.file)).ok(OpPutFH).ok(OpRemove)
						h, id := x.make(dir, c.file)
						x.do(op(OpPutFH, h), op(OpWrite, id, uint64(0), uint32(0), []byte("other"))).ok(OpPutFH).ok(OpWrite)
						x.do(op(OpPutFH, h), op(OpSetAttr, id, attrs(BitmapOf(AttrMode), uint32(0o666)))).ok(OpPutFH).ok(OpSetAttr)
						left = "other"
						switch {
						case c.mode == CreateGuarded && c.kind != set, c.mode == createExclusive, c.mode == CreateExclusive41:
							want = nfs.ErrExist
						case c.kind == trunc:
							left = ""
						case c.kind == set:
							want, left = nfs.ErrStale, "other"
						}
					case "another user":
						resend()
						y := begin()
						r.uid = 1001
						st := y()
						if c.kind == made && c.mode <= CreateGuarded && st == nfs.OK {
							t.Error("a call of another user is taken for one that made the file")
						}
						return
					default:
						resend()
					}
					if st := begin()(); st != want {
						t.Errorf("sent again: %v, not %v", st, want)
					}
					if got, _ := content(); c.kind != there && got != left {
						t.Errorf("the file has %q, not %q", got, left)
					}
				})
			}
		}
	}
}
