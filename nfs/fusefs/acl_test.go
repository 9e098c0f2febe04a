package fusefs

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/rstored/rstored/blockstore"
	"github.com/rstored/rstored/nfs/client"
)

const (
	accessACL  = "system.posix_acl_access"
	defaultACL = "system.posix_acl_default"
)

// aclWith is the ACL of a mode with a user and a group by number.
func aclWith(mode uint32, user, group uint32) blockstore.ACL {
	l := blockstore.ACLOfMode(mode)
	return blockstore.ACL{
		l[0],
		{Tag: blockstore.ACLUser, ID: user, Perm: 6},
		{Tag: blockstore.ACLGroupObj, Perm: l[1].Perm},
		{Tag: blockstore.ACLGroup, ID: group, Perm: 4},
		{Tag: blockstore.ACLMask, Perm: 6},
		l[2],
	}
}

func getACL(t *testing.T, path, name string) blockstore.ACL {
	t.Helper()
	b := make([]byte, 4096)
	n, err := unix.Getxattr(path, name, b)
	must(t, err)
	l, err := blockstore.ParseACL(b[:n])
	must(t, err)
	return l
}

// TestACLs: POSIX ACLs through the mount are those of the server's disk, with every version.
func TestACLs(t *testing.T) {
	each(t, func(t *testing.T, s *host, m *mounted) {
		if !s.store.Limits().ACLs {
			t.Skip("the file system of the test has no ACLs")
		}
		f, d := m.path("f"), m.path("d")
		must(t, os.WriteFile(f, nil, 0o640))
		must(t, os.Mkdir(d, 0o755))
		b := make([]byte, 4096)
		_, err := unix.Getxattr(f, accessACL, b)
		errno(t, err, syscall.ENODATA)
		want := aclWith(0o640, 4711, 4712)
		must(t, unix.Setxattr(f, accessACL, want.AppendXattr(nil), 0))
		for _, path := range []string{f, filepath.Join(s.dir, "f")} {
			if got := getACL(t, path, accessACL); !slices.Equal(got, want) {
				t.Errorf("%s: %v, want %v", path, got, want)
			}
		}
		if info, err := os.Stat(f); err != nil || info.Mode().Perm() != 0o660 {
			t.Errorf("the mode is %v, %v; it shows the mask", info.Mode(), err)
		}
		n, err := unix.Listxattr(f, b)
		must(t, err)
		if !bytes.Contains(b[:n], []byte(accessACL)) {
			t.Errorf("%q", b[:n])
		}

		inherit := aclWith(0o740, 4713, 4714)
		must(t, unix.Setxattr(d, defaultACL, inherit.AppendXattr(nil), 0))
		if got := getACL(t, filepath.Join(s.dir, "d"), defaultACL); !slices.Equal(got, inherit) {
			t.Errorf("%v, want %v", got, inherit)
		}
		must(t, os.WriteFile(d+"/x", nil, 0o666))
		if got := getACL(t, d+"/x", accessACL); len(got) != len(inherit) {
			t.Errorf("a new file has %v", got)
		}
		// Of the two ACLs of a directory only the one that is named changes.
		must(t, unix.Setxattr(d, accessACL, want.AppendXattr(nil), 0))
		if got := getACL(t, d, defaultACL); !slices.Equal(got, inherit) {
			t.Errorf("%v, want %v", got, inherit)
		}
		must(t, unix.Removexattr(d, defaultACL))
		_, err = unix.Getxattr(filepath.Join(s.dir, "d"), defaultACL, b)
		errno(t, err, syscall.ENODATA)
		must(t, unix.Removexattr(f, accessACL))
		_, err = unix.Getxattr(filepath.Join(s.dir, "f"), accessACL, b)
		errno(t, err, syscall.ENODATA)

		errno(t, unix.Setxattr(f, accessACL, []byte{2, 0, 0, 0, 1}, 0), syscall.EINVAL)
		errno(t, unix.Setxattr(f, accessACL, want[:2].AppendXattr(nil), 0), syscall.EINVAL)
		errno(t, unix.Setxattr(f, defaultACL, want.AppendXattr(nil), 0), syscall.EACCES)
	})
}

// TestACLGrants: the kernel of a mount for all users lets those in whom an ACL lets in, and no
// others.
func TestACLGrants(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("only root becomes another user")
	}
	for _, v := range []client.Version{client.Version3, client.Version42} {
		t.Run(v.String(), func(t *testing.T) {
			s := newHost(t)
			if !s.store.Limits().ACLs {
				t.Skip("the file system of the test has no ACLs")
			}
			m := s.mount("tcp", v, func(c *Config) { c.AllowOther = true })
			for dir := filepath.Dir(m.dir); len(dir) > len(os.TempDir()); dir = filepath.Dir(dir) {
				must(t, os.Chmod(dir, 0o755))
			}
			must(t, os.WriteFile(m.path("f"), []byte("for one"), 0o640))
			must(t, unix.Setxattr(m.path("f"), accessACL, aclWith(0o640, 4711, 4712).AppendXattr(nil), 0))
			for uid, ok := range map[uint32]bool{4711: true, 4720: false} {
				c := exec.Command("cat", m.path("f"))
				c.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: 4730}}
				if out, err := c.CombinedOutput(); (err == nil) != ok {
					t.Errorf("user %d: %v: %s", uid, err, out)
				}
			}
		})
	}
}
