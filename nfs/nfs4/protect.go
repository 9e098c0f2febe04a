package nfs4

import (
	"github.com/rstored/rstored/nfs/state"
	"github.com/rstored/rstored/rpcrdma/xdr"
)

// State protection (state_protect_how4). Package state applies it.
const (
	protectNone     = 0
	protectMachCred = 1
	protectSSV      = 2
)

// mustEnforce has the operations that only the machine may send. mayAllow has those that the
// machine may send with any flavor, if the client asks for that in EXCHANGE_ID. Bit n is operation
// n. Both sets are those of knfsd: the Linux client does without state protection if a server
// enforces more (nfs4_sp4_select_mode).
const (
	mustEnforce = 1<<OpBindConnToSession | 1<<OpExchangeID | 1<<OpCreateSession | 1<<OpDestroySession |
		1<<OpDestroyClientID
	mayAllow = 1<<OpClose | 1<<OpOpenDowngrade | 1<<OpLockU | 1<<OpDelegReturn | 1<<OpTestStateID | 1<<OpFreeStateID
)

// decodeProtection reads a state_protect_ops4, and returns the part that the server grants. The
// server enforces mustEnforce and nothing else that the client wants enforced; the result says so
// (RFC 8881 section 18.35.3).
func decodeProtection(d *xdr.Decoder) *state.Protection {
	decodeOps(d)
	return &state.Protection{Allow: decodeOps(d) & mayAllow}
}

// decodeOps reads a bitmap4 of operations. It drops numbers from 64 on: none of them can be
// granted.
func decodeOps(d *xdr.Decoder) uint64 {
	b, _ := DecodeBitmap(d)
	return uint64(b[1])<<32 | uint64(b[0])
}

// encodeProtection appends a state_protect4_r.
func encodeProtection(e *xdr.Encoder, p *state.Protection) {
	if p == nil {
		e.Uint32(protectNone)
		return
	}
	e.Uint32(protectMachCred)
	for _, ops := range [...]uint64{mustEnforce, p.Allow} {
		e.Uint32s(2, uint32(ops), uint32(ops>>32))
	}
}

// cleansUp reports whether a call may enter an export although the export does not accept the
// call's flavor. That is so if the caller is the machine of a client with state protection, and the
// call releases state: the credential of the user may have expired. With krb5i the Linux client
// always closes files in this way.
//
//	SEQUENCE PUTFH [GETATTR] CLOSE, DELEGRETURN, LOCKU or OPEN_DOWNGRADE
//
// PUTFH calls cleansUp before anything else is decoded. The rest of the compound can contain only
// such operations and GETATTR; see admit.
func (k *compound) cleansUp() bool {
	if k.client == nil || k.op != OpPutFH {
		return false
	}
	d := k.c.Args
	next := d.Uint32()
	if next == OpGetAttr {
		decodeOps(&d)
		next = d.Uint32()
	}
	if d.Err() != nil || !k.client.Allows(k.by(), next) {
		return false
	}
	k.cleaning = true
	return true
}
