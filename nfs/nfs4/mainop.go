package nfs4

// Counters and latencies are kept by operation, but a call is a whole compound. A client sends a
// compound for the sake of one operation. The others lead to it, or fetch attributes afterwards:
//
//	SEQUENCE PUTFH OPEN GETFH ACCESS GETATTR    an OPEN
//	SEQUENCE PUTFH LOOKUP GETFH GETATTR         a LOOKUP
//	SEQUENCE PUTFH GETATTR                      a GETATTR
//	SEQUENCE                                    a SEQUENCE: the client renews its lease
//
// weights says how much each operation tells about the purpose of a compound: 1 for SEQUENCE, 2 for
// file handles, 3 for attributes, 4 for ACCESS and lookups, 5 for all others. The first operation
// with the greatest weight names the call. Operations behind a failed one do not count.
var weights = func() (w [numOps]uint8) {
	for i := range w {
		w[i] = 5
	}
	w[OpSequence] = 1
	for _, op := range []uint32{OpPutFH, OpPutPubFH, OpPutRootFH, OpGetFH, OpSaveFH, OpRestoreFH} {
		w[op] = 2
	}
	w[OpGetAttr], w[OpVerify], w[OpNVerify] = 3, 3, 3
	w[OpAccess], w[OpLookup], w[OpLookupP] = 4, 4, 4
	return w
}()

// OperationName returns the name of an operation by its number in rpc.CallMeta. It is empty for a
// number of no operation.
func OperationName(op uint32) string {
	if op >= numOps {
		return ""
	}
	return table[op].name
}

// Operations is greater than every operation number. An observer sizes its arrays by it.
const Operations = numOps
