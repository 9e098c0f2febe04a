package nfs4

import (
	"time"

	"github.com/rstored/rstored/blockstore"
	"github.com/rstored/rstored/nfs"
	"github.com/rstored/rstored/nfs/state"
	"github.com/rstored/rstored/rpcrdma/xdr"
)

// setAttr is SETATTR (RFC 8881 section 18.30, RFC 7530 section 16.32).
//
//	arguments  stateid4 | fattr4
//	result     bitmap4 attrsset, whatever the status is
//
// The loop appends an empty bitmap to a failure that sets nothing. SETATTR is not atomic: if the
// ACL fails after the other attributes were set, the result has the error and the bitmap of the
// others (section 18.30.4). With an OK status the bitmap is always that of the argument.
//
// The order of the checks is: XDR, attributes and values, read-only export, stateid of a new size,
// delegations of others, ACL mapping. Nothing is changed before all have passed.
//
// The stateid counts only if the size is set. For other attributes a client sends any stateid.
func setAttr(k *compound) nfs.Status {
	if k.minor == 0 && k.client == nil {
		k.c.Intend(nil) // the reply outlives the server, in the duplicate request cache
	}
	id := k.stateid(DecodeStateid(&k.c.Args))
	from := k.c.Args
	s, set, st := k.decodeSetAttr(settableBack)
	if k.bad() {
		return nfs.ErrBadXDR
	}
	if st == nfs.OK {
		st = k.cur.changeable()
	}
	if st == nfs.OK && s.Size != nil {
		st = k.mayResize(id)
	}
	var times state.Times
	if st == nfs.OK {
		times, st = k.mayGiveBack(id, s.deleg)
	}
	// mayResize has reserved the file already if the stateid is a special one.
	if st == nfs.OK && len(k.inChange) == 0 {
		st = k.beginChange(k.file())
	}
	if st != nfs.OK {
		return st
	}
	if st = k.setDelegTimes(times); st != nfs.OK {
		return st
	}
	dir, who := false, k.who(&k.cur)
	if s.acl != nil {
		a, err := k.cur.x.FS.GetAttr(who, k.cur.h)
		if err != nil {
			return nfs.StatusOf(err)
		}
		dir = a.Type == blockstore.TypeDir
		if st := s.prepare(dir); st != nfs.OK {
			return st
		}
	}
	// A repeated call that was completed before the server was killed must not be executed again: a
	// truncation would remove what the client has written since.
	once := k.onceSet(from)
	if _, made := once.Past(); made {
		set.Encode(&k.c.Res)
		return nfs.OK
	}
	if s.acl == nil && s.label == nil && s.deleg == (state.Times{}) || s.SetAttr != (blockstore.SetAttr{}) {
		if _, err := k.cur.x.FS.SetAttr(who, k.cur.h, &s.SetAttr, nil); err != nil {
			return nfs.StatusOf(err)
		}
	}
	if s.acl != nil { // after the mode (section 6.4.1.3)
		if st = k.setACL(&k.cur, s.acl, dir); st != nfs.OK {
			set.clear(AttrACL)
		}
	}
	if s.label != nil {
		if st == nfs.OK {
			st = k.setLabel(&k.cur, s.label)
		}
		if st != nfs.OK {
			set.clear(AttrSecLabel)
		}
	}
	// The note comes before the reply. A kill between the change and the note leaves no note, and the
	// repeated call is executed again. That does no harm: the client has not written since, because it
	// waits for the reply.
	if st == nfs.OK {
		once.Finished(&k.cur.h, false)
	}
	set.Encode(&k.c.Res)
	k.keepResult = true
	return st
}

// mayResize checks the type of the current file and the stateid of a SETATTR of its size, which
// counts as a WRITE: the open must have write access (OPENMODE), and share reservations and
// delegations of others count. Only a regular file has a size that can be set.
func (k *compound) mayResize(id state.Stateid) nfs.Status {
	switch st := k.regular(); {
	case st == nfs.OK:
		return k.ioState(id, true)
	case st == nfs.ErrIsDir && k.minor == 0:
		return st // a status of SETATTR in version 4.0 alone (RFC 7530 section 13.2)
	case st == nfs.ErrIsDir, st == nfs.ErrSymlink, st == nfs.ErrWrongType:
		return nfs.ErrInval
	default:
		return st
	}
}

// fattrMax bounds the values of a fattr4 from a client, in bytes. Longer values are BADXDR. An ACE
// takes at least 20 bytes, so an ACL can have 3276 entries.
const fattrMax = 64 << 10

