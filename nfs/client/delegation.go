package client

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/rstored/rstored/nfs/clock"
	"github.com/rstored/rstored/nfs/state"
	"github.com/rstored/rstored/rpcrdma/rpc"
)

// DelegationUser uses the delegations of a Client: it caches files while the server promises that
// nobody else changes them (RFC 8881 section 10.4). Its methods may be called from any goroutine.
type DelegationUser interface {
	// Recalled is called once for a delegation that the client is about to return. Valid already
	// returns false. Recalled writes back the changes of the file under the delegation. When it
	// returns, the client returns the delegation. Opens of the file stay as they are.
	Recalled(ctx context.Context, d *Delegation)
	// Lost is called once for a delegation that the server has ended on its own: the server has not
	// heard of the client for longer than the lease, or has got no answer to a recall. Another
	// client may have changed the file since. Lost must not wait and makes no calls.
	Lost(d *Delegation)
	// Changed returns the size of a file that is delegated for writing, as programs see it now. changed
	// says that the file has changes which the server does not have. Changed must not wait and makes no
	// calls.
	Changed(d *Delegation) (size uint64, changed bool)
}

// UseDelegations makes the client ask for delegations, which u uses. If u is nil, the client asks
// for none. Delegations need version 4.1 or 4.2, a backchannel, and a server that grants them. Only
// an open of a file can get a delegation.
func (c *Client) UseDelegations(u DelegationUser) {
	if u == nil {
		c.nfs.calls.user.Store(nil)
		return
	}
	c.nfs.calls.user.Store(&u)
}

// phase is the state of a delegation.
//
//	held --recall, give up--> returning --DELEGRETURN--> ended
//	  |                           |
//	  +----- the server has ended it -----> lost
type phase uint8

const (
	phaseHeld phase = iota
	phaseReturning
	phaseEnded
	phaseLost
)

// Delegation is the server's promise for one file: nobody else changes the file before the server
// has asked this client. If the delegation is for writing, the same holds for reading. The methods
// may be called from any goroutine.
type Delegation struct {
	o     *opens
	f     *open4
	write bool
	// change and size are those of the file when the server granted a delegation for writing.
	change, size uint64

	// opens.mu guards these.
	id      state.Stateid
	phase   phase
	used    time.Time // when the file was last closed, on the clock of package clock
	permits map[permit]struct{}
	sent    bool          // the client has begun to send DELEGRETURN
	over    chan struct{} // closed when the phase is ended or lost
}

// permit is an access to a file that the server has allowed a user.
type permit struct {
	who    string
	access uint32
}

// permitsMax bounds the permits of a delegation.
const permitsMax = 64

// whoIs names the user of a credential.
func whoIs(c *rpc.Cred) string {
	if c == nil {
		return ""
	}
	return fmt.Sprint(c.Flavor, c.UID, c.GID, c.Groups)
}

// Handle is the file's.
func (d *Delegation) Handle() Handle { return d.f.h }

// Write reports whether the delegation is for writing.
func (d *Delegation) Write() bool { return d.write }

// Size is the size of the file when the server granted the delegation.
func (d *Delegation) Size() uint64 { return d.size }

// Valid reports whether the server still keeps its promise: it has not recalled the delegation, the
// lease has not expired, and the server has not said that it has revoked something since the client
// has last tested its stateids. While the client has no session, no delegation is valid: the server
// may have lost it.
func (d *Delegation) Valid() bool {
	if d == nil {
		return false
	}
	d.o.mu.Lock()
	defer d.o.mu.Unlock()
	return d.valid()
}

// valid is Valid. opens.mu is held.
func (d *Delegation) valid() bool {
	x := d.o.s.current()
	return d.phase == phaseHeld && x != nil && !x.doubt.Load() && d.o.leaseUntil.Load() > clock.Now().UnixNano()
}

// leaving reports whether DELEGRETURN is in flight. opens.mu is held.
func (d *Delegation) leaving() bool { return d.phase == phaseReturning && d.sent }

// gone reports whether another client may have changed the file since data was written under the
// delegation: the delegation is lost, or the client has returned it without that data. opens.mu is
// held.
func (d *Delegation) gone() bool { return d.phase == phaseLost || d.phase == phaseEnded && d.sent }

// Lost reports whether the server has ended the delegation without getting it back.
func (d *Delegation) Lost() bool {
	d.o.mu.Lock()
	defer d.o.mu.Unlock()
	return d.phase == phaseLost
}

// ErrDelegationLost says that data was not written because the client does not have the delegation
// any more under which a program wrote it: another client may have changed the file since.
var ErrDelegationLost = errors.New("the server has ended the delegation of the file")

type delegationKey struct{}

// Under returns a context for WRITEs of data that was cached under the delegation. They fail with
// ErrDelegationLost, and change nothing, if the server has ended the delegation or has got it back.
// The server itself refuses such a WRITE, also if the client does not know of the end yet. Only a
// WRITE that is also under locks (UnderLocks) has the stateid of the locks instead. A nil delegation
// changes nothing.
func (d *Delegation) Under(ctx context.Context) context.Context {
	if d == nil {
		return ctx
	}
	return context.WithValue(ctx, delegationKey{}, d)
}

// Delegation returns the delegation of a file if the client has one that is valid, else nil.
func (c *Client) Delegation(h Handle) *Delegation {
	o := c.opens()
	if o == nil {
		return nil
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if f := o.byFile[string(h)]; f != nil && f.deleg != nil && f.deleg.valid() {
		return f.deleg
	}
	return nil
}

// HasDelegation reports whether the client has a delegation of a file, valid or not.
func (c *Client) HasDelegation(h Handle) bool {
	o := c.opens()
	if o == nil {
		return false
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	f := o.byFile[string(h)]
	return f != nil && f.deleg != nil
}

// ReturnDelegation calls Recalled for the delegation of a file, if there is one, and returns the
// delegation. It waits for the server's reply or the end of ctx. The client gives up the delegation
// in either case.
func (c *Client) ReturnDelegation(ctx context.Context, h Handle) {
	o := c.opens()
	if o == nil {
		return
	}
	o.mu.Lock()
	f := o.byFile[string(h)]
	if f == nil || f.deleg == nil {
		o.mu.Unlock()
		return
	}
	d := f.deleg
	o.giveBack(d)
	o.mu.Unlock()
	select {
	case <-d.over:
	case <-ctx.Done():
	}
}

// opens returns the open files of version 4, or nil.
func (c *Client) opens() *opens {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.choice.four == nil {
		return nil
	}
	return c.choice.four.opens
}
