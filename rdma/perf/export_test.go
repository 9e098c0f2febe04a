package perf

// EncodeRequest makes the private data of a REQ.
func EncodeRequest(op Op, flags uint8, size uint32, depth, qps uint16) []byte {
	return (&request{op, flags, requestBody{Run: 1, Size: size, Depth: depth, QPs: qps}}).encode()
}

// EncodeMessage makes a message between the ends.
func EncodeMessage(k uint8, seq, size uint32, count uint64) []byte {
	b := make([]byte, messageLen)
	(&message{kind(k), messageBody{Seq: seq, Size: size, Count: count}}).encode(b)
	return b
}
