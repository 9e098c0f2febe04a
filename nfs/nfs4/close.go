package nfs4

import (
	"github.com/rstored/rstored/nfs"
	"github.com/rstored/rstored/nfs/state"
)

// closeFile is CLOSE (RFC 8881 section 18.2, RFC 7530 section 16.2): seqid, open_stateid. In a
// session its result is the invalid special stateid (RFC 8881 section 8.2.3), so a client that uses
// the result gets BAD_STATEID.
//
// CLOSE ends the open, its pin and its byte-range locks. (The RFC also allows to refuse with
// LOCKS_HELD.) CLOSE does not return a delegation. It does not make data stable either: that is the
// task of COMMIT.
func closeFile(k *compound) nfs.Status {
	d := &k.c.Args
	seq := d.Uint32()
	id := k.stateid(DecodeStateid(d))
	if done, st := k.takeTurn(id, state.OfOpen, seq); done {
		return st
	}
	if k.minor == 0 {
		return k.stated(k.client.Close40(k.turn, id, k.file()))
	}
	return k.stated(state.Invalid, k.client.Close(id, k.file()))
}

// openDowngrade is OPEN_DOWNGRADE (RFC 8881 section 18.18, RFC 7530 section 16.19): open_stateid,
// seqid, share_access, share_deny. The stateid comes first, unlike in CLOSE. The want bits of
// share_access have no effect. Access and deny have to be unions of modes that earlier OPENs named
// (state.Client.Downgrade): anything else is INVAL, so a client cannot upgrade here.
func openDowngrade(k *compound) nfs.Status {
	d := &k.c.Args
	id := k.stateid(DecodeStateid(d))
	seq := d.Uint32()
	access, deny := d.Uint32(), d.Uint32()
	if k.minor > 0 {
		access &^= k.wants()
	}
	if done, st := k.takeTurn(id, state.OfOpen, seq); done {
		return st
	}
	if access == 0 || access > state.Both || deny > state.Both {
		return nfs.ErrInval
	}
	return k.stated(k.client.Downgrade(id, k.file(), access, deny))
}
