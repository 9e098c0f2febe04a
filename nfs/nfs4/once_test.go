package nfs4

import (
	"bytes"
	"testing"
	"time"

	"github.com/rstored/rstored/blockstore"
	"github.com/rstored/rstored/nfs"
)

// cut is a store that can be cut off before it changes names, or between a change and its sync.
type cut struct {
	blockstore.FS
	off     bool
	changes int
	// unsynced are the directories that were changed, and not synced if killed is set.
	killed   bool
	unsynced map[blockstore.Handle]bool
}

func (f *cut) err(dirs ...blockstore.Handle) error {
	if f.off {
		return blockstore.ErrIO
	}
	f.changes++
	for _, d := range dirs {
		if f.killed {
			f.unsynced[d] = true
		}
	}
	return nil
}

func (f *cut) Mkdir(c *blockstore.Cred, dir blockstore.Handle, name string, s *blockstore.SetAttr) (h blockstore.Handle,
	a blockstore.Attr, w blockstore.Wcc, err error,
) {
	if err = f.err(dir); err != nil {
		return h, a, w, err
	}
	return f.FS.Mkdir(c, dir, name, s)
}

func (f *cut) Symlink(c *blockstore.Cred, dir blockstore.Handle, name, target string,
	s *blockstore.SetAttr,
) (h blockstore.Handle, a blockstore.Attr, w blockstore.Wcc, err error) {
	if err = f.err(dir); err != nil {
		return h, a, w, err
	}
	return f.FS.Symlink(c, dir, name, target, s)
}

func (f *cut) Remove(c *blockstore.Cred, dir blockstore.Handle, name string) (w blockstore.Wcc, err error) {
	if err = f.err(dir); err != nil {
		return w, err
	}
	return f.FS.Remove(c, dir, name)
}

func (f *cut) Rmdir(c *blockstore.Cred, dir blockstore.Handle, name string) (w blockstore.Wcc, err error) {
	if err = f.err(dir); err != nil {
		return w, err
	}
	return f.FS.Rmdir(c, dir, name)
}

func (f *cut) Rename(c *blockstore.Cred, from blockstore.Handle, fromName string, to blockstore.Handle,
	toName string,
) (a, b blockstore.Wcc, err error) {
	if err = f.err(from, to); err != nil {
		return a, b, err
	}
	return f.FS.Rename(c, from, fromName, to, toName)
}

func (f *cut) Link(c *blockstore.Cred, h, dir blockstore.Handle, name string) (a blockstore.Attr, w blockstore.Wcc,
	err error,
) {
	if err = f.err(dir); err != nil {
		return a, w, err
	}
	return f.FS.Link(c, h, dir, name)
}

