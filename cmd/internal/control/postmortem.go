package control

import "time"

// PostMortem describes an RDMA connection that failed, or a request for one that was refused.
type PostMortem struct {
	// Time is when it happened last, First when it happened first. Repeated refusals of a peer are
	// one entry; Count is their number.
	Time  time.Time `json:"time"`
	First time.Time `json:"first"`
	Count int       `json:"count"`

	Device string `json:"device"`
	// Provider is soft or verbs. For verbs, a device of the kernel, there are requests and events
	// but no packets.
	Provider string `json:"provider"`
	Peer     string `json:"peer"`
	Local    string `json:"local"`
	Outcome  string `json:"outcome"` // refused, rejected, unreachable, not confirmed, broken, dropped
	Reason   string `json:"reason"`  // why, in words
	Reject   uint16 `json:"reject_reason,omitempty"`
	// Hint is what to change.
	Hint string `json:"hint"`

	InterfaceMTU int `json:"interface_mtu"`
	PathMTUMax   int `json:"path_mtu_max"` // that the interface allows
	// Events are those of a device of the kernel.
	Events     *PostMortemEvents `json:"events,omitempty"`
	Request    *PostMortemREQ    `json:"request,omitempty"`
	Connection *PostMortemConn   `json:"connection,omitempty"`
	RPC        *PostMortemCalls  `json:"rpc,omitempty"`
}

// PostMortemREQ are the fields of the connection request.
type PostMortemREQ struct {
	ServiceID          uint64 `json:"service_id"`
	Port               uint16 `json:"port"`
	QPN                uint32 `json:"qpn"`
	PSN                uint32 `json:"psn"`
	PathMTU            int    `json:"path_mtu"`
	ResponderResources uint8  `json:"responder_resources"`
	InitiatorDepth     uint8  `json:"initiator_depth"`
	AckTimeout         uint8  `json:"ack_timeout"` // code: 4.096 us * 2^n
	RetryCount         uint8  `json:"retry_count"`
	RNRRetryCount      uint8  `json:"rnr_retry_count"` // 7 is for ever
	LocalGID           string `json:"local_gid"`       // the sender's
	RemoteGID          string `json:"remote_gid"`
	PrivateData        string `json:"private_data"` // hex, without the addresses of RDMA-CM
	// Private is the message of RFC 8797 in it, if there is one.
	Private *PostMortemPrivate `json:"rpcrdma_private,omitempty"`
}

// PostMortemPrivate is the private message of RFC 8797. Sizes are in bytes.
type PostMortemPrivate struct {
	Send               int  `json:"send"`
	Receive            int  `json:"receive"`
	RemoteInvalidation bool `json:"remote_invalidation"`
}

// PostMortemConn is the connection as it was negotiated, and what happened on it.
type PostMortemConn struct {
	Established   bool   `json:"established"`
	AgeMillis     int64  `json:"age_ms"`
	QPN           uint32 `json:"qpn"`
	PSN           uint32 `json:"psn"` // that the peer was given to start with
	PathMTU       int    `json:"path_mtu"`
	ReadsServed   uint8  `json:"reads_served"`  // RDMA READs of the peer at once
	ReadsStarted  uint8  `json:"reads_started"` // ours
	AckTimeout    uint8  `json:"ack_timeout"`
	RetryCount    uint8  `json:"retry_count"`
	RNRRetryCount uint8  `json:"rnr_retry_count"`
	TxPackets     uint64 `json:"tx_packets"`
	RxPackets     uint64 `json:"rx_packets"`
	Status        string `json:"status,omitempty"` // of the request of ours that failed

	NAKSent     *PostMortemNAK `json:"nak_sent,omitempty"`
	NAKReceived *PostMortemNAK `json:"nak_received,omitempty"`
	RNRSent     *PostMortemNAK `json:"rnr_sent,omitempty"`
	RNRReceived *PostMortemNAK `json:"rnr_received,omitempty"`

	// Recent are the last packets, oldest first.
	Recent []PostMortemPackets `json:"recent,omitempty"`

	// Of a device of the kernel.
	RemoteQPN uint32            `json:"remote_qpn,omitempty"`
	Failed    *PostMortemFailed `json:"failed,omitempty"` // of Status
	Work      *PostMortemWork   `json:"work,omitempty"`
	// Requests are the last ones, oldest first.
	Requests []PostMortemRequest `json:"requests,omitempty"`
}

