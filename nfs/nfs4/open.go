package nfs4

import (
	"github.com/rstored/rstored/blockstore"
	"github.com/rstored/rstored/nfs"
	"github.com/rstored/rstored/nfs/state"
)

// opening is an OPEN that has found or made its file.
type opening struct {
	file   object
	attr   blockstore.Attr
	change changeInfo // of the directory; zero for an OPEN by file handle
	set    Bitmap     // attributes that were set at creation
	made   bool       // this OPEN made the file, perhaps before the server was killed
	// The next two are set for an OPEN by name that may make the file.
	once      nfs.Once
	truncated bool // the same OPEN truncated the file before the server was killed
}

// open is OPEN (RFC 8881 section 18.16, RFC 7530 section 16.16). Version 4.0 takes the turn of the
// open-owner first: a retry gets the earlier result there. A retry in a session never comes here,
// because SEQUENCE answers it from the slot.
func open(k *compound) nfs.Status {
	a := k.decodeOpen()
	if k.bad() {
		return nfs.ErrBadXDR
	}
	if k.minor == 0 {
		if done, st := k.openTurn(&a); done {
			return st
		}
	}
	return k.openFile(&a)
}

// openFile is OPEN with its arguments. Its steps, in this order:
//
//  1. arguments    INVAL, NOTSUPP, and the status of attributes that cannot be set
//  2. file         by handle (openHandle), or by name (openName), which may make the file
//  3. permission   mayOpen: type, export rule, access bits of the store
//  4. delegation   CLAIM_DELEGATE_CUR names a delegation of this client and this file
//  5. pin          the file outlives the removal of its last name
//  6. reservation  client.Open: grace, share reservations, delegations of others, limits
//  7. truncation   after the reservation; Revert takes the open back if the store fails
//  8. result       stateid, change_info4, rflags, attrset, open_delegation4
//
// The claims stand for (RFC 8881 section 18.16.3):
//
//	claim           the client                                  in the grace period
//	NULL, FH        opens a file                                GRACE
//	PREVIOUS        reclaims an open after a server restart     OK; NO_GRACE afterwards
//	DELEGATE_CUR,   tells the server of an open that it made    GRACE
//	DELEG_CUR_FH    locally, before it returns the delegation
//
// If a step after step 2 fails, a file that step 2 has made stays. Nothing fails after step 7:
// admit has made sure before that the longest result fits into the reply.
func (k *compound) openFile(a *openArgs) nfs.Status {
	switch {
	case a.access == 0, a.deny > state.Both, a.want&^k.wants() != 0, a.want&wantMask > wantCancel:
		return nfs.ErrInval
	}
	switch a.claim {
	case claimDelegCur:
		if a.create {
			return nfs.ErrInval // a delegated file exists already
		}
	case claimDelegPrev, claimDelegPrevFH:
		return nfs.ErrNotSupp
	}
	if a.fault != nfs.OK {
		return a.fault
	}
	var f opening
	var st nfs.Status
	switch {
	case a.claim == ClaimFH, a.claim == ClaimPrevious, a.claim == claimDelegCurFH:
		f, st = k.openHandle(a)
	case a.create && k.s.state.Grace(k.now):
		// client.Open would refuse as well, but only after openName has made the file.
		st = nfs.ErrGrace
	default:
		f, st = k.openName(a)
	}
	if st != nfs.OK {
		return st
	}
	if st = k.mayOpen(&f, a); st != nfs.OK {
		return st
	}
	// Of the attributes of UNCHECKED4 only a size of 0 applies to a file that exists (RFC 8881
	// section 18.16.3).
	truncate := a.create && !f.made && a.mode == CreateUnchecked && a.set.Size != nil && *a.set.Size == 0
	k.cur = f.file // OPEN replaces the current file handle; an error from here on ends the compound
	if a.claim == claimDelegCur || a.claim == claimDelegCurFH {
		switch st := k.client.HasDelegation(a.delegID, k.file()); st {
		case nfs.OK:
		case nfs.ErrStaleStateID:
			return nfs.ErrBadStateID // OPEN has no STALE_STATEID in any version
		default:
			return st
		}
	}
	if truncate {
		if st := k.beginChange(k.file()); st != nfs.OK {
			return st
		}
	}
	opening := state.Open{
		Owner: a.owner, File: k.file(), Access: a.access, Deny: a.deny,
		Reclaim: a.claim == ClaimPrevious, Turn: k.turn,
	}
	if opening.Pinned, st = k.pin(); st != nfs.OK {
		if a.claim == ClaimNull || a.claim == claimDelegCur {
			st = nfs.ErrJukebox // removed since the lookup: the name may have another file now
		}
		return st
	}
	// JUKEBOX is DELAY: a delegation is being recalled, or a limit is reached. For a limit, await
	// returns false at once.
	got, st := k.client.Open(k.now, &opening)
	for st == nfs.ErrJukebox && k.s.await(opening.File) {
		got, st = k.client.Open(k.now, &opening)
	}
	// A new open owns the pin until it ends. An OPEN that adds to an open ends its pin again.
	if opening.Pinned && (st != nfs.OK || !got.New) {
		k.s.unpin(opening.File)
	}
	if st != nfs.OK {
		return st
	}
	if truncate {
		if !f.truncated {
			if _, err := f.file.x.FS.SetAttr(k.who(&f.file), f.file.h, &blockstore.SetAttr{Size: a.set.Size}, nil); err != nil {
				k.client.Revert(&got)
				return nfs.StatusOf(err)
			}
			f.once.Finished(&f.file.h, false)
		}
		f.set = BitmapOf(AttrSize)
	}
	k.curID = got.ID
	e := &k.c.Res
	at := len(e.B)
	EncodeStateid(e, got.ID)
	f.change.encode(e)
	flags := uint32(resultLocktype)
	if got.Confirm {
		flags |= resultConfirm
	}
	if k.minor > 0 && k.client.Answers() {
		flags |= resultMayNotify
	}
	flagsAt := len(e.B)
	e.Uint32(flags)
	f.set.Encode(e)
	id, ok := k.delegate(a)
	// The client wants no open if it gets a delegation (RFC 9754 section 4). An open that the client
	// had before stays. So does an open that denies something, because a delegation denies nothing.
	if ok && a.want&wantXor != 0 && got.New && a.deny == 0 && a.claim != ClaimPrevious {
		k.client.Revert(&got)
		clear(e.B[at : at+resStateid])
		patch(e, flagsAt, flags|resultNoOpen)
		k.curID = id
	}
	return nfs.OK
}

