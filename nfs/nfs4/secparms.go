package nfs4

import (
	"github.com/rstored/rstored/rpcrdma/gss"
	"github.com/rstored/rstored/rpcrdma/rpc"
	"github.com/rstored/rstored/rpcrdma/xdr"
)

// decodeSecParms reads the callback_sec_parms4 of a session, and returns the first credential that
// the server can use for callbacks. ok is false if there is none. RPCSEC_GSS is not used in
// sessions, because no client answers it.
func decodeSecParms(d *xdr.Decoder) (cred *rpc.Cred, ok bool) {
	n := d.Uint32()
	if n > secParmsMax {
		d.Fail(xdr.ErrLength)
		return nil, false
	}
	ok = n == 0
	for range n {
		switch d.Uint32() {
		case uint32(rpc.AuthNone):
			ok = true
		case uint32(rpc.AuthSys):
			c := &rpc.Cred{Flavor: rpc.AuthSys}
			d.Uint32() // stamp
			c.Machine = d.String(rpc.MachineNameMax)
			c.UID, c.GID = d.Uint32(), d.Uint32()
			g := d.Uint32()
			if g > rpc.GroupsMax {
				d.Fail(xdr.ErrLength)
				return nil, false
			}
			for range g {
				c.Groups = append(c.Groups, d.Uint32())
			}
			if !ok {
				cred, ok = c, true
			}
		case gss.Flavor:
			if s := gss.Service(d.Uint32()); s < gss.None || s > gss.Privacy {
				d.Fail(xdr.ErrValue)
			}
			d.Opaque(OwnerMax)
			d.Opaque(OwnerMax)
		default:
			d.Fail(xdr.ErrValue)
		}
		if d.Err() != nil {
			return nil, false
		}
	}
	return cred, ok
}
