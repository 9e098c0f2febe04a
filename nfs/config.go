package nfs

import (
	"cmp"
	"log/slog"
	"sync/atomic"

	"github.com/rstored/rstored/nfs/lock"
	"github.com/rstored/rstored/rpcrdma/rpc"
)

// MaxIO is the most data of one READ, WRITE or directory listing, in bytes.
const MaxIO = 1 << 20

// Config is what the programs of NFS need.
type Config struct {
	// Exports and Codec are required.
	Exports *Table
	Codec   *Codec
	// Counters receives the counts; nil: they are dropped.
	Counters *Counters
	// Denials remembers the clients that were denied; nil: they are forgotten.
	Denials *Denials
	// Logger gets what an operator should know; nil is silent.
	Logger *slog.Logger
	// Audit gets a message for each mount, each client of version 4 and each refusal. It must not
	// wait. nil drops them.
	Audit *slog.Logger
	// Delegations gives servers of other protocols the delegations of version 4. nil means that there
	// are none.
	Delegations Delegations
	// Groups are those of the server's users, for rules with ManageGIDs; nil means that
	// there are none.
	Groups Groups
	// ShowAll reports whether MOUNT's lists are of all exports and mounts, for everybody; nil, or
	// false: a client sees what it may mount and has mounted.
	ShowAll func() bool
	// Shares are the share reservations, for version 3; nil means that there are none.
	Shares Shares
}

// SetDefaults sets what may be nil to what nil means.
func (c *Config) SetDefaults() {
	silent := slog.New(slog.DiscardHandler)
	c.Logger, c.Audit = cmp.Or(c.Logger, silent), cmp.Or(c.Audit, silent)
	if c.Counters == nil {
		c.Counters = new(Counters)
	}
	if c.Denials == nil {
		c.Denials = new(Denials)
	}
	if c.ShowAll == nil {
		c.ShowAll = func() bool { return false }
	}
}

// Names translates between users and groups and their names in version 4. The methods may be called
// from any goroutine, and may wait.
type Names interface {
	// Append appends what a user or group is called.
	Append(b []byte, id uint32, group bool) []byte
	// Parse finds one; ok is false if there is none.
	Parse(who []byte, group bool) (id uint32, ok bool)
}

// Delegations are the delegations of files to clients of version 4, for the servers of other
// protocols. They conflict with reads and changes by others. The answer to a conflict is JUKEBOX:
// the delegation is being recalled, and the caller repeats its call soon. The methods may be called
// from any goroutine.
type Delegations interface {
	// Delegating reports whether any file may be delegated. If not, everything is free.
	Delegating() bool
	// Free reports whether no delegation is in the way of reading a file, or of changing it. If
	// mayWait is true, it recalls those that are, and waits a moment for their return. If not, it
	// only looks: the caller, on a transport's loop, has a worker serve the call.
	Free(f lock.File, change, mayWait bool) bool
	// BeginChange recalls the delegations of a file that is about to change, and waits a moment for
	// their return. ok reports that the change may be made. If begun is true, no client gets a
	// delegation of the file until EndChange. The caller then calls EndChange, whatever ok is.
	BeginChange(f lock.File) (begun, ok bool)
	EndChange(f lock.File)
	// BeginDirChange is BeginChange for a change of the entries of a directory. The directory's
	// delegations whose clients can be notified of the change do not conflict with it.
	BeginDirChange(dir lock.File, e DirEvent) (begun, ok bool)
	// DirChanged notifies these clients of a change that was made. It is called before EndChange,
	// and does not wait.
	DirChanged(dir lock.File, e DirEvent)
}

// Counters count what went wrong in serving NFS. The zero value is ready for
// use, from any goroutine.
type Counters struct {
	// BadHandles: not of this server's form. ForgedHandles: of its form, but
	// not made by it. GoneExports: of an export that is no longer there.
	BadHandles, ForgedHandles, GoneExports atomic.Uint64
	// DeniedClients: no rule of the export is for the client.
	DeniedClients atomic.Uint64
	// UnprotectedClients: calls on connections without the TLS that the export wants.
	UnprotectedClients atomic.Uint64
	// ReadsMoved: READs that had to go to a worker because data was not in memory.
	ReadsMoved atomic.Uint64
	// NoMemory: READs that got JUKEBOX or DELAY because the transport had no memory for the data.
	NoMemory atomic.Uint64
	// Throttled: calls that waited for a limit of an export. ThrottledAway: calls that were refused,
	// to be repeated by the client, because too many calls wait, or the wait would be too long.
	Throttled, ThrottledAway atomic.Uint64
	// Garbage: calls with arguments that do not decode.
	Garbage atomic.Uint64

	status [len(statuses)]atomic.Uint64
	other  atomic.Uint64
}

// Status counts a result.
func (c *Counters) Status(s Status) {
	if i := s.row(); i >= 0 {
		c.status[i].Add(1)
	} else {
		c.other.Add(1)
	}
}

// Snapshot is the counts by name. Statuses are named nfs_status_NOENT; those
// that never occurred are left out.
func (c *Counters) Snapshot() map[string]uint64 {
	out := map[string]uint64{
		"nfs_bad_handles": c.BadHandles.Load(), "nfs_forged_handles": c.ForgedHandles.Load(),
		"nfs_gone_exports": c.GoneExports.Load(), "nfs_denied_clients": c.DeniedClients.Load(),
		"nfs_unprotected_clients": c.UnprotectedClients.Load(),
		"nfs_reads_moved":         c.ReadsMoved.Load(), "nfs_no_memory": c.NoMemory.Load(), "nfs_garbage": c.Garbage.Load(),
		"nfs_throttled": c.Throttled.Load(), "nfs_throttled_away": c.ThrottledAway.Load(),
	}
	for i := range statuses {
		if n := c.status[i].Load(); n > 0 {
			out["nfs_status_"+statuses[i].name] = n
		}
	}
	if n := c.other.Load(); n > 0 {
		out["nfs_status_other"] = n
	}
	return out
}

// AuditCaller returns the attributes by which the audit log names the caller.
func AuditCaller(c *rpc.Call) []any {
	p := &c.Peer
	list := []any{
		"client", p.Addr.String(), "transport", p.Transport.String(), "xprtsec", p.Security.String(), "uid", c.Cred.UID,
	}
	if c.Cred.Principal != "" {
		list = append(list, "principal", c.Cred.Principal)
	}
	return list
}
