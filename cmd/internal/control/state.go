package control

import (
	"fmt"
	"strconv"
	"time"
)

// StateBackend is the part of a Backend that knows what clients have: opens, locks, sessions.
type StateBackend interface {
	NFS4Clients() []NFS4Client
	EvictClient(id string) error
	NFS4Sessions() []NFS4Session
	Locks() []FileLock
	Delegations() []Delegation
	Grace() Grace
	EndGrace() error
}

// NFS4Client is a client of NFS version 4 that the server remembers, connected or not.
type NFS4Client struct {
	ID    string `json:"id"`    // hexadecimal
	Owner string `json:"owner"` // as it calls itself; what cannot be printed is escaped
	// Version is the minor version that it uses, as in 4.2; empty while it has no session.
	Version string `json:"version"`
	// Confirmed: it has made a session, or in version 4.0 said SETCLIENTID_CONFIRM. Expired: it was silent for longer than the lease,
	// and loses what it has when somebody else wants it. Reclaims: it may reclaim what it
	// had before the server's restart.
	Confirmed bool      `json:"confirmed"`
	Expired   bool      `json:"expired"`
	Reclaims  bool      `json:"reclaims"`
	Renewed   time.Time `json:"renewed"`
	Sessions  int       `json:"sessions"`
	Opens     int       `json:"opens"`
	Locks     int       `json:"locks"` // lock-owners, for each file
	// Delegations are files; Revoked those that were taken away, while the client has not
	// given them up. Callbacks says whether it can be called to give them back: one of
	// the constants below.
	Delegations int    `json:"delegations"`
	Revoked     int    `json:"delegations_revoked"`
	Callbacks   string `json:"callbacks"`
	// Copies are those that the server makes after its reply.
	Copies int `json:"copies"`
}

// Whether a client can be called.
const (
	CallbacksAnswered = "answered"
	CallbacksUntried  = "untried"
	CallbacksNone     = "none"
)

// NFS4Session is a session of one.
type NFS4Session struct {
	ID     string `json:"id"`
	Client string `json:"client"`
	Minor  uint32 `json:"minor_version"`
	// Slots are those that the client may use, Used those that it has, Busy the requests
	// being executed.
	Slots uint32 `json:"slots"`
	Used  int    `json:"used"`
	Busy  int    `json:"busy"`
	// MaxRequest and MaxResponse are sizes in bytes; Kept is of replies for retries.
	MaxRequest  uint32 `json:"max_request"`
	MaxResponse uint32 `json:"max_response"`
	Kept        int    `json:"kept_bytes"`
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

// Delegation is a file that a client opens, reads, and if Write is set changes without
// asking.
type Delegation struct {
	Export string    `json:"export"`
	FileID uint64    `json:"fileid"` // inode number; 0 if it cannot be found out
	Client string    `json:"client"` // ID
	Write  bool      `json:"write"`
	Given  time.Time `json:"given"`
	// Recalled: the client was asked to return it. Acknowledged: it has answered that. Until is
	// when it is taken away if it is not returned, nil while it is not recalled.
	Recalled     bool       `json:"recalled"`
	Acknowledged bool       `json:"acknowledged"`
	Until        *time.Time `json:"until,omitempty"`
}

// Grace is the time after a restart in which clients may reclaim what they had, and nobody
// gets anything new.
type Grace struct {
	On bool `json:"on"`
	// NFS4Until and NLMUntil are when it ends for version 4 and for the locks of version
	// 3; nil when it has.
	NFS4Until *time.Time `json:"nfs4_until,omitempty"`
	NLMUntil  *time.Time `json:"nlm_until,omitempty"`
	// Waiting are the clients of version 4 that may still come.
	Waiting []string `json:"waiting"`
}

// ClientID is how a client of version 4 is called.
func ClientID(id uint64) string { return fmt.Sprintf("%#016x", id) }

// Printable is a name that a client has chosen, fit for a terminal.
func Printable(s string) string {
	q := strconv.Quote(s)
	return q[1 : len(q)-1]
}
