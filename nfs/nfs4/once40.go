package nfs4

import (
	"github.com/rstored/rstored/nfs"
	"github.com/rstored/rstored/rpcrdma/xdr"
)

// Once reports whether a compound of version 4.0 has to be executed once, however often it
// is sent: whether it has more in it than operations that may as well be executed again.
// In later versions that is what sessions are for. It stops at what it does not know.
func Once(d xdr.Decoder) bool {
	d.Opaque(tagMax)
	minor, n := d.Uint32(), d.Uint32()
	if d.Err() != nil || minor > 0 {
		return false
	}
	for range min(n, opsMax) {
		switch d.Uint32() {
		case OpAccess:
			d.Uint32()
		case OpCommit:
			d.Skip(8 + 4)
		case OpGetAttr:
			DecodeBitmap(&d)
		case OpGetFH, OpLookupP, OpPutPubFH, OpPutRootFH, OpReadLink, OpRestoreFH, OpSaveFH:
		case OpLookup, OpSecInfo:
			d.Opaque(nameMax)
		case OpNVerify, OpVerify:
			DecodeBitmap(&d)
			d.Opaque(fattrMax)
		case OpPutFH:
			d.Opaque(FHMax)
		case OpRead:
			d.Skip(resStateid + 8 + 4)
		case OpReadDir:
			d.Skip(8 + VerifierLen + 4 + 4)
			DecodeBitmap(&d)
		case OpRenew:
			d.Skip(8)
		case OpWrite:
			d.Skip(resStateid + 8 + 4)
			d.Bulk(nfs.MaxIO)
		default:
			return d.Err() == nil
		}
	}
	return false
}
