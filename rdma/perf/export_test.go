package perf

// EncodeRequest makes the private data of a REQ.
func EncodeRequest(op Op, flags uint8, size uint32, depth, qps uint16) []byte {
	return (&request{run: 1, op: op, test: flags, size: size, depth: depth, qps: qps}).encode()
}

// EncodeMessage makes a message between the ends.
func EncodeMessage(k uint8, seq, size uint32, count uint64) []byte {
	b := make([]byte, messageLen)
	(&message{kind: kind(k), seq: seq, size: size, count: count}).encode(b)
	return b
}
