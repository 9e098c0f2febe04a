package nfs4

import (
	"github.com/rstored/rstored/nfs"
	"github.com/rstored/rstored/rpcrdma/xdr"
)

// Once reports whether a compound of version 4.0 has to go through the duplicate request cache:
// whether it contains an operation that must not be executed twice. Reads, lookups and WRITEs may
// be. Later versions have sessions for that. It only looks at the arguments, which may be anything,
// and stops at the first operation that it does not know: the whole compound goes through the cache
// then.
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