// decodeSetAttr reads a fattr4 of attributes to be set, all of which must be in allowed. A fattr4
// that does not decode is an error of the call's decoder (BADXDR), which takes precedence.
// Otherwise the status is that of the first attribute with a fault:
//
//	attribute not supported, or a bit beyond Bitmap    ATTRNOTSUPP
//	get-only, not allowed here, mode with mode_umask   INVAL
//	bits of the mode beyond 07777, of the umask 0777   INVAL
//	owner or group unknown                             BADOWNER
//	owner or group of length 0                         INVAL
//	nanoseconds above 999999999                        INVAL
//	label of length 0, or above blockstore.LabelMax    INVAL
//	ACL                                                see decodeACL
//	values shorter or longer than the bitmap says      BADXDR
//
// After a fault the rest is still decoded, because only its end shows whether the XDR is right. The
// pointers in s are to variables of this call. Nothing in s aliases the receive buffer.
//
// time_create is read and then removed from the bitmap: no file system of Linux can set it. The macOS
// client sends it with every exclusive create, and its open fails if SETATTR fails.
//
// The Linux client switches to names of users (idmapping) when it gets BADOWNER. So a number that
// the server does not accept must not be INVAL.
func (k *compound) decodeSetAttr(allowed Bitmap) (s attrSet, set Bitmap, st nfs.Status) {
	d := &k.c.Args
	set, more := DecodeBitmap(d)
	vals := xdr.NewDecoder(d.Opaque(fattrMax))
	if d.Err() != nil {
		return s, set, nfs.OK
	}
	switch {
	case more || !set.without(k.supported(k.cur.x)).empty():
		return s, set, nfs.ErrAttrNotSupp
	case !set.without(allowed).empty(), set.Has(AttrMode) && set.Has(AttrModeUmask):
		return s, set, nfs.ErrInval
	}
	st = nfs.OK
	fault := func(f nfs.Status) {
		if st == nfs.OK {
			st = f
		}
	}
	whole := true // false: decoding of the ACL was given up, and nothing behind it can be read
	set.Each(func(n int) {
		switch n {
		case AttrACL:
			var f nfs.Status
			if s.acl, f, whole = k.decodeACL(&vals); f != nfs.OK {
				fault(f)
			}
		case AttrSize:
			v := vals.Uint64()
			s.Size = &v
		case AttrMode:
			v := vals.Uint32()
			if v&^0o7777 != 0 {
				fault(nfs.ErrInval)
			}
			s.Mode = &v
		case AttrOwner, AttrOwnerGroup:
			name := vals.Opaque(OwnerMax)
			v, ok := k.s.cfg.Names.Parse(name, n == AttrOwnerGroup)
			switch {
			case len(name) == 0:
				fault(nfs.ErrInval) // an empty name is INVAL, as with the Linux server
			case !ok:
				fault(nfs.ErrBadOwner)
			}
			if n == AttrOwner {
				s.UID = &v
			} else {
				s.GID = &v
			}
		case AttrModeUmask:
			v := vals.Uint32()
			s.Mode, s.umask = &v, vals.Uint32()
			if v&^0o7777 != 0 || s.umask&^0o777 != 0 {
				fault(nfs.ErrInval)
			}
		case AttrTimeAccSet:
			s.AtimeHow, s.Atime = decodeSetTime(&vals, fault)
		case AttrTimeCreate:
			if _, ok := decodeTime(&vals); !ok {
				fault(nfs.ErrInval)
			}
		case AttrTimeModSet:
			s.MtimeHow, s.Mtime = decodeSetTime(&vals, fault)
		case AttrSecLabel:
			var f nfs.Status
			if s.label, f = decodeLabel(&vals); f != nfs.OK {
				fault(f)
			}
		case AttrDelegAccess, AttrDelegModify:
			t, ok := decodeTime(&vals)
			if !ok {
				fault(nfs.ErrInval)
			}
			if n == AttrDelegAccess {
				s.deleg.Access = &t
			} else {
				s.deleg.Modify = &t
			}
		}
	})
	if whole && (vals.Err() != nil || vals.Remaining() != 0) {
		d.Fail(xdr.ErrValue)
	}
	set.clear(AttrTimeCreate)
	return s, set, st
}

// decodeSetTime reads a settime4:
//
//	uint32 0  SET_TO_SERVER_TIME4, void: the server's clock
//	uint32 1  SET_TO_CLIENT_TIME4, nfstime4: 12 bytes
//
// Any other word is no member of the union, and an error of the decoder.
func decodeSetTime(d *xdr.Decoder, fault func(nfs.Status)) (blockstore.TimeSet, time.Time) {
	const server, client = 0, 1
	switch d.Uint32() {
	case server:
		return blockstore.TimeServer, time.Time{}
	case client:
		t, ok := decodeTime(d)
		if !ok {
			fault(nfs.ErrInval)
		}
		return blockstore.TimeClient, t
	}
	d.Fail(xdr.ErrValue)
	return blockstore.TimeKeep, time.Time{}
}