// TestKilledServerDoesNothingTwice kills the server before it makes a change and afterwards. The
// client sends the call again in the session of before, which is not there, and then in a new one,
// as the Linux kernel does. A call that looks the same, but was not sent again so, is another one.
func TestKilledServerDoesNothingTwice(t *testing.T) {
	type world struct {
		x             *sess
		dir, file, fh []byte
	}
	for _, c := range []struct {
		name  string
		ops   func(w *world) []args
		again nfs.Status // of another call that looks the same
	}{
		{"MKDIR", func(w *world) []args {
			return []args{op(OpPutFH, w.dir), op(OpCreate, uint32(blockstore.TypeDir), "new",
				attrs(BitmapOf(AttrMode), uint32(0o750))), op(OpGetFH)}
		}, nfs.ErrExist},
		{"SYMLINK", func(w *world) []args {
			return []args{op(OpPutFH, w.dir), op(OpCreate, uint32(blockstore.TypeLnk), "target", "new",
				attrs(BitmapOf(AttrMode), uint32(0o777))), op(OpGetFH)}
		}, nfs.ErrExist},
		{"REMOVE", func(w *world) []args { return []args{op(OpPutFH, w.dir), op(OpRemove, "file")} }, nfs.ErrNoEnt},
		{
			"REMOVE of a directory", func(w *world) []args { return []args{op(OpPutFH, w.dir), op(OpRemove, "dir")} },
			nfs.ErrNoEnt,
		},
		{"RENAME", func(w *world) []args {
			return []args{op(OpPutFH, w.dir), op(OpSaveFH), op(OpPutFH, w.fh), op(OpRename, "file", "moved")}
		}, nfs.ErrNoEnt},
		{"LINK", func(w *world) []args {
			return []args{op(OpPutFH, w.file), op(OpSaveFH), op(OpPutFH, w.dir), op(OpLink, "linked")}
		}, nfs.ErrExist},
	} {
		t.Run(c.name, func(t *testing.T) {
			for _, minor := range []uint32{1, 2} {
				for _, kill := range []string{"before", "after", "twice", "answered", "too late", "another user"} {
					fs := &cut{unsynced: map[blockstore.Handle]bool{}}
					r := newRigOver(t, func(s blockstore.FS) blockstore.FS { fs.FS = s; return fs })
					r.calls = make([]byte, 16*callRecord)
					r.start(8)
					w := &world{x: r.session(minor, "owner")}
					w.dir = w.x.handle("one")
					w.file, _ = w.x.make(w.dir, "file")
					w.x.do(op(OpPutFH, w.dir), op(OpCreate, uint32(blockstore.TypeDir), "dir",
						attrs(BitmapOf(AttrMode), uint32(0o755)))).ok(OpPutFH).ok(OpCreate)
					w.fh = w.x.handle("one", "dir")
					ops := c.ops(w)
					fs.off, fs.killed = kill == "before", true
					if st := w.x.do(ops...).status; (st == nfs.OK) == fs.off {
						t.Fatalf("4.%d, %s: %v", minor, kill, st)
					}
					fs.off, fs.killed = false, false
					r.known = nil // it need not reclaim
					want := nfs.OK
					resend := func() {
						if st := r.compound(minor, append([]args{w.x.sequence(w.x.seq, 0)}, ops...)...).status; st != nfs.ErrBadSession {
							t.Errorf("4.%d, %s: sent again in the session of before: %v", minor, kill, st)
						}
					}
					r.start(9)
					switch kill {
					case "answered":
						want = c.again
					case "too late":
						resend()
						r.now = r.now.Add(callsAge)
						want = c.again
					case "twice":
						resend()
						r.start(10)
					case "another user":
						resend()
						y := r.session(minor, "owner")
						r.uid = 1000
						if st := y.do(ops...).status; st == nfs.OK {
							t.Errorf("4.%d: a call of another user is taken for one that was made", minor)
						}
						r.uid = 0
					default:
						resend()
					}
					y := r.session(minor, "owner")
					n := fs.changes
					if st := y.do(ops...).status; st != want {
						t.Errorf("4.%d, %s: sent again: %v, not %v", minor, kill, st, want)
					}
					if want == nfs.OK && len(fs.unsynced) > 0 {
						t.Errorf("4.%d, %s: sent again: OK, and the change is not stable", minor, kill)
					}
					if made := fs.changes - n; (made == 0) != (want == nfs.OK && kill != "before") {
						t.Errorf("4.%d, %s: %d changes", minor, kill, made)
					}
					if st := y.do(ops...).status; st != c.again {
						t.Errorf("4.%d, %s: another call that looks the same: %v, not %v", minor, kill, st, c.again)
					}
				}
			}
		})
	}
}

// TestCallsJournal: damaged records are none, a slot has one record, and the oldest make room.
func TestCallsJournal(t *testing.T) {
	now := time.Unix(1_700_000_000, 0)
	const records = 4
	mem := make([]byte, records*callRecord)
	var j journal
	j.load(mem, now)
	key := func(i int) slotKey { return slotKey{slot: uint32(i) + 1} }
	sum := func(i int) callSumOf { return callSumOf{byte(i)} }
	note := bytes.Repeat([]byte{7}, callNoteMax)
	for i := range 6 { // the first two make room
		j.begin(key(i), 1, sum(i), note)
	}
	j.begin(key(5), 2, sum(50), note)
	took := func(i int, seq uint32, s callSumOf) bool {
		var next journal
		next.load(bytes.Clone(mem), now)
		next.again(key(i), seq, now)
		return bytes.Equal(next.take(key(9), 1, s, now), note) && next.take(key(9), 1, s, now) == nil
	}
	for i, want := range []bool{false, false, true, true, true, false} {
		if took(i, 1, sum(i)) != want {
			t.Errorf("call %d: %v", i, !want)
		}
	}
	if !took(5, 2, sum(50)) || took(5, 1, sum(50)) || took(4, 1, sum(50)) {
		t.Error("the last call of a slot")
	}
	for i := range records * callRecord {
		if i%callRecord >= callEnd {
			continue
		}
		b := bytes.Clone(mem)
		b[i] ^= 0x10
		var next journal
		next.load(b, now)
		if len(next.before) != records-1 {
			t.Fatalf("byte %d is damaged, and %d records count", i, len(next.before))
		}
	}
}

