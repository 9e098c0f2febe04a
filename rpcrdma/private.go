package rpcrdma

import "encoding/binary"

// The private message of RFC 8797 is in the private data of REQ and REP. It says how long messages
// may be, and whether the peer may invalidate R_Keys:
//
//	 0                   1                   2                   3
//	 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//	|                     Magic = 0xf6ab0e18                        |
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//	|  Version = 1  |   reserved  |R|   Send size   | Receive size  |
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//
//	R: the sender supports remote invalidation   sizes: in units of 1024 bytes, minus one

const (
	privateMagic   = 0xf6ab0e18
	privateVersion = 1
	privateLen     = 8
	// flagRemoteInval is R: bit 15 as RFC 8797 counts, bit 0 of the second byte.
	flagRemoteInval = 1
	sizeUnit        = 1024
	sizeMax         = 256 * sizeUnit

	// DefaultInline is the longest message in bytes to a peer that sent no
	// private message (RFC 8166 section 3.3.3).
	DefaultInline = 1024
)

// PrivateMessage describes one side of a connection. Sizes are in bytes, multiples of 1024 from 1
// to 256 KiB, of whole messages with their transport headers. A side without the message sends and
// receives 1024 bytes, and its R_Keys are not invalidated. The longest message in a direction is
// the smaller one of what the sender sends and the receiver receives.
type PrivateMessage struct {
	RemoteInvalidation bool // the peer may use SEND with invalidate
	Send               int  // longest message it will send
	Receive            int  // longest message it can receive
}

// ParsePrivate looks for a private message in private data; other data may precede it. Without
// one, or with an unknown version, ok is false and m has the defaults of RFC 8166 section 3.3.3.
// The search is bounded by the private data of a REQ or REP, at most 196 bytes. A forged message
// can only lower the sizes that this side uses: the owner takes the smaller one of both sides.
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

// Append appends the encoded message to b. Sizes are rounded down to the units of the message.
func (m PrivateMessage) Append(b []byte) []byte {
	flags := byte(0)
	if m.RemoteInvalidation {
		flags = flagRemoteInval
	}
	b = appendWords(b, privateMagic)
	return append(b, privateVersion, flags, sizeCode(m.Send), sizeCode(m.Receive))
}

func sizeCode(n int) byte { return byte(inlineSize(n)/sizeUnit - 1) }

// inlineSize is the size of a message that is nearest to n, of those that a private message can name
// and that are not longer than n.
func inlineSize(n int) int { return min(max(n, sizeUnit), sizeMax) / sizeUnit * sizeUnit }

// inlineWrite is the longest call between ends of this package: 4096 bytes of data and their
// headers. The data of a longer WRITE is fetched by RDMA READ, which costs a round trip.
const inlineWrite = 5 * sizeUnit
