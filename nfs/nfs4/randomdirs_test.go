package nfs4

import (
	"bytes"
	"fmt"
	"slices"
	"time"

	"github.com/rstored/rstored/blockstore"
	"github.com/rstored/rstored/nfs"
	"github.com/rstored/rstored/nfs/lock"
	"github.com/rstored/rstored/nfs/state"
)

// One directory in the random programs is delegated, and changed by all clients. Its entries are
// directories. The model is written from RFC 8881 sections 10.9, 18.39 and 20.4.

// dirAt is the place of the directory among the files; the regular ones come before it.
const dirAt = randomFiles

var entryNames = []string{"m", "n", "o"}

// randomDir is the directory in the model.
type randomDir struct {
	names    map[string]bool
	recalled time.Time // when a delegation of it was recalled last
	deaf     bool      // clients refuse notifications
	told     map[[12]byte][]string
}

// askDir is GET_DIR_DELEGATION.
func (w *randomWorld) askDir(c *modelClient) []piece {
	notices := BitmapOf()
	for _, bit := range []uint32{1, 2, 3, 4, 5} {
		if w.chance(60) {
			notices[0] |= 1 << bit
		}
	}
	if w.chance(85) {
		notices[0] |= noticeExtend
	}
	if w.chance(10) {
		notices[0] |= noticeOrder
	}
	granted := notices[0] & (state.DirNotices | noticeExtend)
	if notices[0]&noticeExtend == 0 || notices[0]&noticeOrder != 0 {
		granted = 0
	}
	return []piece{w.putFH(w.fhs[dirAt]), {
		op: OpGetDirDelegation, text: fmt.Sprintf("notifications %x:", notices[0]),
		a: op(OpGetDirDelegation, w.chance(50), notices, uint64(1), 0, uint64(1), 0, Bitmap{}, Bitmap{}),
		ok: func(p *reply) {
			has := slices.ContainsFunc(c.live(aDelegation), func(s *modelState) bool { return s.file == dirAt })
			revoked := slices.ContainsFunc(c.states, func(s *modelState) bool { return s.revoked && !s.gone })
			refused := has || revoked || c.back == nil || w.graceSure()
			free := !refused && !w.graceMaybe() && w.model.now.Sub(w.entries.recalled) > 31*time.Second
			if p.Uint32() != dirDelegated {
				p.Bool()
				w.count("directory refused")
				if free {
					panic("the directory is not delegated")
				}
				return
			}
			if refused {
				panic(fmt.Sprintf("the directory is delegated: has %v, revoked %v, grace %v", has, revoked, w.graceSure()))
			}
			w.count("directory delegated")
			p.Uint64()
			s := &modelState{kind: aDelegation, file: dirAt, id: DecodeStateid(p.Decoder)}
			got, _ := DecodeBitmap(p.Decoder)
			DecodeBitmap(p.Decoder)
			DecodeBitmap(p.Decoder)
			if got[0] != granted || s.id.Seq != 1 {
				panic(fmt.Sprintf("notifications %x instead of %x, stateid %v", got[0], granted, s.id))
			}
			s.notices = got[0] & state.DirNotices
			c.states = append(c.states, s)
			w.current = s.id
		},
	}}
}

// changeDir changes the entries or the mode of the directory.
func (w *randomWorld) changeDir(c *modelClient) []piece {
	a, b := entryNames[w.rnd.IntN(len(entryNames))], entryNames[w.rnd.IntN(len(entryNames))]
	all := []piece{w.putFH(w.fhs[dirAt])}
	k := piece{text: "entry " + a + ":"}
	var fails nfs.Status // nobody's delegation stands against what fails
	var kinds uint32
	var event string
	graced := true
	names := w.entries.names
	var before func()
	after := func() {}
	switch w.rnd.IntN(7) {
	case 0, 1:
		graced = false
		k.op, k.a = OpCreate, op(OpCreate, int(blockstore.TypeDir), a, attrs(Bitmap{}))
		before = func() {
			if fails = nfs.OK; names[a] {
				fails = nfs.ErrExist
			}
			kinds, event = state.NoticeAdd, "+"+a
		}
		after = func() { names[a] = true }
	case 2, 3:
		k.op, k.a = OpRemove, op(OpRemove, a)
		before = func() {
			if fails = nfs.OK; !names[a] {
				fails = nfs.ErrNoEnt
			}
			kinds, event = state.NoticeRemove, "-"+a
		}
		after = func() { delete(names, a) }
	case 4, 5:
		k.op, k.a, k.text = OpRename, op(OpRename, a, b), "entries "+a+" "+b+":"
		all = append(all, piece{op: OpSaveFH, a: op(OpSaveFH)})
		before = func() {
			if fails = nfs.OK; !names[a] {
				fails = nfs.ErrNoEnt
			}
			kinds, event = state.NoticeRename, "-"+a+" +"+b
			if names[b] {
				event += "!"
			}
			if a == b && names[a] {
				event = ""
			}
		}
		after = func() { delete(names, a); names[b] = true }
	default:
		graced = false
		k.op, k.a = OpSetAttr, op(OpSetAttr, state.Anonymous, attrs(BitmapOf(AttrMode), uint32(0o700|w.rnd.IntN(8))))
		before = func() { fails, kinds, event = nfs.OK, 0, "" }
	}
	var waits, covered []*modelState
	k.want = func() (must, may []nfs.Status) {
		before()
		if graced && w.graceSure() {
			return []nfs.Status{nfs.ErrGrace}, nil
		}
		if graced && w.graceMaybe() {
			may = append(may, nfs.ErrGrace)
		}
		var now bool
		waits, covered, now = w.dirDelegations(c, kinds, k.op == OpRename && event == "")
		if fails != nfs.OK {
			must = append(must, fails)
		}
		switch {
		case now && fails == nfs.OK:
			must = append(must, nfs.ErrJukebox)
		case now:
			may = append(may, nfs.ErrJukebox)
		}
		return must, may
	}
	k.bad = func(st nfs.Status, p *reply) {
		if w.waited(waits, st); k.op == OpSetAttr {
			DecodeBitmap(p.Decoder) // also of one that fails
		}
		w.recalledDir(waits)
	}
	k.ok = func(p *reply) {
		w.takenAway(waits)
		after()
		for _, d := range covered {
			switch by := w.clientOf(d); {
			case w.entries.deaf || len(by.sessions) == 0:
				d.recalled, w.entries.recalled = w.model.now, w.model.now
			default:
				d.told = append(d.told, event)
				w.count("directory notified")
			}
		}
		switch k.op {
		case OpCreate:
			p.Skip(4 + 8 + 8)
			DecodeBitmap(p.Decoder)
		case OpRemove:
			p.Skip(4 + 8 + 8)
		case OpRename:
			p.Skip(2 * (4 + 8 + 8))
		case OpSetAttr:
			DecodeBitmap(p.Decoder)
		}
	}
	return append(all, k)
}

