package blockstore

import "errors"

// Xattrs is what a store may do beside FS: extended attributes of users, whose names
// come without the "user." of the host. It is there if Limits says so.
type Xattrs interface {
	GetXattr(c *Cred, h Handle, name string) ([]byte, error)
	SetXattr(c *Cred, h Handle, name string, value []byte, how XattrMode) (Wcc, error)
	// ListXattrs returns the names in order.
	ListXattrs(c *Cred, h Handle) ([]string, error)
	RemoveXattr(c *Cred, h Handle, name string) (Wcc, error)
}

// XattrMode is how SetXattr treats an attribute that is there. The numbers are NFS's
// setxattr_option4.
type XattrMode uint32

// Modes.
const (
	XattrEither  XattrMode = 0
	XattrCreate  XattrMode = 1 // ErrExist if it is there
	XattrReplace XattrMode = 2 // ErrNoXattr if it is not
)

// XattrMax is the longest value in bytes, XattrNameMax the longest name, of any store.
const (
	XattrMax     = 64 << 10
	XattrNameMax = 250
)

// Errors of extended attributes.
var (
	ErrNoXattr   = errors.New("no such extended attribute")
	ErrXattrSize = errors.New("extended attribute too large")
)