// openHandle is an OPEN of the current file itself (CLAIM_FH, CLAIM_PREVIOUS, CLAIM_DELEG_CUR_FH).
// It cannot create. A handle of the pseudo file system is a directory: ISDIR.
func (k *compound) openHandle(a *openArgs) (f opening, st nfs.Status) {
	if a.create {
		return f, nfs.ErrInval
	}
	if k.cur.x == nil {
		return f, nfs.ErrIsDir
	}
	f.file = k.cur
	var err error
	f.attr, err = k.cur.x.FS.GetAttr(k.who(&k.cur), k.cur.h)
	return f, nfs.StatusOf(err)
}

// openName is an OPEN of a name in the current directory (CLAIM_NULL, CLAIM_DELEGATE_CUR), which
// may make the file. Lookup and creation are two calls of the store, and other clients may act
// between them. So openName creates with Guarded, and repeats both calls if the name exists by
// then. After 8 attempts the client is answered DELAY, so that two clients that create and remove
// the same name cannot occupy a worker.
//
//	createmode    name is free       name exists
//	none          NOENT              opened
//	UNCHECKED4    made               opened; truncated if the size is 0
//	GUARDED4      made               EXIST
//	EXCLUSIVE4    made               the same verifier: opened as made; otherwise EXIST
//	EXCLUSIVE4_1  as EXCLUSIVE4, with attributes
func (k *compound) openName(a *openArgs) (f opening, st nfs.Status) {
	if st := k.checkName(a.name); st != nfs.OK {
		return f, st
	}
	dir := k.cur
	if dir.node != nil || k.over(&dir, a.name) != nil {
		switch {
		case dir.node == nil, dir.node.child(a.name) != nil:
			return f, nfs.ErrIsDir
		case a.create:
			return f, nfs.ErrROFS
		}
		return f, nfs.ErrNoEnt
	}
	f.file = object{x: dir.x, rule: dir.rule}
	if a.create {
		if st := dir.changeable(); st != nfs.OK {
			return f, st
		}
		f.once = k.onceOpen(a)
		exclusive := a.mode == createExclusive || a.mode == CreateExclusive41
		if st := k.prepareNew(&dir, &a.set, false, exclusive); st != nfs.OK {
			return f, st
		}
		if exclusive {
			return f, k.makeExclusive(&dir, a, &f)
		}
	}
	fs, who := dir.x.FS, k.who(&dir)
	// Between Lookup and Create another client may make the file or remove it.
	for i := range 8 {
		d, err := fs.GetAttr(who, dir.h)
		if err != nil {
			return f, nfs.StatusOf(err)
		}
		f.change = changeInfo{before: changeOf(&d), after: changeOf(&d)}
		f.file.h, f.attr, err = fs.Lookup(who, dir.h, a.name)
		found := k.within(&dir, err)
		if i == 0 && a.create && (found == nfs.OK || found == nfs.ErrNoEnt) {
			if yes, err := k.openedBefore(&dir, a, &f, found == nfs.OK); yes {
				return f, nfs.StatusOf(err)
			}
		}
		switch {
		case found == nfs.OK && a.create && a.mode == CreateGuarded:
			return f, nfs.ErrExist
		case found != nfs.ErrNoEnt || !a.create:
			return f, found
		}
		event := nfs.DirEvent{Added: a.name}
		if st := k.beginDir(&dir, &event); st != nfs.OK {
			return f, st
		}
		var w blockstore.Wcc
		f.file.h, f.attr, w, err = fs.Create(who, dir.h, a.name, blockstore.Guarded, &a.set.SetAttr, [VerifierLen]byte{})
		if err == nil {
			k.dirChanged(&dir, &event)
			f.made, f.set, f.change = true, a.attrs, k.changed(&dir, &w)
			k.setNew(&f.file, &a.set, false, &f.set)
			f.once.Finished(&f.file.h, true)
			return f, nfs.OK
		}
		if st := nfs.StatusOf(err); st != nfs.ErrExist {
			return f, st
		}
	}
	return f, nfs.ErrJukebox
}

