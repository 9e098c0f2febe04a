package posixfs

import (
	"path/filepath"
	"testing"

	"github.com/rstored/rstored/blockstore"
	"golang.org/x/sys/unix"
)

// TestACLJudgedByServer: where the kernel is not asked as the client, ACLs count all the
// same: the group bits of the mode are those of the mask, not of the group.
func TestACLJudgedByServer(t *testing.T) {
	t.Run("identity", func(t *testing.T) { testACLJudged(t, Options{Identity: Server}) })
	t.Run("no faccessat2", func(t *testing.T) {
		needRoot(t)
		testACLJudged(t, Options{noFaccessat2: true})
	})
}

func testACLJudged(t *testing.T, opts Options) {
	f, s := openTemp(t, opts)
	if !f.Limits().ACLs {
		t.Skip("the file system of the temporary directory keeps no POSIX ACLs")
	}
	root, err := f.Root()
	if err != nil {
		t.Fatal(err)
	}
	mode := uint32(0o640)
	h, _, _, err := f.Create(nil, root, "file", blockstore.Guarded, &blockstore.SetAttr{Mode: &mode}, [8]byte{})
	if err != nil {
		t.Fatal(err)
	}
	l := blockstore.ACL{
		{Tag: blockstore.ACLUserObj, Perm: 6},
		{Tag: blockstore.ACLUser, Perm: 6, ID: 4242},
		{Tag: blockstore.ACLGroupObj, Perm: 4},
		{Tag: blockstore.ACLMask, Perm: 6},
		{Tag: blockstore.ACLOther},
	}
	if err := unix.Setxattr(filepath.Join(s.dir, "file"), aclXattr[blockstore.ACLAccess], l.AppendXattr(nil),
		0); err != nil {
		t.Fatal(err)
	}
	a, err := f.GetAttr(nil, h)
	if err != nil || a.Mode != 0o660 {
		t.Fatalf("mode %o, %v", a.Mode, err)
	}
	for _, c := range []struct {
		who  blockstore.Cred
		want uint32
	}{
		{blockstore.Cred{UID: 4242, GID: 4242}, blockstore.AccessRead | blockstore.AccessModify},
		{blockstore.Cred{UID: 4243, GID: a.GID}, blockstore.AccessRead},
		{blockstore.Cred{UID: 4243, GID: 4243}, 0},
	} {
		got, _, err := f.Access(&c.who, h, blockstore.AccessRead|blockstore.AccessModify)
		if err != nil || got != c.want {
			t.Errorf("%+v: access %x instead of %x, %v", c.who, got, c.want, err)
		}
	}
	if _, err := f.SetACL(&blockstore.Cred{UID: 4242, GID: 4242}, h, blockstore.ACLAccess,
		nil); err != blockstore.ErrPerm {
		t.Error(err)
	}
}
