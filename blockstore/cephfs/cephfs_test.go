//go:build cephfs && linux && cgo

package cephfs

import (
	"os"
	"testing"

	"github.com/rstored/rstored/blockstore"
	"github.com/rstored/rstored/blockstore/storetest"
)

// open opens a directory of its own, with a quota, in the filesystem of RSTORED_CEPH, which is the
// path of a ceph.conf (test/ceph/run makes a cluster for a command).
func open(t *testing.T) blockstore.FS {
	t.Helper()
	conf := os.Getenv("RSTORED_CEPH")
	if conf == "" {
		t.Skip("RSTORED_CEPH is not set: there is no cluster")
	}
	top, err := Open(Options{Conf: conf})
	if err != nil {
		t.Fatal(err)
	}
	root, err := top.Root()
	if err != nil {
		t.Fatal(err)
	}
	name := "t" + t.Name()[len("TestConformance/"):]
	mode := uint32(0o777)
	if _, _, _, err = top.Mkdir(nil, root, name, &blockstore.SetAttr{Mode: &mode}); err != nil {
		t.Fatal(err)
	}
	if err := top.Close(); err != nil {
		t.Fatal(err)
	}
	return mount(t, conf, name)
}

func mount(t *testing.T, conf, name string) blockstore.FS {
	t.Helper()
	fs, err := Open(Options{Conf: conf, Root: "/" + name})
	if err != nil {
		t.Fatal(err)
	}
	if err := fs.(*FS).SetProjectQuota(1 << 40); err != nil {
		t.Fatal(err)
	}
	return fs
}

// reopen is a restart, or another gateway.
func reopen(t *testing.T, fs blockstore.FS) blockstore.FS {
	t.Helper()
	if err := fs.Close(); err != nil {
		t.Fatal(err)
	}
	return mount(t, os.Getenv("RSTORED_CEPH"), "t"+t.Name()[len("TestConformance/"):])
}

func TestConformance(t *testing.T) {
	user := &blockstore.Cred{UID: 1000, GID: 1001, Groups: []uint32{1002}}
	storetest.Run(t, open, storetest.Options{
		User: user, AnyUser: true, Root: true, BigDir: 1000, Dense: true, Reopen: reopen,
	})
}
