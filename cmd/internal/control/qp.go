package control

// QP is a queue pair of the server. Times are in microseconds.
type QP struct {
	QPN       uint32 `json:"qpn"`
	Type      string `json:"type"` // RC, or UD for datagrams
	State     string `json:"state"`
	Device    string `json:"device"`
	Loop      int    `json:"loop"` // of the device's packet loops
	Local     string `json:"local"`
	Remote    string `json:"remote"` // empty without a connection
	RemoteQPN uint32 `json:"remote_qpn"`
	Active    bool   `json:"active"` // the server asked for the connection
	AgeUS     int64  `json:"age_us"`
	PathMTU   int    `json:"path_mtu"`
	PKey      string `json:"pkey"`
	NoICRC    bool   `json:"no_icrc"` // packets to and from a peer on this host have no ICRC

	NextPSN     uint32 `json:"next_psn"`     // of the server's next request
	AckedPSN    uint32 `json:"acked_psn"`    // the oldest that is not acknowledged
	ExpectedPSN uint32 `json:"expected_psn"` // of the peer's next request
	RTTUS       int64  `json:"rtt_us"`       // smoothed; 0 if none was measured

	SendDepth     int   `json:"send_depth"`
	SendQueued    int   `json:"send_queued"`
	RecvDepth     int   `json:"recv_depth"`
	RecvQueued    int   `json:"recv_queued"`
	ReadsStarted  uint8 `json:"reads_started"` // RDMA READs and atomics at once: the server's
	ReadsServed   uint8 `json:"reads_served"`  // and the peer's
	AckTimeout    uint8 `json:"ack_timeout"`   // code: 4.096 us * 2^n
	RetryCount    uint8 `json:"retry_count"`
	RNRRetryCount uint8 `json:"rnr_retry_count"`

	// Counters have the names of hw_counters in the Linux kernel.
	Counters map[string]uint64 `json:"counters"`
}
