package rpcrdma

import (
	"encoding/binary"

	"github.com/rstored/rstored/rdma"
	"github.com/rstored/rstored/rpcrdma/rpc"
)

// FailureDetail is what a Listener adds to the device's post-mortem of a connection: the Detail
// of an rdma.Note.
type FailureDetail struct {
	Calls          uint64
	InProgress     int // calls without a reply
	First, Last    RPC // the zero RPC if there was none
	RDMAWriteBytes uint64
	RDMAReadBytes  uint64
	InlineIn       int // longest messages in bytes
	InlineOut      int
}

// RPC identifies the procedure and the user of a call.
type RPC struct {
	Prog, Vers, Proc uint32
	Flavor           rpc.AuthFlavor
	UID              uint32 // of AUTH_SYS
	HasUID           bool
}

// Offsets in a call, in words: XID, message type, RPC version, program, version,
// procedure, flavor, length of the credential; of AUTH_SYS stamp, length of the
// machine name.
const (
	wordProg   = 3
	wordFlavor = 6
	wordName   = 9
	wordsHead  = 10
)

// parse reads the beginning of a call (RFC 5531 section 9). It is on the path of every call, so it
// reads no more than it needs, and trusts no length.
//
//	word   0    1     2    3     4     5     6       7       8      9          10 ...
//	       XID  CALL  RPC  prog  vers  proc  flavor  length  stamp  name len.  name, UID, ...
//	                                         AUTH_SYS only -------->
func (r *RPC) parse(msg []byte) {
	if len(msg) < 4*wordsHead {
		return
	}
	word := func(i int) uint32 { return binary.BigEndian.Uint32(msg[4*i:]) }
	*r = RPC{
		Prog: word(wordProg), Vers: word(wordProg + 1), Proc: word(wordProg + 2),
		Flavor: rpc.AuthFlavor(word(wordFlavor)),
	}
	if r.Flavor != rpc.AuthSys {
		return
	}
	name := word(wordName)
	if at := 4*wordsHead + (int(name)+3)&^3; name <= rpc.MachineNameMax && at+4 <= len(msg) {
		r.UID, r.HasUID = binary.BigEndian.Uint32(msg[at:]), true
	}
}

// note returns the connection's part of its post-mortem.
func (c *serverConn) note() rdma.Note {
	return rdma.Note{Why: c.why, Detail: FailureDetail{
		Calls: c.calls.Load(), InProgress: c.active, First: c.first, Last: c.last,
		RDMAWriteBytes: c.writeBytes.Load(), RDMAReadBytes: c.readBytes.Load(),
		InlineIn: c.l.cfg.Receive, InlineOut: c.inlineOut,
	}}
}

// refuse rejects a request, and adds the reason to the device's post-mortem. The client sees
// reason 28 (consumer defined). The text stays on the server: private data of a REJ would show it
// to anybody who sends a REQ.
func refuse(req rdma.ConnRequest, why error) {
	if a, ok := req.(rdma.Annotated); ok {
		a.Annotate(func() rdma.Note { return rdma.Note{Why: why.Error()} })
	}
	req.Reject(rejectConsumer, nil)
}
