package blockstore

// LabelMax is the length of the longest security label, in bytes, as in the Linux NFS server.
const LabelMax = 2048

// Labels is optional: a store that has security labels, if Limits.Labels says so. A security
// module, such as SELinux, stores a label with an object. The store does not interpret the label.
type Labels interface {
	// GetLabel returns the label of an object, or nil if it has none. Every user may call it. The
	// caller owns the result.
	GetLabel(c *Cred, h Handle) ([]byte, error)
	// SetLabel sets the label of an object, of 1 to LabelMax bytes, and makes that stable. Only the
	// owner of the object may. The security module of the host, if it has one, can refuse the label
	// (ErrInval).
	SetLabel(c *Cred, h Handle, label []byte) (Wcc, error)
}
