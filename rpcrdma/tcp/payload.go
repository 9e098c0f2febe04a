package tcp

import "sync"

// Payload memory comes from pools of two sizes. A pool avoids the clearing of new memory for each
// call.
var (
	smallPayloads = sync.Pool{New: func() any { b := make([]byte, 64<<10); return &b }}
	largePayloads = sync.Pool{New: func() any { b := make([]byte, 1<<20); return &b }}
)

// payloadsMax bounds the bulk results of one call.
const payloadsMax = 8

// alloc is rpc.Call.Alloc. The memory belongs to the call until it is recycled.
//
//	n                           memory
//	up to 64 KiB                a buffer of 64 KiB
//	up to 1 MiB                 a buffer of 1 MiB
//	more, or the ninth buffer   nil: the procedure answers with an error or with less
//
// The gate is charged for the whole buffer, because that is what the process has in use.
func (k *call) alloc(n int) []byte {
	if len(k.payload) == payloadsMax {
		return nil
	}
	var p *[]byte
	switch {
	case n <= 64<<10:
		p = smallPayloads.Get().(*[]byte)
	case n <= 1<<20:
		p = largePayloads.Get().(*[]byte)
	default:
		return nil
	}
	k.payload = append(k.payload, p)
	k.charge(len(*p))
	return (*p)[:n]
}

// freePayload takes memory of alloc back.
func freePayload(p *[]byte) {
	if len(*p) <= 64<<10 {
		smallPayloads.Put(p)
	} else {
		largePayloads.Put(p)
	}
}
