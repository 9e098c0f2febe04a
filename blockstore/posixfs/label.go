package posixfs

import (
	"github.com/rstored/rstored/blockstore"
	"golang.org/x/sys/unix"
)

var _ blockstore.Labels = (*FS)(nil)

// labelXattr is where Linux stores the label of SELinux. Without SELinux on the host the kernel
// stores any value, and lets programs with CAP_SYS_ADMIN set it.
const labelXattr = "security.selinux"

// hasLabels asks the filesystem of a path descriptor whether it keeps labels.
func hasLabels(fd int) bool {
	_, err := again(func() (int, error) { return unix.Getxattr(procPath(fd), labelXattr, nil) })
	return err == nil || err == unix.ENODATA
}

// GetLabel implements blockstore.Labels.
func (f *FS) GetLabel(_ *blockstore.Cred, h blockstore.Handle) ([]byte, error) {
	o, err := f.acquire(h)
	if err != nil {
		return nil, err
	}
	defer f.release(o)
	label, err := grown(func(p []byte) (int, error) { return unix.Getxattr(procPath(o.path), labelXattr, p) })
	if err == unix.ENODATA {
		return nil, nil
	}
	return label, mapErr(err)
}

// SetLabel implements blockstore.Labels. The server sets the label with its own privileges.
func (f *FS) SetLabel(c *blockstore.Cred, h blockstore.Handle, label []byte) (w blockstore.Wcc, err error) {
	if len(label) == 0 || len(label) > blockstore.LabelMax {
		return w, blockstore.ErrInval
	}
	err = f.updateOwned(c, h, &w, func(o *object) (bool, error) {
		err := retry(func() error { return unix.Setxattr(procPath(o.path), labelXattr, label, 0) })
		return err == nil, err
	})
	return w, err
}
