package nfs

import (
	"net/netip"

	"github.com/rstored/rstored/nfs/lock"
)

// Bits of the access and of the denial of a share reservation, as in OPEN of version 4 and in SHARE
// of NLM.
const (
	ShareRead  = 1
	ShareWrite = 2
	ShareBoth  = ShareRead | ShareWrite
)

// Shares are the share reservations of files: those of the opens of version 4, and those that other
// protocols enter here. The methods may be called from any goroutine.
type Shares interface {
	// Denying reports whether any reservation denies anything.
	Denying() bool
	// Denied reports whether a reservation denies a host to read or write a file without an open.
	// Without mayWait it may count a reservation that is about to end. It takes no lock while no
	// reservation denies anything.
	Denied(f lock.File, host netip.Addr, write, mayWait bool) bool
	// Reserve enters a reservation, and replaces the one that its owner has of the file. The result is
	// OK, ErrShareDenied, ErrJukebox if the file is delegated, or ErrResource. The reservation does
	// not deny anything to its own host.
	Reserve(f lock.File, owner lock.Owner, host netip.Addr, access, deny uint32) Status
	// Unreserve ends an owner's reservation of a file.
	Unreserve(f lock.File, owner lock.Owner)
	// UnreserveAll ends all reservations of a client.
	UnreserveAll(client string)
}
