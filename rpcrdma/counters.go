package rpcrdma

import (
	"net/netip"
	"sync/atomic"
	"time"
)

// counter is the number of a counter of events.
type counter uint8

const (
	recvMsg counter = iota
	recvNoMsg
	recvMsgP
	recvDone
	recvError
	sentMsg
	sentNoMsg
	sentError
	sentInvalidate
	sentBackward
	recvBackward
	messagesEnd

	errShort counter = iota - 1 // the first after the messages
	errVersion
	errMalformed
	errTooComplex
	errPosition
	errCallTooLong
	errReplyTooLong
	errXID
	errObsolete
	errBackward
	errReadFailed
	errWriteFailed
	errSendFailed
	errPeerSilent
	errReceiveFailed
	errConnRefused
	errNotMoved
	errMemoryWait
	errSendQueueWait
	errSlow
	throttled
	creditsCut
	creditsShort
	countersEnd
)

var counterNames = [countersEnd]string{
	recvMsg: "recv_rdma_msg", recvNoMsg: "recv_rdma_nomsg", recvMsgP: "recv_rdma_msgp", recvDone: "recv_rdma_done",
	recvError: "recv_rdma_error",
	sentMsg:   "sent_rdma_msg", sentNoMsg: "sent_rdma_nomsg", sentError: "sent_rdma_error",
	sentInvalidate: "sent_with_invalidate",
	sentBackward:   "sent_backward_call", recvBackward: "recv_backward_reply",

	errShort: "rpcrdma_short_message", errVersion: "rpcrdma_version_mismatch", errMalformed: "rpcrdma_malformed_header",
	errTooComplex: "rpcrdma_too_many_segments", errPosition: "rpcrdma_bad_read_position",
	errCallTooLong:  "rpcrdma_call_too_long",
	errReplyTooLong: "rpcrdma_reply_too_long", errXID: "rpcrdma_xid_mismatch", errObsolete: "rpcrdma_obsolete_message",
	errBackward: "rpcrdma_backward_message", errReadFailed: "rpcrdma_read_failed", errWriteFailed: "rpcrdma_write_failed",
	errSendFailed: "rpcrdma_send_failed", errPeerSilent: "rpcrdma_peer_silent",
	errReceiveFailed: "rpcrdma_receive_failed", errConnRefused: "rpcrdma_connection_refused",
	errNotMoved: "rpcrdma_not_handed_over", errMemoryWait: "rpcrdma_waited_for_memory",
	errSendQueueWait: "rpcrdma_waited_for_send_queue",
	errSlow:          "rpcrdma_slow_client", throttled: "rpcrdma_waited_for_limit",
	creditsCut:   "rpcrdma_credits_lowered_by_limit",
	creditsShort: "rpcrdma_credits_lowered_by_memory",
}

// counters are shared by the connections of a Listener, whatever their loops.
type counters struct {
	n                             [countersEnd]atomic.Uint64
	writeBytes, readBytes, inline atomic.Uint64
	connections, lent             atomic.Uint64
}

func (c *counters) add(k counter) { c.n[k].Add(1) }

// Stats are the counts of a Listener since its start.
type Stats struct {
	// RDMAWriteBytes were written to memory of clients by RDMA WRITE. RDMAReadBytes were read
	// from it by RDMA READ.
	RDMAWriteBytes, RDMAReadBytes uint64
	// LentBytes of the RDMAWriteBytes were sent from borrowed memory, without a copy.
	LentBytes uint64
	// InlineBytes were in messages sent and received, headers included.
	InlineBytes uint64
	// Connections were accepted.
	Connections uint64
	// MemoryInUse is the bulk memory of calls in progress, in bytes.
	MemoryInUse uint64
	// Messages counts messages by direction and type. Errors counts errors and waits by kind.
	Messages, Errors map[string]uint64
}

// stats reads the counters. They are read one after the other, while loops count.
func (c *counters) stats() Stats {
	s := Stats{
		RDMAWriteBytes: c.writeBytes.Load(), RDMAReadBytes: c.readBytes.Load(),
		InlineBytes: c.inline.Load(), LentBytes: c.lent.Load(),
		Connections: c.connections.Load(), Messages: make(map[string]uint64), Errors: make(map[string]uint64),
	}
	for k := range c.n {
		m := s.Errors
		if counter(k) < messagesEnd {
			m = s.Messages
		}
		m[counterNames[k]] = c.n[k].Load()
	}
	return s
}

// ConnInfo describes a connection of a Listener.
type ConnInfo struct {
	Remote, Local netip.AddrPort
	Since         time.Time
	Calls         uint64
	// Credits is the last grant to the client. InUse is the number of its calls in progress.
	Credits, InUse int
	// Memory is the bulk memory of those calls in bytes.
	Memory int
	// ReadDepth is the number of RDMA READs that may be in flight.
	ReadDepth int
	// InlineIn and InlineOut are the longest messages in bytes.
	InlineIn, InlineOut int
	// RDMAWriteBytes and RDMAReadBytes are the bytes moved by chunks of this client.
	RDMAWriteBytes, RDMAReadBytes uint64
	// RemoteInvalidation says that replies may invalidate the client's R_Key.
	RemoteInvalidation bool
}

// info describes the connection. It runs on any goroutine, so it reads atomics and constants only.
func (c *serverConn) info() ConnInfo {
	return ConnInfo{
		Remote: c.peer.Addr, Local: c.peer.Local, Since: c.since, Calls: c.calls.Load(),
		Credits: int(c.creditsNow.Load()), InUse: int(c.activeNow.Load()), Memory: int(c.bulkNow.Load()),
		ReadDepth: int(c.ords.Load()), InlineIn: c.l.cfg.Receive, InlineOut: c.inlineOut,
		RDMAWriteBytes: c.writeBytes.Load(), RDMAReadBytes: c.readBytes.Load(), RemoteInvalidation: c.peerInval,
	}
}
