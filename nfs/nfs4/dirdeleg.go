package nfs4

import (
	"errors"

	"github.com/rstored/rstored/blockstore"
	"github.com/rstored/rstored/nfs"
	"github.com/rstored/rstored/nfs/lock"
	"github.com/rstored/rstored/nfs/state"
	"github.com/rstored/rstored/rpcrdma/xdr"
)

// gddrnf4_status.
const (
	dirDelegated   = 0
	dirUnavailable = 1
)

// Bits of notify_type4 that are no kinds of changes but describe the client: NOTIFY4_GFLAG_EXTEND
// and NOTIFY4_CFLAG_ORDER of the draft of the successor of RFC 8881.
const (
	noticeExtend = 1 << 6
	noticeOrder  = 1 << 12
)

// dirDelegResult is the longest result of GET_DIR_DELEGATION in bytes: status, verifier, stateid,
// notifications, and two bitmaps without attributes.
const dirDelegResult = 4 + VerifierLen + resStateid + 8 + 4 + 4

// getDirDelegation is GET_DIR_DELEGATION (RFC 8881 section 18.39). Its arguments and its result:
//
//	arguments  signal_deleg_avail                     bool
//	           notification_types                     bitmap4
//	           child_attr_delay, dir_attr_delay       nfstime4
//	           child_attributes, dir_attributes       bitmap4
//	result     GDD4_OK       cookieverf, stateid, notifications, child and dir attributes
//	           GDD4_UNAVAIL  bool: the server will signal
//
// The server notifies the client of names alone: of entries that are removed, added or renamed, as
// far as the client asks for these. Notifications have neither attributes nor cookies, so the
// verifier of cookies is zero.
//
// The notifications of RFC 8881 are for clients that cache the cookies of entries. So a client gets
// notifications only if it declares that it does without cookies (noticeExtend) and does not need
// the order of entries (noticeOrder). The Linux server does the same. Any other client gets a
// delegation that each change recalls.
//
// The caller must be allowed to list the directory, because it learns the names in it. If the store
// cannot report changes by others, the server grants no delegation.
func getDirDelegation(k *compound) nfs.Status {
	d := &k.c.Args
	d.Bool() // signal_deleg_avail
	notices, _ := DecodeBitmap(d)
	for range 2 {
		d.Skip(8 + 4)
	}
	DecodeBitmap(d)
	DecodeBitmap(d)
	if k.bad() {
		return nfs.ErrBadXDR
	}
	e := &k.c.Res
	asked := notices[0] & (state.DirNotices | noticeExtend)
	if notices[0]&noticeExtend == 0 || notices[0]&noticeOrder != 0 {
		asked = 0
	}
	got, ok := state.Delegated{}, false
	if k.cur.x != nil {
		var st nfs.Status
		if got, ok, st = k.giveDir(asked); st != nfs.OK {
			return st
		}
	}
	if !ok {
		e.Uint32(dirUnavailable)
		e.Bool(false) // no callback follows
		return nfs.OK
	}
	e.Uint32(dirDelegated)
	e.Uint64(0)
	k.curID = got.ID // an operation that returns a stateid sets the current one (section 16.2.3.1.2)
	EncodeStateid(e, got.ID)
	Bitmap{asked}.Encode(e)
	Bitmap{}.Encode(e)
	Bitmap{}.Encode(e)
	return nfs.OK
}

// giveDir grants a delegation of the current directory. As for a file, package state reserves the
// delegation first. Then the store is asked to watch the directory.
func (k *compound) giveDir(notices uint32) (got state.Delegated, ok bool, st nfs.Status) {
	fs, who, h := k.cur.x.FS, k.who(&k.cur), k.cur.h
	rights, a, err := fs.Access(who, h, blockstore.AccessRead)
	switch {
	case err != nil:
		return got, false, nfs.StatusOf(err)
	case a.Type != blockstore.TypeDir:
		return got, false, nfs.ErrNotDir
	case rights&blockstore.AccessRead == 0:
		return got, false, nfs.ErrAcces
	}
	got, why := k.client.DelegateDir(k.now, k.file(), notices, k.origin())
	k.recallAnyIfCrowded(&got)
	if why != state.Given {
		return got, false, nfs.OK
	}
	s, f := k.s, k.file()
	x, ok := fs.(blockstore.DirWatcher)
	if !ok {
		return got, true, nfs.OK
	}
	stop, err := x.WatchDir(h, func() { s.wanted(f) })
	if err != nil {
		_ = k.client.ReturnDelegation(got.ID, f) // an error says that the delegation has ended already
		if !errors.Is(err, blockstore.ErrNotSupp) {
			st = nfs.StatusOf(err)
		}
		return got, false, st
	}
	if stop != nil {
		k.client.Leased(got.ID, f, stop)
	}
	return got, true, nfs.OK
}

// noticesOf returns the kinds of notifications that describe a change.
func noticesOf(e *nfs.DirEvent) uint32 {
	switch {
	case e.Removed != "" && e.Added != "":
		return state.NoticeRename
	case e.Removed != "":
		return state.NoticeRemove
	}
	return state.NoticeAdd
}

// beginDir is beginChange for a change of the entries of a directory. An operation calls it before
// it changes anything, and dirChanged after it.
func (k *compound) beginDir(dir *object, e *nfs.DirEvent) nfs.Status {
	return k.begin(lock.File{Export: dir.x.ID, Handle: dir.h}, noticesOf(e))
}

func (k *compound) dirChanged(dir *object, e *nfs.DirEvent) {
	k.s.dirChanged(lock.File{Export: dir.x.ID, Handle: dir.h}, e)
}

// encodeNotice appends a notify4 (RFC 8881 section 20.4.1): the kind as a bitmap, and its value as
// an opaque. An entry is a name without attributes.
//
//	REMOVE  notify_remove4  entry, cookie
//	ADD     notify_add4     replaced entries, entry, cookies, previous entries, whether it is last
//	RENAME  notify_rename4  notify_remove4, notify_add4
func encodeNotice(e *xdr.Encoder, v *nfs.DirEvent) {
	Bitmap{noticesOf(v)}.Encode(e)
	at := len(e.B)
	e.Uint32(0)
	if v.Removed != "" {
		encodeRemoved(e, v.Removed)
	}
	if v.Added != "" {
		if e.Bool(v.Replaced); v.Replaced { // an array of 0 or 1
			encodeRemoved(e, v.Added)
		}
		encodeEntry(e, v.Added)
		e.Uint32(0) // no cookie
		e.Uint32(0) // the entry before it is not known
		e.Bool(false)
	}
	patch(e, at, uint32(len(e.B)-at-4))
}

func encodeEntry(e *xdr.Encoder, name string) {
	e.String(name)
	Bitmap{}.Encode(e)
	e.Uint32(0)
}

func encodeRemoved(e *xdr.Encoder, name string) {
	encodeEntry(e, name)
	e.Uint64(0) // its cookie: READDIR has to start again
}
