package nfs

import (
	"net/netip"

	"github.com/rstored/rstored/nfs/lock"
)

// Bits of what a share reservation has for itself, and of what it denies others. They are
// those of version 4's OPEN and of NLM's SHARE.
const (
	ShareRead  = 1
	ShareWrite = 2
	ShareBoth  = ShareRead | ShareWrite
)

// Shares are the share reservations of files: those of version 4's opens, and those that
// other protocols enter here. The methods may be called from any goroutine.
type Shares interface {
	// Denying reports whether anybody denies anything.
	Denying() bool
	// Denied reports whether a reservation denies a host to read a file, or to write it, without an
	// open of its own. If it must not wait, it may report so of a reservation that is about to end. It
	// takes no lock while there is no reservation that denies anything.
	Denied(f lock.File, host netip.Addr, write, mayWait bool) bool
	// Reserve enters a reservation, in the place of one that its owner has of the file:
	// OK, ErrShareDenied, ErrJukebox if the file is delegated, or ErrResource. What the
	// host does is not denied by it.
	Reserve(f lock.File, owner lock.Owner, host netip.Addr, access, deny uint32) Status
	// Unreserve gives up an owner's reservation of a file.
	Unreserve(f lock.File, owner lock.Owner)
	// UnreserveAll gives up those of a client.
	UnreserveAll(client string)
}
