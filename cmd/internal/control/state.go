package control

import (
	"fmt"
	"strconv"
	"time"
)

// StateBackend is the part of a Backend for the state of clients: opens, locks, sessions.
type StateBackend interface {
	NFS4Clients() []NFS4Client
	EvictClient(id string) error
	NFS4Sessions() []NFS4Session
	Locks() []FileLock
	Delegations() []Delegation
	Grace() Grace
	EndGrace() error
}

// NFS4Client is a client of NFS version 4 that has state on the server, connected or not.
type NFS4Client struct {
	ID    string `json:"id"`    // hexadecimal
	Owner string `json:"owner"` // as it calls itself; what cannot be printed is escaped
	// Version is the version in use, such as 4.2. It is empty while the client has no session.
	Version string `json:"version"`
	// Confirmed: it has made a session, or in version 4.0 sent SETCLIENTID_CONFIRM. Expired: it was
	// silent for longer than the lease, and loses its state when another client needs it. Reclaims:
	// it may reclaim its state from before the restart of the server.
	Confirmed bool      `json:"confirmed"`
	Expired   bool      `json:"expired"`
	Reclaims  bool      `json:"reclaims"`
	Renewed   time.Time `json:"renewed"`
	Sessions  int       `json:"sessions"`
	Opens     int       `json:"opens"`
	Locks     int       `json:"locks"` // lock-owners, for each file
	// Delegations counts delegated files. Revoked counts delegations that the server has revoked and
	// the client has not returned. Callbacks says whether the server can call the client: one of the
	// constants below.
	Delegations int    `json:"delegations"`
	Revoked     int    `json:"delegations_revoked"`
	Callbacks   string `json:"callbacks"`
	// Copies counts the copies that continue after their replies.
	Copies int `json:"copies"`
}

// Values of NFS4Client.Callbacks.
const (
	CallbacksAnswered = "answered"
	CallbacksUntried  = "untried"
	CallbacksNone     = "none"
)

// NFS4Session is a session of a client.
type NFS4Session struct {
	ID     string `json:"id"`
	Client string `json:"client"`
	Minor  uint32 `json:"minor_version"`
	// Slots is the number of slots that the client may use, Used the number that exist, Busy the
	// number of requests in progress.
	Slots uint32 `json:"slots"`
	Used  int    `json:"used"`
	Busy  int    `json:"busy"`
	// MaxRequest and MaxResponse are sizes in bytes. CachedReplies is that of the cached replies.
	MaxRequest    uint32 `json:"max_request"`
	MaxResponse   uint32 `json:"max_response"`
	CachedReplies int    `json:"cached_reply_bytes"`
}

// FileLock is a byte-range lock, or a request that waits for one.
type FileLock struct {
	Export string `json:"export"`
	FileID uint64 `json:"fileid"` // inode number; 0 if it cannot be found out
	Client string `json:"client"`
	Owner  string `json:"owner"` // hexadecimal
	Start  uint64 `json:"start"`
	// End is the last byte; the largest number is the end of the file.
	End       uint64 `json:"end"`
	Exclusive bool   `json:"exclusive"`
	Waiting   bool   `json:"waiting"`
}

// Delegation is a file that a client may open, read and, if Write is set, change without calls to
// the server.
type Delegation struct {
	Export string    `json:"export"`
	FileID uint64    `json:"fileid"` // inode number; 0 if it cannot be found out
	Client string    `json:"client"` // ID
	Write  bool      `json:"write"`
	Dir    bool      `json:"directory,omitempty"`
	Given  time.Time `json:"given"`
	// Recalled: the server has sent CB_RECALL. Acknowledged: the client has replied to it. Until is
	// when the server revokes the delegation, nil before a recall.
	Recalled     bool       `json:"recalled"`
	Acknowledged bool       `json:"acknowledged"`
	Until        *time.Time `json:"until,omitempty"`
}

// Grace is the grace period after a restart. Clients may reclaim their state, and nobody gets new
// state.
type Grace struct {
	On bool `json:"on"`
	// NFS4Until and NLMUntil are the ends for version 4 and for the locks of version 3, nil when
	// they have passed.
	NFS4Until *time.Time `json:"nfs4_until,omitempty"`
	NLMUntil  *time.Time `json:"nlm_until,omitempty"`
	// Waiting are the clients of version 4 that may still reclaim.
	Waiting []string `json:"waiting"`
}

// ClientID is the spelling of a client ID.
func ClientID(id uint64) string { return fmt.Sprintf("%#016x", id) }

// Printable escapes a name that a client has chosen, for a terminal.
func Printable(s string) string {
	q := strconv.Quote(s)
	return q[1 : len(q)-1]
}
