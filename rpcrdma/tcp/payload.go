package tcp

import "sync"

// Payload memory comes in two sizes. New memory would be cleared for each call.
var (
	smallPayloads = sync.Pool{New: func() any { b := make([]byte, 64<<10); return &b }}
	largePayloads = sync.Pool{New: func() any { b := make([]byte, 1<<20); return &b }}
)

// payloadsMax bounds the bulk results of one call.
const payloadsMax = 8

// alloc is rpc.Call.Alloc. The memory belongs to the call until it is recycled.
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