// TestTornNote: a kill while the second note of a call is written leaves the first one or the
// second, wherever it cuts the write. A kill while a record moves to a new slot leaves one mark.
func TestTornNote(t *testing.T) {
	now := time.Unix(1_700_000_000, 0)
	mem := make([]byte, 4*callRecord)
	var j journal
	j.load(mem, now)
	slot := func(i uint32) slotKey { return slotKey{slot: i} }
	sum := callSumOf{1}
	first, second := bytes.Repeat([]byte{7}, callNoteMax), bytes.Repeat([]byte{8}, callNoteMax)
	j.begin(slot(1), 1, callSumOf{}, second) // an earlier call of the slot
	j.begin(slot(1), 2, sum, first)
	before := bytes.Clone(mem)
	j.begin(slot(1), 2, sum, second)
	for cut := range mem {
		for _, torn := range [][]byte{
			append(bytes.Clone(mem[:cut]), before[cut:]...), append(bytes.Clone(before[:cut]), mem[cut:]...),
		} {
			var next journal
			next.load(torn, now)
			next.again(slot(1), 2, now)
			if got := next.take(slot(2), 1, sum, now); !bytes.Equal(got, first) && !bytes.Equal(got, second) {
				t.Fatalf("cut at %d: the note is %x", cut, got)
			}
		}
	}

	var next journal
	next.load(mem, now)
	next.again(slot(1), 2, now)
	old := bytes.Clone(mem)
	next.take(slot(2), 1, sum, now)
	copy(mem, old[:callRecord]) // the new record is complete, the old one not yet freed
	var last journal
	last.load(mem, now)
	last.again(slot(2), 1, now)
	if got := last.take(slot(3), 1, sum, now); !bytes.Equal(got, second) {
		t.Errorf("after a kill in between the note is %x", got)
	}
	if got := last.take(slot(3), 2, sum, now); got != nil {
		t.Errorf("a later call that looks the same gets the note %x", got)
	}
}

// TestRecordUsedAgain: a client sends a call of a record that this process has used for another
// call since. The mark must not go to that call.
func TestRecordUsedAgain(t *testing.T) {
	now := time.Unix(1_700_000_000, 0)
	mem := make([]byte, 2*callRecord)
	var j, next, last journal
	j.load(mem, now)
	note := bytes.Repeat([]byte{7}, callNoteMax)
	j.begin(slotKey{slot: 1}, 1, callSumOf{1}, note)
	next.load(mem, now)
	for i := range uint32(2) {
		next.begin(slotKey{slot: 2 + i}, 1, callSumOf{2}, note)
	}
	next.again(slotKey{slot: 1}, 1, now)
	if got := next.take(slotKey{slot: 4}, 1, callSumOf{1}, now); !bytes.Equal(got, note) {
		t.Errorf("the note is %x", got)
	}
	last.load(mem, now)
	if len(last.asked) > 0 {
		t.Error("a call is marked that the client has not sent again")
	}
}

// TestKilledTwice: a process that is killed at once leaves the records of the process before,
// whichever of them was written last.
func TestKilledTwice(t *testing.T) {
	now := time.Unix(1_700_000_000, 0)
	mem := make([]byte, 8*callRecord)
	const slots = 4
	note := bytes.Repeat([]byte{7}, callNoteMax)
	for last := range uint32(slots) {
		clear(mem)
		var first, second, third journal
		first.load(mem, now)
		for i := range uint32(slots) {
			first.begin(slotKey{slot: i + 1}, 1, callSumOf{byte(i)}, note)
		}
		first.begin(slotKey{slot: last + 1}, 2, callSumOf{byte(last)}, note)
		second.load(mem, now)
		for i := range uint32(slots) {
			second.begin(slotKey{slot: 100 + i}, 1, callSumOf{100}, note)
		}
		third.load(mem, now)
		if len(third.before) != 2*slots {
			t.Errorf("slot %d was used last: %d records, not %d", last, len(third.before), 2*slots)
		}
	}
}
