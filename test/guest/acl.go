package guest

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"

	"github.com/rstored/rstored/blockstore"
	"golang.org/x/sys/unix"
)

// aclsKept looks at what a guest's ACL became on the host, and puts another in its place.
func aclsKept(ctx context.Context, r *Run) error {
	const access = "system.posix_acl_access"
	if err := r.Await(ctx, "acl"); err != nil {
		return err
	}
	file := filepath.Join(r.Exports, "file")
	b := make([]byte, 1024)
	n, err := unix.Getxattr(file, access, b)
	if err != nil {
		return fmt.Errorf("the ACL on the host: %w", err)
	}
	got, err := blockstore.ParseACL(b[:n])
	if err != nil {
		return err
	}
	want := blockstore.ACL{
		{Tag: blockstore.ACLUserObj, Perm: 6},
		{Tag: blockstore.ACLUser, Perm: 6, ID: 1000},
		{Tag: blockstore.ACLGroupObj, Perm: 4},
		{Tag: blockstore.ACLGroup, Perm: 4, ID: 2000},
		{Tag: blockstore.ACLMask, Perm: 6},
		{Tag: blockstore.ACLOther},
	}
	if !slices.Equal(got, want) {
		return fmt.Errorf("the ACL on the host is %v instead of %v", got, want)
	}
	want[1].Perm = 0
	if err := unix.Setxattr(file, access, want.AppendXattr(nil), 0); err != nil {
		return err
	}
	return r.Tell("changed")
}

// aclTools lays nfs4_getfacl and nfs4_setfacl beside what is exported: they need nothing but
// the C library, which guests have.
func aclTools(exports string) error {
	dir := filepath.Join(exports, "tools")
	if err := os.Mkdir(dir, 0o755); err != nil {
		return err
	}
	for _, name := range []string{"nfs4_getfacl", "nfs4_setfacl"} {
		from, err := exec.LookPath(name)
		if err != nil {
			return fmt.Errorf("%w: the script build installs it", err)
		}
		b, err := os.ReadFile(from)
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(dir, name), b, 0o755); err != nil {
			return err
		}
	}
	return nil
}
