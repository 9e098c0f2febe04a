package rpcrdma

import "encoding/binary"

// The private message of RFC 8797 tells the peer, in the private data of REQ
// and REP, how long messages may be and whether it may invalidate R_Keys.

const (
	privateMagic   = 0xf6ab0e18
	privateVersion = 1
	privateLen     = 8
	// flagRemoteInval is bit 15 of the flags word's low half as RFC 8797
	// counts; in the byte that the word leaves, bit 0.
	flagRemoteInval = 1
	sizeUnit        = 1024
	sizeMax         = 256 * sizeUnit

	// DefaultInline is the longest message in bytes to a peer that sent no
	// private message (RFC 8166 section 3.3.2).
	DefaultInline = 1024
)

// PrivateMessage is what one side says about itself. Sizes are in bytes,
// multiples of 1024 from 1 to 256 KiB, of whole messages with their transport
// headers.
type PrivateMessage struct {
	RemoteInvalidation bool // the peer may use SEND with invalidate
	Send               int  // longest message it will send
	Receive            int  // longest message it can receive
}

// ParsePrivate looks for a private message in private data, where other data
// may precede it. Without one, or with one of an unknown version, ok is false
// and m holds what RFC 8166 lets one assume.
func ParsePrivate(data []byte) (m PrivateMessage, ok bool) {
	for i := 0; i+privateLen <= len(data); i++ {
		p := data[i:]
		if binary.BigEndian.Uint32(p) != privateMagic {
			continue
		}
		if p[4] != privateVersion {
			break
		}
		return PrivateMessage{
			RemoteInvalidation: p[5]&flagRemoteInval != 0,
			Send:               (int(p[6]) + 1) * sizeUnit,
			Receive:            (int(p[7]) + 1) * sizeUnit,
		}, true
	}
	return PrivateMessage{Send: DefaultInline, Receive: DefaultInline}, false
}

// Append appends the encoded message to b. Sizes are rounded down to what can
// be said.
func (m PrivateMessage) Append(b []byte) []byte {
	flags := byte(0)
	if m.RemoteInvalidation {
		flags = flagRemoteInval
	}
	b = appendWords(b, privateMagic)
	return append(b, privateVersion, flags, sizeCode(m.Send), sizeCode(m.Receive))
}

func sizeCode(n int) byte {
	return byte(min(max(n, sizeUnit), sizeMax)/sizeUnit - 1)
}
