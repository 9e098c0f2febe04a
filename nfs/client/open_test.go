package client

import (
	"bytes"
	"context"
	"errors"
	"testing"

	"github.com/rstored/rstored/blockstore"
	"github.com/rstored/rstored/nfs"
	"github.com/rstored/rstored/rpcrdma/rpc"
)

// TestOpenHandles: a file that is created with a mode that forbids it can be written through its
// open, also after a restart of the server; another identity cannot open it.
func TestOpenHandles(t *testing.T) {
	eachVersion(t, func(t *testing.T, s *server) {
		c := s.client()
		ctx := WithCred(context.Background(), &rpc.Cred{Flavor: rpc.AuthSys, UID: 7, GID: 8, Machine: "test"})
		root, err := c.Resolve(context.Background(), "/data")
		if err != nil {
			t.Fatal(err)
		}
		all, mode := uint32(0o777), uint32(0o400)
		if err := c.SetAttr(context.Background(), root.Handle, &blockstore.SetAttr{Mode: &all}, nil); err != nil {
			t.Fatal(err)
		}
		n, release, err := c.CreateOpen(ctx, root.Handle, "f", blockstore.Guarded, &blockstore.SetAttr{Mode: &mode},
			ShareBoth)
		if err != nil {
			t.Fatal(err)
		}
		if n.Attr.UID != 7 || n.Attr.GID != 8 || n.Attr.Mode != mode {
			t.Errorf("%+v", n.Attr)
		}
		if _, err := c.Write(ctx, n.Handle, []byte("one"), 0, blockstore.FileSync); err != nil {
			t.Error(err)
		}
		s.restart()
		if _, err := c.Write(ctx, n.Handle, []byte("two"), 3, blockstore.FileSync); err != nil {
			t.Error(err)
		}
		_, _, err = c.CreateOpen(ctx, root.Handle, "f", blockstore.Guarded, nil, ShareRead)
		if !IsStatus(err, nfs.ErrExist) {
			t.Error(err)
		}
		other := WithCred(context.Background(), &rpc.Cred{Flavor: rpc.AuthSys, UID: 9, GID: 9, Machine: "test"})
		if _, err := c.OpenHandle(other, n.Handle, ShareRead); !IsStatus(err, nfs.ErrAcces) {
			t.Errorf("another user opens the file: %v", err)
		}
		again, err := c.OpenHandle(ctx, n.Handle, ShareRead)
		if err != nil {
			t.Fatal(err)
		}
		b := make([]byte, 10)
		if k, eof, err := c.Read(ctx, n.Handle, b, 0); string(b[:k]) != "onetwo" || !eof || err != nil {
			t.Errorf("%q %v %v", b[:k], eof, err)
		}
		if err := errors.Join(again(), release()); err != nil {
			t.Error(err)
		}
	})
}

// TestDirReader: a directory is read on from any cookie.
func TestDirReader(t *testing.T) {
	eachVersion(t, func(t *testing.T, s *server) {
		c := s.client()
		ctx := context.Background()
		for _, name := range []string{"a", "b", "c", "d"} {
			put(t, c, "/data/"+name, nil)
		}
		root, err := c.Resolve(ctx, "/data")
		if err != nil {
			t.Fatal(err)
		}
		r := c.DirReader(root.Handle)
		all, err := r.Next(ctx)
		if err != nil || len(all) != 4 {
			t.Fatal(all, err)
		}
		for i, e := range all {
			r.Seek(e.Cookie)
			rest, err := r.Next(ctx)
			if err != nil || len(rest) != 3-i || len(rest) > 0 && rest[0].Name != all[i+1].Name {
				t.Errorf("behind %q: %v, %v", e.Name, rest, err)
			}
			if more, err := r.Next(ctx); len(more) > 0 || err != nil {
				t.Error(more, err)
			}
		}
	})
}

// TestRangesByHandle: SEEK, ALLOCATE, DEALLOCATE and COPY by handle.
func TestRangesByHandle(t *testing.T) {
	s := newServer(t)
	s.vers = Version42
	c := s.client()
	ctx := context.Background()
	put(t, c, "/data/f", bytes.Repeat([]byte{1}, 64<<10))
	put(t, c, "/data/g", nil)
	f, err := c.Resolve(ctx, "/data/f")
	if err != nil {
		t.Fatal(err)
	}
	g, err := c.Resolve(ctx, "/data/g")
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Allocate(ctx, f.Handle, 0, 128<<10); err != nil {
		t.Error(err)
	}
	if err := c.Deallocate(ctx, f.Handle, 64<<10, 64<<10); err != nil {
		t.Error(err)
	}
	if a, err := c.GetAttr(ctx, f.Handle); err != nil || a.Size != 128<<10 {
		t.Error(a.Size, err)
	}
	if at, err := c.Seek(ctx, f.Handle, 0, true); err != nil || at != 64<<10 {
		t.Error(at, err)
	}
	if _, err := c.Seek(ctx, f.Handle, 64<<10, false); !IsStatus(err, nfs.ErrNXIO) {
		t.Error(err)
	}
	n, err := c.CopyRange(ctx, Range{f.Handle, 60 << 10}, Range{g.Handle, 5}, 4<<10)
	if err != nil || n != 4<<10 {
		t.Error(n, err)
	}
	if n, err := c.CopyRange(ctx, Range{f.Handle, 127 << 10}, Range{g.Handle, 0}, 4<<10); err != nil || n > 1<<10 {
		t.Error(n, err)
	}
	b := make([]byte, 5<<10)
	if k, _, err := c.Read(ctx, g.Handle, b[:4<<10], 5); err != nil || k != 4<<10 {
		t.Error(k, err)
	}
}

// TestXattrsByHandle: extended attributes of version 4.2.
func TestXattrsByHandle(t *testing.T) {
	s := newServer(t)
	s.vers = Version42
	c := s.client()
	ctx := context.Background()
	put(t, c, "/data/f", nil)
	f, err := c.Resolve(ctx, "/data/f")
	if err != nil {
		t.Fatal(err)
	}
	if err := c.SetXattr(ctx, f.Handle, "a", []byte("1"), blockstore.XattrCreate); err != nil {
		t.Fatal(err)
	}
	if err := c.SetXattr(ctx, f.Handle, "a", nil, blockstore.XattrCreate); !IsStatus(err, nfs.ErrExist) {
		t.Error(err)
	}
	if v, err := c.GetXattr(ctx, f.Handle, "a"); string(v) != "1" || err != nil {
		t.Errorf("%q, %v", v, err)
	}
	if list, err := c.ListXattrs(ctx, f.Handle); err != nil || len(list) != 1 || list[0] != "a" {
		t.Error(list, err)
	}
	if err := c.RemoveXattr(ctx, f.Handle, "a"); err != nil {
		t.Error(err)
	}
	if _, err := c.GetXattr(ctx, f.Handle, "a"); !IsStatus(err, nfs.ErrNoXattr) {
		t.Error(err)
	}
}
