package posixfs

import (
	"slices"
	"time"

	"github.com/rstored/rstored/blockstore"
	"golang.org/x/sys/unix"
)

// settled is how old a ctime must be before a decision is cached under it. Two changes of an ACL
// within one tick of the kernel's clock can have the same ctime.
const settled = 50 * time.Millisecond

// decision caches what the kernel has granted one caller on an object. It is valid as long as
// the object's mode, owner and ctime do not change.
type decision struct {
	uid, gid uint32
	n        int
	groups   [16]uint32
	under    state
	asked    uint32 // bits for which the answer is known
	granted  uint32
}

// state is what a decision depends on.
type state struct {
	mode, uid, gid uint32
	ctime          unix.Timespec
}

func (d *decision) is(c *blockstore.Cred) bool {
	return d.asked != 0 && d.uid == c.UID && d.gid == c.GID && d.n == len(c.Groups) &&
		slices.Equal(d.groups[:d.n], c.Groups)
}

// may reports whether c has permission want (blockstore.MayRead and so on) on o, whose
// attributes are st. Where identities are switched the kernel decides.
func (f *FS) may(c *blockstore.Cred, o *object, st *unix.Stat_t, want uint32) bool {
	if !f.who.on || c.Privileged() {
		a := blockstore.Attr{Type: o.typ, Mode: st.Mode & 0o7777, UID: st.Uid, GID: st.Gid, ACL: f.decidingACL(c, o)}
		return c.May(&a, want)
	}
	if len(c.Groups) > len(decision{}.groups) {
		return f.askKernel(c, o, want)
	}
	now := state{st.Mode, st.Uid, st.Gid, st.Ctim}
	if granted, known := o.decided(c, &now, want); known {
		return granted
	}
	ok := f.askKernel(c, o, want)
	if age := time.Since(time.Unix(st.Ctim.Unix())); age < settled {
		return ok
	}
	o.decMu.Lock()
	defer o.decMu.Unlock()
	for i := range o.decisions {
		if d := &o.decisions[i]; d.under == now && d.is(c) {
			d.note(want, ok)
			return ok
		}
	}
	d := &o.decisions[o.nextDec]
	o.nextDec = (o.nextDec + 1) % len(o.decisions)
	*d = decision{uid: c.UID, gid: c.GID, n: len(c.Groups), under: now}
	copy(d.groups[:], c.Groups)
	d.note(want, ok)
	return ok
}

// decided returns the cached decision for c on o, if there is one.
func (o *object) decided(c *blockstore.Cred, now *state, want uint32) (granted, known bool) {
	o.decMu.Lock()
	defer o.decMu.Unlock()
	for i := range o.decisions {
		if d := &o.decisions[i]; d.under == *now && d.is(c) && d.asked&want == want {
			return d.granted&want == want, true
		}
	}
	return false, false
}

// maySearchNow reports whether c may search the directory o, as far as the kernel need not be asked.
func (f *FS) maySearchNow(c *blockstore.Cred, o *object, st *unix.Stat_t) bool {
	if c.Privileged() {
		return true
	}
	if !f.who.on || len(c.Groups) > len(decision{}.groups) {
		return false
	}
	granted, _ := o.decided(c, &state{st.Mode, st.Uid, st.Gid, st.Ctim}, blockstore.MayExec)
	return granted
}

// note records an answer. A refusal of several bits does not say which of them, so that only
// grants and refusals of single bits are recorded.
func (d *decision) note(want uint32, ok bool) {
	switch {
	case ok:
		d.asked |= want
		d.granted |= want
	case want&(want-1) == 0:
		d.asked |= want
		d.granted &^= want
	}
}

// askKernel calls faccessat2 as c. AT_EACCESS checks the effective user of the thread, and so
// ACLs and read-only mounts too.
func (f *FS) askKernel(c *blockstore.Cred, o *object, want uint32) bool {
	err := f.who.as(c, func() error {
		if f.opts.noFaccessat2 {
			return unix.ENOSYS
		}
		return unix.Faccessat2(o.path, "", want, unix.AT_EACCESS|unix.AT_EMPTY_PATH)
	})
	if err == unix.ENOSYS {
		// Before Linux 5.8: mode and ACL decide. With an ACL the mode alone would grant the group what
		// the mask does.
		a, aerr := o.attr()
		a.ACL = f.accessACL(o)
		return aerr == nil && c.May(&a, want)
	}
	return err == nil
}

// mayRead and mayWrite are may with the exceptions of an NFS server: the owner always may, and
// execute permission lets a user read. See blockstore.Cred.MayReadData.
func (f *FS) mayRead(c *blockstore.Cred, o *object, st *unix.Stat_t) bool {
	return c.Privileged() || c.UID == st.Uid || f.may(c, o, st, blockstore.MayRead) || f.may(c, o, st, blockstore.MayExec)
}

func (f *FS) mayWrite(c *blockstore.Cred, o *object, st *unix.Stat_t) bool {
	return c.Privileged() || c.UID == st.Uid || f.may(c, o, st, blockstore.MayWrite)
}

// checkDir checks permission on a directory if the server enforces permissions. If the kernel does,
// checkDir returns nil.
func (f *FS) checkDir(c *blockstore.Cred, o *object, want uint32) error {
	if f.who.on || c.Privileged() {
		return nil
	}
	a, err := o.attr()
	if err != nil {
		return err
	}
	a.ACL = f.decidingACL(c, o)
	if !c.May(&a, want) {
		return blockstore.ErrAccess
	}
	return nil
}

// Access returns which of the wanted bits c has.
func (f *FS) Access(c *blockstore.Cred, h blockstore.Handle, want uint32) (uint32, blockstore.Attr, error) {
	o, err := f.acquire(h)
	if err != nil {
		return 0, blockstore.Attr{}, err
	}
	defer f.release(o)
	var st unix.Stat_t
	if err := o.stat(&st); err != nil {
		return 0, blockstore.Attr{}, err
	}
	a := f.changes.attrOf(&st)
	var got uint32
	grant := func(bits, need uint32) {
		if want&bits != 0 && f.may(c, o, &st, need) {
			got |= want & bits
		}
	}
	const change = blockstore.AccessModify | blockstore.AccessExtend
	grant(blockstore.AccessRead, blockstore.MayRead)
	if a.Type == blockstore.TypeDir {
		grant(blockstore.AccessLookup, blockstore.MayExec)
		grant(change|blockstore.AccessDelete, blockstore.MayWrite|blockstore.MayExec)
	} else {
		grant(change, blockstore.MayWrite)
		grant(blockstore.AccessExecute, blockstore.MayExec)
	}
	if f.readOnly {
		got &^= change | blockstore.AccessDelete
	}
	return got, a, nil
}