// openedBefore reports whether an earlier execution of this OPEN, before the server was killed,
// made the file. The journal (once.go) has a record of the OPEN if the server was killed between
// the creation and the reply. Without the record, a repeated GUARDED4 would be EXIST for the
// client's own file. err says that the file could not be made stable.
func (k *compound) openedBefore(dir *object, a *openArgs, f *opening, found bool) (yes bool, err error) {
	h := &f.file.h
	if !found {
		h = nil
	}
	made, finished := f.once.Opened(h)
	f.truncated = finished && !made
	if !made || f.attr.Type != blockstore.TypeReg || !finished && !k.who(dir).Owns(&f.attr) {
		return false, nil // another client made it after the kill
	}
	f.made, f.set, f.change = true, a.attrs, k.changed(dir, &blockstore.Wcc{})
	// The Linux client believes that it made the file only if the change attribute of the directory
	// differs. Otherwise it would check the mode.
	f.change.before = f.change.after - 1
	if !finished {
		err = f.once.Complete(k.who(dir), dir.h, f.file.h, &f.attr, &a.set.SetAttr)
		k.setNew(&f.file, &a.set, false, &f.set)
	}
	return true, err
}

// timesSet is added to the attrset of an exclusive OPEN. A store may keep the verifier in the times
// of the file. attrset tells the client so, and it sets both times by SETATTR (RFC 8881 section
// 18.16.3).
var timesSet = BitmapOf(AttrTimeAccess, AttrTimeModify)

