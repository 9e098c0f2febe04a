package nfs4

import (
	"github.com/rstored/rstored/nfs"
	"github.com/rstored/rstored/rpcrdma/xdr"
)

// Once reports whether a compound of version 4.0 has to go through the duplicate request cache:
// whether it contains an operation that must not be executed twice. Later versions have sessions
// for that (RFC 8881 section 2.10.6). Once only looks at the arguments, which may be anything. It
// stops at the first operation that it does not know, and the whole compound then goes through the
// cache.
//
//	may be executed twice   all that reads, and WRITE, COMMIT, RENEW
//	cached                  CLOSE, CREATE, LINK, LOCK, OPEN, REMOVE, RENAME, SETATTR, ...
//
// The cache would have to copy the data of READ and READDIR for each call. A WRITE that is executed
// twice writes the same bytes to the same place. Its second execution may overwrite a later write
// of another client, as in version 3. The limits of the items are those of the handlers: a longer
// item fails there too, and what the compound did before needs no cache.
//
// Once looks at no more than opsMax operations. The compound ends there (RESOURCE).
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
