package blockstore

// SetXattrMode is how SetXattr treats an existing attribute.
type SetXattrMode uint8

// Modes of SetXattr. The numbers are those of setxattr_option4 (RFC 8276 section 8.4.2).
const (
	XattrEither  SetXattrMode = 0
	XattrCreate  SetXattrMode = 1 // ErrExist if it is there
	XattrReplace SetXattrMode = 2 // ErrNoXattr if it is not
)

// Limits of extended attributes, in bytes: those of Linux.
const (
	XattrNameMax  = NameMax - len("user.")
	XattrValueMax = 64 << 10
)

// Xattrs is what a store may do beside FS: extended attributes of users. Names are without the prefix "user.", and
// checked to be non-empty and without NUL. Whoever may read the object may read
// them, whoever may write to it may change them. What has been changed is stable when
// a method returns. Stores that have them say so in Limits.
type Xattrs interface {
	GetXattr(c *Cred, h Handle, name string) ([]byte, error)
	SetXattr(c *Cred, h Handle, name string, value []byte, mode SetXattrMode) (Wcc, error)
	ListXattrs(c *Cred, h Handle) ([]string, error)
	RemoveXattr(c *Cred, h Handle, name string) (Wcc, error)
}
