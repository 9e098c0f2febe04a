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

// Xattrs is optional: extended attributes of users, if Limits.Xattrs says so. Names are without
// the prefix "user."; the caller has checked that they are not empty and have no NUL. Read
// permission on the object lets a user read its attributes, write permission lets him change
// them. A change is stable when the method returns.
type Xattrs interface {
	GetXattr(c *Cred, h Handle, name string) ([]byte, error)
	SetXattr(c *Cred, h Handle, name string, value []byte, mode SetXattrMode) (Wcc, error)
	ListXattrs(c *Cred, h Handle) ([]string, error)
	RemoveXattr(c *Cred, h Handle, name string) (Wcc, error)
}
