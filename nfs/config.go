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

// Config is what the servers of all versions and of the programs around NFS need.
type Config struct {
	// Exports and Codec are required.
	Exports *Table
	Codec   *Codec
	// Counters receives the counts; nil: they are dropped.
	Counters *Counters
	// Denials remembers the clients that were denied; nil: they are forgotten.
	Denials *Denials
	// Logger gets messages for the operator; nil drops them.
	Logger *slog.Logger
	// Audit gets a message for each MNT, refused ones too, and in version 4 for each client, each
	// session and refusals of exports. It must not wait. nil drops them.
	Audit *slog.Logger
	// Delegations are those of version 4, for the servers of other protocols. nil: there are none.
	Delegations Delegations
	// Groups is the server's database of groups, for rules with ManageGIDs. nil: there is none.
	Groups Groups
	// ShowAll reports whether EXPORT and DUMP of MOUNT list all exports and all mounts to everybody.
	// If it returns false, or is nil, a client sees only the exports that it may mount and its own
	// mounts.
	ShowAll func() bool
	// Shares are the share reservations of all protocols; nil: there are none.
	Shares Shares
}

// SetDefaults replaces each nil field by its default.
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

// Names translates users and groups to their names in version 4, and back. The methods may be
// called from any goroutine, and may wait.
type Names interface {
	// Append appends the name of a user or group.
	Append(b []byte, id uint32, group bool) []byte
	// Parse returns the user or group of a name; ok is false if there is none.
	Parse(who []byte, group bool) (id uint32, ok bool)
}

// Delegations are the delegations of files to clients of version 4, for the servers of other
// protocols. They conflict with reads and changes by others. The answer to a conflict is JUKEBOX:
// the delegation is being recalled, and the caller repeats its call soon. The methods may be called
// from any goroutine.
type Delegations interface {
	// Delegating reports whether any file may be delegated. If not, no call below finds a conflict.
	Delegating() bool
	// Free reports whether no delegation conflicts with reading a file or, if change is true, with
	// changing it. With mayWait it recalls the delegations that conflict, and waits a moment for
	// their return. Without mayWait it only looks: the caller runs on a transport's loop, and a
	// worker then serves the call.
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

// Counters count errors in serving NFS. The zero value is ready for use, from any goroutine.
type Counters struct {
	// BadHandles counts handles that do not have the form of this server, ForgedHandles those that
	// have the form and a wrong code, GoneExports those of an export that is no longer served.
	BadHandles, ForgedHandles, GoneExports atomic.Uint64
	// DeniedClients counts calls of clients that no rule of the export admits.
	DeniedClients atomic.Uint64
	// UnprotectedClients counts calls on connections without the TLS that the rule requires.
	UnprotectedClients atomic.Uint64
	// ReadsMoved counts READs that moved to a worker because data was not in memory.
	ReadsMoved atomic.Uint64
	// NoMemory counts READs that got JUKEBOX or DELAY because the transport had no memory for the
	// data.
	NoMemory atomic.Uint64
	// Throttled counts calls that waited for a limit of an export. ThrottledAway counts calls that
	// were refused because too many calls wait, or because the wait would be too long. Their clients
	// send them again.
	Throttled, ThrottledAway atomic.Uint64
	// Garbage counts calls with arguments that do not decode.
	Garbage atomic.Uint64

	status [len(statuses)]atomic.Uint64
	other  atomic.Uint64
}

// Status counts a status.
func (c *Counters) Status(s Status) {
	if i := s.row(); i >= 0 {
		c.status[i].Add(1)
	} else {
		c.other.Add(1)
	}
}

// Snapshot returns the counts by name. The count of a status is named as nfs_status_NOENT; counts
// of statuses that never occurred are left out.
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
