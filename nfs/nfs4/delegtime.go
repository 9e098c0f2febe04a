package nfs4

import (
	"github.com/rstored/rstored/blockstore"
	"github.com/rstored/rstored/nfs"
	"github.com/rstored/rstored/nfs/state"
)

// A client with a write delegation can keep the times of the file (RFC 9754 section 5). It knows
// when its programs read and wrote, while the server sees only its WRITEs, which come later. OPEN
// grants such a delegation to a client that asks for it:
//
//	client with the delegation   server                  other client
//	                                               <---  GETATTR
//	                       <---  CB_GETATTR{change, size, time_deleg_access, time_deleg_modify}
//	attributes             --->
//	                                               --->  attributes with its times
//	SETATTR{time_deleg_access, time_deleg_modify}, DELEGRETURN
//	                       --->  sets the times
//
// A time before the one at the grant, or before one that the client has set since, has no effect. A
// time of the future becomes the present: the client's clock may be wrong.

// mayGiveBack returns those of the times in a SETATTR that count. id is the stateid of the SETATTR.
// If it is not that of a delegation with times, the status is BAD_STATEID.
func (k *compound) mayGiveBack(id state.Stateid, t state.Times) (state.Times, nfs.Status) {
	if t == (state.Times{}) {
		return t, nfs.OK
	}
	t, st := k.client.SetTimes(k.s.cfg.Wall(), id, k.file(), t)
	return t, k.badState(st)
}

// setDelegTimes sets times that count, as the server and not as the caller. The caller may write
// the file, which sets its times to now. But only the owner may set them to any value.
func (k *compound) setDelegTimes(t state.Times) nfs.Status {
	var s blockstore.SetAttr
	if t.Access != nil {
		s.AtimeHow, s.Atime = blockstore.TimeClient, *t.Access
	}
	if t.Modify != nil {
		s.MtimeHow, s.Mtime = blockstore.TimeClient, *t.Modify
	}
	if s == (blockstore.SetAttr{}) {
		return nfs.OK
	}
	_, err := k.cur.x.FS.SetAttr(nil, k.cur.h, &s, nil)
	return nfs.StatusOf(err)
}