// PostMortemFailed is the first completion with an error, other than of a request that was flushed.
type PostMortemFailed struct {
	BeforeUS int64  `json:"before_end_us"`
	Op       string `json:"op"`
	Code     uint8  `json:"status"`       // ibv_wc_status
	Vendor   uint32 `json:"vendor_error"` // in the driver's own code
}

// PostMortemWork counts the work requests of the queue pair, and their results.
type PostMortemWork struct {
	Posted        uint64 `json:"posted"` // requests
	PostedBytes   uint64 `json:"posted_bytes"`
	Received      uint64 `json:"received"` // messages
	ReceivedBytes uint64 `json:"received_bytes"`
	Outstanding   int    `json:"outstanding"` // requests that had not completed, the oldest for OldestUS
	OldestUS      int64  `json:"oldest_us,omitempty"`
	Flushed       uint64 `json:"flushed"`  // requests and receives
	Receives      int    `json:"receives"` // posted, and not used by a message
}

// PostMortemRequest is one request, or several alike.
type PostMortemRequest struct {
	BeforeUS int64  `json:"before_end_us"` // the first of them, microseconds before the end
	Did      string `json:"did"`           // posted, received or failed
	Op       string `json:"op"`
	Count    int    `json:"count"`
	Bytes    uint64 `json:"bytes,omitempty"`
	Status   string `json:"status,omitempty"`
	Vendor   uint32 `json:"vendor_error,omitempty"`
}

// PostMortemEvents are the last events of a kernel device about a connection, with their names in
// the headers of rdma-core.
type PostMortemEvents struct {
	Transport string `json:"transport"`
	CM        string `json:"cm,omitempty"` // of the connection manager
	CMStatus  int    `json:"cm_status,omitempty"`
	Async     string `json:"async,omitempty"` // of the queue pair, the port or the device
	AsyncUS   int64  `json:"async_before_end_us,omitempty"`
}

// PostMortemPackets is one packet, or several of the same opcode with consecutive PSNs.
type PostMortemPackets struct {
	BeforeUS int64  `json:"before_end_us"` // the first of them, microseconds before the end
	Sent     bool   `json:"sent"`          // by the server
	Opcode   string `json:"opcode"`
	PSN      uint32 `json:"psn"`
	Count    int    `json:"count"`
	Bytes    int64  `json:"bytes"` // of payload
	AckReq   bool   `json:"ack_req"`
	AETH     string `json:"aeth,omitempty"` // what an acknowledgement says
}

// PostMortemNAK is the first negative acknowledgement of a kind, and the last one if it differs.
type PostMortemNAK struct {
	Count    uint64 `json:"count"`
	Syndrome uint8  `json:"syndrome"`
	Text     string `json:"text"`
	PSN      uint32 `json:"psn"`
	LastText string `json:"last_text,omitempty"`
	LastPSN  uint32 `json:"last_psn,omitempty"`
}

// PostMortemCalls are the RPCs of the connection.
type PostMortemCalls struct {
	Calls          uint64          `json:"calls"`
	InProgress     int             `json:"in_progress"`
	RDMAWriteBytes uint64          `json:"rdma_write_bytes"`
	RDMAReadBytes  uint64          `json:"rdma_read_bytes"`
	InlineIn       int             `json:"inline_in"`
	InlineOut      int             `json:"inline_out"`
	First          *PostMortemCall `json:"first,omitempty"`
	Last           *PostMortemCall `json:"last,omitempty"`
}

// PostMortemCall is one RPC.
type PostMortemCall struct {
	Program   uint32  `json:"program"`
	Version   uint32  `json:"version"`
	Procedure uint32  `json:"procedure"`
	Name      string  `json:"name"` // as in Stats.Procs, if the server has it
	Flavor    uint32  `json:"flavor"`
	UID       *uint32 `json:"uid,omitempty"` // of AUTH_SYS
}

// Device is an RDMA device of the daemon.
type Device struct {
	// Name is the device's address, or NAME/ADDRESS for a device of the kernel.
	Name     string `json:"name"`
	Address  string `json:"address"`
	Provider string `json:"provider"` // soft or verbs
	// For a device of the kernel: its name, its port, its protocol, and its firmware.
	Kernel   string `json:"kernel_device,omitempty"`
	Port     int    `json:"kernel_port,omitempty"`
	Speaks   string `json:"speaks,omitempty"`
	Firmware string `json:"firmware,omitempty"`
	// InterfaceMTU is 0 for a device of the kernel.
	InterfaceMTU int `json:"interface_mtu"`
	PathMTU      int `json:"path_mtu"` // the largest that the interface allows
	Sockets      int `json:"sockets"`  // or loops
}
