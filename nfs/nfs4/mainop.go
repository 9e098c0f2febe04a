package nfs4

// A compound is called for one of its operations, and the others lead there or look after it:
// SEQUENCE, PUTFH, OPEN, GETFH, ACCESS, GETATTR is an OPEN. weights has how much each operation
// says of what a compound is for; the first with the most does.
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

// OperationName is the name of an operation by its number in rpc.CallMeta, empty if there is
// none.
func OperationName(op uint32) string {
	if op >= numOps {
		return ""
	}
	return table[op].name
}

// Operations is the number of operation numbers: all are lower.
const Operations = numOps