// makeExclusive makes a file once for each verifier, however often the OPEN is repeated, and sets
// the attributes of EXCLUSIVE4_1 afterwards. If that fails the file stays, and a retry with the
// same verifier finds it and sets the attributes.
func (k *compound) makeExclusive(dir *object, a *openArgs, f *opening) nfs.Status {
	fs, who := dir.x.FS, k.who(dir)
	// A server that was killed may have lost the verifier, and a WRITE overwrites the times in which
	// it is kept. So the journal is asked first.
	if f.once.Call.Journaled() {
		var err error
		f.file.h, f.attr, err = fs.Lookup(who, dir.h, a.name)
		if yes, err := k.openedBefore(dir, a, f, err == nil); yes {
			f.set = f.set.or(timesSet)
			return nfs.StatusOf(err)
		}
	}
	event := nfs.DirEvent{Added: a.name}
	if st := k.beginDir(dir, &event); st != nfs.OK {
		return st
	}
	h, attr, w, err := fs.Create(who, dir.h, a.name, blockstore.Exclusive, &blockstore.SetAttr{}, a.verf)
	if err != nil {
		return k.within(dir, err)
	}
	k.dirChanged(dir, &event)
	if !who.Owns(&attr) {
		// The times of another user's file happen to equal the verifier: it is opened as any other.
		f.file.h, f.attr, f.change = h, attr, k.changed(dir, &w)
		return nfs.OK
	}
	if a.set.SetAttr != (blockstore.SetAttr{}) {
		sw, err := fs.SetAttr(who, h, &a.set.SetAttr, nil)
		if err != nil {
			return nfs.StatusOf(err)
		}
		if sw.Post.Known {
			attr = sw.Post.Attr
		}
	}
	f.file.h, f.attr, f.change = h, attr, k.changed(dir, &w)
	f.made, f.set = true, a.attrs.or(timesSet)
	k.setNew(&f.file, &a.set, false, &f.set)
	f.once.Finished(&h, true)
	return nfs.OK
}

// mayOpen checks the type of a file, and the caller's access to it. A client that has just made a
// file may open it whatever the mode is, as with O_CREAT of open(2). The owner may open a file
// again by its handle, because a client reclaims its opens in this way, and the mode may have
// changed since.
func (k *compound) mayOpen(f *opening, a *openArgs) nfs.Status {
	switch f.attr.Type {
	case blockstore.TypeReg:
	case blockstore.TypeDir:
		return nfs.ErrIsDir
	default:
		return nfs.ErrSymlink // also for special files: the Linux client does not know WRONG_TYPE here
	}
	// To deny others reading, the caller needs the permission to write, as with the Linux server.
	// Otherwise any reader of a file could keep all others from it.
	writing := a.access&state.Write != 0 || a.deny&state.Read != 0
	if writing && f.file.readOnly() {
		return nfs.ErrROFS
	}
	if f.made || a.claim != ClaimNull && k.who(&f.file).Owns(&f.attr) {
		return nfs.OK
	}
	const reads, writes = blockstore.AccessRead | blockstore.AccessExecute, blockstore.AccessModify
	got, _, err := f.file.x.FS.Access(k.who(&f.file), f.file.h, reads|writes)
	switch {
	case err != nil:
		return nfs.StatusOf(err)
	case a.access&state.Read != 0 && got&reads == 0, writing && got&writes == 0:
		return nfs.ErrAcces // executing a file requires reading it
	}
	return nfs.OK
}