// dirDelegations are those of others that stand against a change, and those, of all clients, that
// are notified of it instead. nothing says that the operation changes nothing.
func (w *randomWorld) dirDelegations(by *modelClient, kinds uint32, nothing bool) (waits, covered []*modelState,
	now bool,
) {
	for _, c := range w.clients {
		for _, d := range c.live(aDelegation) {
			switch {
			case d.file != dirAt || nothing:
			case kinds != 0 && kinds&^d.notices == 0 && d.recalled.IsZero():
				covered = append(covered, d)
			case c == by || w.expired(c):
			default:
				waits = append(waits, d)
				now = now || d.recalled.IsZero() || w.model.now.Sub(d.recalled) <= modelLease
			}
		}
	}
	return waits, covered, now
}

// recalledDir notes when delegations of the directory were recalled.
func (w *randomWorld) recalledDir(list []*modelState) {
	for _, d := range list {
		if d.recalled.After(w.entries.recalled) {
			w.entries.recalled = d.recalled
		}
	}
}

func (w *randomWorld) clientOf(s *modelState) *modelClient {
	for _, c := range w.clients {
		if slices.Contains(c.states, s) {
			return c
		}
	}
	return nil
}

// dirsOf are the delegations of the directory that the server has.
func (w *randomWorld) dirsOf(c *modelClient) (list []state.DelegInfo) {
	for _, x := range w.s.State().DelegationList(1 << 10) {
		if x.Dir && x.Client == c.id {
			list = append(list, x)
		}
	}
	return list
}

func (w *randomWorld) recalledAt(c *modelClient) bool {
	list := w.dirsOf(c)
	return len(list) == 1 && list[0].Recalled
}

// notified answers a callback.
func (w *randomWorld) notified(k *callback) verdict {
	switch {
	case k.dir == nil:
		return verdict{}
	case w.entries.deaf:
		return verdict{recall: nfs.ErrNotSupp}
	}
	w.entries.told[k.dir.id.Other] = append(w.entries.told[k.dir.id.Other], k.dir.changes...)
	return verdict{}
}

// sameDirs compares the delegations of the directory with the model: whose is recalled, and what
// its client was notified of.
func (w *randomWorld) sameDirs() error {
	for _, c := range w.clients {
		for _, d := range c.live(aDelegation) {
			if d.file != dirAt {
				continue
			}
			if told := w.entries.told[d.id.Other]; !slices.Equal(told, d.told) {
				return fmt.Errorf("client %d was notified of %q instead of %q", c.n, told, d.told)
			}
			if n := len(w.dirsOf(c)); n != 1 {
				return fmt.Errorf("client %d has %d directories", c.n, n)
			}
			if got := w.recalledAt(c); got != !d.recalled.IsZero() {
				return fmt.Errorf("the directory of client %d is recalled: %v", c.n, got)
			}
		}
	}
	return nil
}

// setUpDir makes the directory.
func (w *randomWorld) setUpDir(maker *sess) {
	p := maker.do(op(OpPutFH, w.dir), op(OpCreate, int(blockstore.TypeDir), "d", attrs(BitmapOf(AttrMode), uint32(0o777))),
		op(OpGetFH)).ok(OpPutFH).ok(OpCreate)
	p.Skip(4 + 8 + 8)
	DecodeBitmap(p.Decoder)
	fh := bytes.Clone(p.ok(OpGetFH).Opaque(FHMax))
	export, h, err := w.codec.Parse(fh)
	if err != nil {
		panic(err)
	}
	w.fhs, w.files = append(w.fhs, fh), append(w.files, lock.File{Export: export, Handle: h})
	w.held = append(w.held, make(map[holder][]uint8))
	w.entries = randomDir{names: make(map[string]bool), told: make(map[[12]byte][]string)}
}

// dirChance is how often the directory is changed, in percent: seldom where nobody can have it
// delegated.
func (w *randomWorld) dirChance() int {
	w.entries.deaf = w.chance(5)
	if w.deleg {
		return 12
	}
	return 3
}
