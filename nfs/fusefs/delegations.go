package fusefs

import (
	"context"
	"errors"
	"time"

	"github.com/rstored/rstored/nfs"
	"github.com/rstored/rstored/nfs/client"
	"github.com/rstored/rstored/nfs/nfs3"
)

// FS uses the delegations of its client (client.DelegationUser). If FS has read the attributes of a
// file under a delegation, it treats them as current while it has the delegation (node.fresh):
//
//	             without a delegation           with a delegation
//	open(2)      looks the name up              answered here. Another client that renames, replaces
//	                                            or removes the file recalls the delegation first
//	stat(2)      GETATTR after acregmin         answered here, unless this mount changed the file
//	data         sent after a second            sent after five seconds, if for writing
//	close(2)     the data is made stable        the same: a full disk has to be reported

// sendAfterDelegated is how long data waits for more data if it was written under a delegation for
// writing.
const sendAfterDelegated = 5 * time.Second

// current reports whether the attributes in n are those of the server now. mu is held.
func (n *node) current() bool { return n.fresh.Valid() }

// local returns the attributes of a file if they need no call. A file with several names always
// needs a call: it can change by a name of which this mount does not know that it is a name of the
// file.
func (f *FS) local(n *node) (a nfs3.Attr, ttl time.Duration, ok bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.fresh == nil || n.freshAt != n.touched.Load() || n.attr.NLink != 1 || n.w != nil && n.w.pending() ||
		!n.current() {
		return a, 0, false
	}
	return n.attr, n.ttl, true
}

// outdated records that this mount has changed attributes of a file, but not its data. The
// attributes are then read again.
func (n *node) outdated() {
	n.touched.Add(1)
	n.mu.Lock()
	n.fresh = nil
	n.mu.Unlock()
}

// unchanged reports whether the delegation of a file guarantees that nobody else has changed it.
func (n *node) unchanged() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.fresh != nil && n.current()
}

// giveUp returns the delegation of a file before its name is removed: a file that stays open keeps
// its space.
func (f *FS) giveUp(ctx context.Context, n *node) {
	if n != nil {
		f.c.ReturnDelegation(ctx, n.handle)
	}
}

// Recalled implements client.DelegationUser. The kernel writes the pages of a mapped file when it
// drops them, and asks for the attributes again.
func (f *FS) Recalled(ctx context.Context, d *client.Delegation) {
	n := f.nodes.byFile(d.Handle())
	if n == nil {
		return
	}
	n.outdated()
	off := int64(-1) // invalidates the attributes alone
	if d.Write() {
		off = 0
	}
	f.server.InodeNotify(n.id, off, 0)
	// Another client may write the same bytes next. What is unstable would be sent again, over them,
	// if the server restarts.
	if err := n.commit(ctx); err != nil {
		f.cfg.Log.Warn("writing a file back whose delegation the server wants", "fileid", n.fileID(), "error", err)
	}
}

// Lost implements client.DelegationUser. The data that was written under the delegation is lost if
// another client has changed the file: see lostData.
func (f *FS) Lost(d *client.Delegation) {
	n := f.nodes.byFile(d.Handle())
	if n == nil {
		return
	}
	n.outdated()
	f.cfg.Log.Warn("the server has ended the delegation of a file", "fileid", n.fileID())
	f.work.Go(func() { f.server.InodeNotify(n.id, -1, 0) })
}

// Changed implements client.DelegationUser.
func (f *FS) Changed(d *client.Delegation) (size uint64, changed bool) {
	n := f.nodes.byFile(d.Handle())
	if n == nil {
		return 0, false
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	size = d.Size()
	if n.sized == d {
		size = n.attr.Size
	}
	return max(size, n.localEnd), n.w != nil && n.w.pending()
}

// resized records that this mount has changed the size of a file.
func (f *FS) resized(n *node, size uint64) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.attr.Size, n.localEnd, n.sized = size, 0, f.c.Delegation(n.handle)
}

// grown records that this mount has written up to end.
func (n *node) grown(end uint64) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.localEnd = max(n.localEnd, end)
}

// writeDelegation returns the delegation for writing of a file, or nil.
func (f *FS) writeDelegation(n *node) *client.Delegation {
	if d := f.c.Delegation(n.handle); d != nil && d.Write() {
		return d
	}
	return nil
}

// lostData maps the error of a WRITE of data that was written under a delegation. If the delegation
// is lost, another client may have changed the file. The server then executes the WRITE only if the
// file has the ctime of baseline.attr (client.Unchanged). If the ctime differs, the data is lost
// (errLost).
//
// The data is always lost if this mount had changed the file after it read these attributes
// (baseline.stale): the change alone makes the ctime differ. Attributes that were read after the
// loss cannot replace them: they can be those of another client's version.
func lostData(err error) error {
	if errors.Is(err, client.ErrDelegationLost) || client.IsStatus(err, nfs.ErrNotSync) {
		return errLost
	}
	return err
}

// errLost is the error of data that was lost with a delegation.
var errLost = errors.New("the delegation under which it was written is lost, and the file has changed")

// byFile returns the node of a handle, or nil.
func (t *nodes) byFile(h client.Handle) *node {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return t.byHandle[string(h)]
}
