package adapters

import (
	"context"
	"errors"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"slices"
	"testing"
	"testing/fstest"
	"time"

	"github.com/go-git/go-billy/v5"
	"github.com/go-git/go-billy/v5/util"
	"github.com/spf13/afero"

	"github.com/rstored/rstored/blockstore/memfs"
	"github.com/rstored/rstored/nfs"
	"github.com/rstored/rstored/nfs/client"
	"github.com/rstored/rstored/nfs/lock"
	"github.com/rstored/rstored/nfs/nfs4"
	"github.com/rstored/rstored/rpcrdma/rpc"
	"github.com/rstored/rstored/rpcrdma/tcp"
)

// serve serves memory over TCP, and returns it as a client sees it.
func serve(t *testing.T) *client.FS {
	t.Helper()
	exports := nfs.NewTable(nil)
	err := exports.Add(&nfs.Export{
		ID: 1, Pseudo: "/data", FS: memfs.New(memfs.Options{}),
		Clients: []nfs.ClientRule{{CIDR: netip.MustParsePrefix("127.0.0.0/8"), Squash: nfs.NoRootSquash}},
	})
	if err != nil {
		t.Fatal(err)
	}
	four := nfs4.New(nfs4.Config{
		Config:   nfs.Config{Exports: exports, Codec: nfs.NewCodec([]byte("0123456789abcdef0123456789abcdef"))},
		Identity: []byte("test"), Boot: 1, Locks: lock.New(0),
	})
	srv := rpc.NewServer(rpc.ServerConfig{Programs: four.Programs()})
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ports := tcp.Serve(l, srv)
	addr := l.Addr().String()
	c := client.New(client.Config{
		Peer: addr, Version: client.Version42, Cred: &rpc.Cred{Flavor: rpc.AuthSys, Machine: "test"},
		Dial: func(ctx context.Context) (rpc.Client, error) { return tcp.Dial(ctx, addr) },
	})
	t.Cleanup(func() {
		if err := errors.Join(c.Close(), ports.Close()); err != nil {
			t.Error(err)
		}
		srv.Close()
	})
	view, err := c.FS(context.Background(), "/data")
	if err != nil {
		t.Fatal(err)
	}
	return view
}

// TestAfero: the functions of afero work on a server, and what they leave is an fs.FS.
func TestAfero(t *testing.T) {
	var f afero.Fs = Afero{serve(t)}
	when := time.Unix(1_000_000_000, 0)
	err := errors.Join(
		f.MkdirAll("/a/b", 0o755), afero.WriteFile(f, "/a/b/c", []byte("text"), 0o640),
		afero.SafeWriteReader(f, "/made/with/its/directory", os.Stdin), f.Chtimes("/a/b/c", when, when),
		f.Chmod("/a/b/c", 0o600), f.Rename("/a/b/c", "/a/d"), f.Mkdir("/e", 0o700),
	)
	if err != nil {
		t.Fatal(err)
	}
	if b, err := afero.ReadFile(f, "/a/d"); err != nil || string(b) != "text" {
		t.Errorf("%q, %v", b, err)
	}
	if i, err := f.Stat("/a/d"); err != nil || i.Mode() != 0o600 || !i.ModTime().Equal(when) {
		t.Errorf("%v, %v", i, err)
	}
	if ok, err := afero.DirExists(f, "/a/b"); !ok || err != nil {
		t.Error(ok, err)
	}
	var names []string
	err = afero.Walk(f, "/", func(name string, _ fs.FileInfo, err error) error {
		names = append(names, name)
		return err
	})
	want := []string{
		"/", "/a", "/a/b", "/a/d", "/e", "/made", "/made/with", "/made/with/its", "/made/with/its/directory",
	}
	if err != nil || !slices.Equal(names, want) {
		t.Errorf("%q, %v", names, err)
	}
	temp, err := afero.TempFile(f, "/e", "t*")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := temp.WriteString("0123"); err != nil {
		t.Error(err)
	}
	if err := errors.Join(temp.Truncate(2), temp.Sync(), temp.Close()); err != nil {
		t.Error(err)
	}
	if b, err := afero.ReadFile(f, temp.Name()); err != nil || string(b) != "01" {
		t.Errorf("%q, %v", b, err)
	}
	if err := fstest.TestFS(afero.NewIOFS(f), "a/d"); err != nil {
		t.Error(err)
	}
	if err := f.RemoveAll("/a"); err != nil {
		t.Error(err)
	}
	if _, err := f.Open("/a/d"); !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
}

// TestBilly: the functions of go-billy work on a server, below a chroot, too.
func TestBilly(t *testing.T) {
	var f billy.Filesystem = Billy{serve(t)}
	for _, f := range []billy.Filesystem{f, below(t, f)} {
		err := errors.Join(
			util.WriteFile(f, "/x/y/z", []byte("text"), 0o644), f.Symlink("y/z", "/x/link"),
			f.Rename("/x/y/z", "/x/y/w"), f.Remove("/x/link"), f.Symlink("y/w", "/x/link"), f.MkdirAll("/empty", 0o755),
		)
		if err != nil {
			t.Fatal(err)
		}
		if b, err := util.ReadFile(f, "/x/link"); err != nil || string(b) != "text" {
			t.Errorf("%q, %v", b, err)
		}
		if target, err := f.Readlink("/x/link"); err != nil || target != "y/w" {
			t.Errorf("%q, %v", target, err)
		}
		names, err := util.Glob(f, "/x/*")
		if err != nil || !slices.Equal(names, []string{"/x/link", "/x/y"}) {
			t.Errorf("%q, %v", names, err)
		}
		temp, err := f.TempFile("/empty", "t")
		if err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(temp.Lock(), temp.Unlock(), temp.Close()); err != nil {
			t.Error(err)
		}
		if err := util.RemoveAll(f, "/x"); err != nil {
			t.Error(err)
		}
		if _, err := f.Stat("/x"); !errors.Is(err, fs.ErrNotExist) {
			t.Error(err)
		}
	}
}

func below(t *testing.T, f billy.Filesystem) billy.Filesystem {
	t.Helper()
	if err := f.MkdirAll("/root", 0o755); err != nil {
		t.Fatal(err)
	}
	in, err := f.Chroot("/root")
	if err != nil {
		t.Fatal(err)
	}
	return in
}
