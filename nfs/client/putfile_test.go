package client

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"testing"
	"time"

	"github.com/rstored/rstored/blockstore"
	"github.com/rstored/rstored/blockstore/memfs"
	"github.com/rstored/rstored/nfs"
	"github.com/rstored/rstored/rpcrdma/rpc"
)

// counted makes a client that counts its calls and knows the limits of /data.
func counted(t *testing.T) (s *server, c *Client, root *Node, calls *int) {
	t.Helper()
	s, calls = newServer(t), new(int)
	c = s.meddled(Version42, func(_ context.Context, r *rpc.Request, call func(*rpc.Request) error) error {
		*calls++
		return call(r)
	})
	root, err := c.Resolve(t.Context(), "/data")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.limit(t.Context(), root.Handle, TransferMax); err != nil { // asks the server
		t.Fatal(err)
	}
	return s, c, root, calls
}

// TestPutFile: a file is made, and replaced, in one call, with its data and attributes.
func TestPutFile(t *testing.T) {
	_, c, root, calls := counted(t)
	ctx := context.Background()
	when := time.Unix(1_000_000_007, 9000)
	for _, data := range [][]byte{fill(1, 5000), nil, fill(2, 1), fill(3, TransferMax)} {
		*calls = 0
		h, err := c.PutFile(ctx, root.Handle, &NewFile{
			Name: "file", Part: ".part", Data: data,
			Owner: &blockstore.SetAttr{UID: new(uint32(7)), GID: new(uint32(8))},
			Attr: &blockstore.SetAttr{
				Mode: new(uint32(0o4754)), AtimeHow: blockstore.TimeClient, Atime: when,
				MtimeHow: blockstore.TimeClient, Mtime: when,
			},
		})
		if err != nil || *calls != 1 {
			t.Fatalf("%d bytes: %d calls, %v", len(data), *calls, err)
		}
		n, err := c.Lookup(ctx, root.Handle, "file")
		if err != nil || !bytes.Equal(n.Handle, h) {
			t.Fatalf("%d bytes: %v, or another file has the name", len(data), err)
		}
		a := n.Attr
		if a.Size != uint64(len(data)) || a.Mode != 0o4754 || a.UID != 7 || a.GID != 8 || !a.Mtime.Equal(when) ||
			!a.Atime.Equal(when) {
			t.Errorf("%d bytes: %+v", len(data), a)
		}
		got := memory{b: make([]byte, len(data))}
		if err := c.Download(ctx, h, &got, 0, uint64(len(data)), nil); err != nil || !bytes.Equal(got.b, data) {
			t.Errorf("%d bytes: other data came back, %v", len(data), err)
		}
		if _, err := c.Lookup(ctx, root.Handle, ".part"); !IsStatus(err, nfs.ErrNoEnt) {
			t.Errorf("%d bytes: of the part: %v", len(data), err)
		}
	}
	if list := four(t, c).opens.list(); len(list) != 0 {
		t.Errorf("%d files are open", len(list))
	}
}

// TestPutFileRefused: what cannot be one call is refused without one. A call that fails leaves the
// old file as it was.
func TestPutFileRefused(t *testing.T) {
	s := newServer(t)
	ctx := context.Background()
	for _, v := range []Version{Version3, Version42} {
		calls := 0
		c := s.meddled(v, func(_ context.Context, r *rpc.Request, call func(*rpc.Request) error) error {
			calls++
			return call(r)
		})
		root, err := c.Resolve(ctx, "/data")
		if err != nil {
			t.Fatal(err)
		}
		if _, err := c.limit(ctx, root.Handle, TransferMax); err != nil {
			t.Fatal(err)
		}
		calls = 0
		_, err = c.PutFile(ctx, root.Handle, &NewFile{Name: "f", Part: ".p", Data: make([]byte, TransferMax+1)})
		if !errors.Is(err, errors.ErrUnsupported) || calls != 0 {
			t.Errorf("version %v: %v after %d calls", v, err, calls)
		}
		if v == Version3 {
			continue
		}
		old, err := c.PutFile(ctx, root.Handle, &NewFile{Name: "f", Part: ".p", Data: []byte("old")})
		if err != nil {
			t.Fatal(err)
		}
		_, err = c.PutFile(ctx, root.Handle, &NewFile{Name: "other", Part: "f", Data: []byte("new")})
		if err != nfs.ErrExist {
			t.Errorf("a part with a name that is taken: %v", err)
		}
		four := four(t, c)
		four.current().fore.MaxOps = opsLeast
		calls = 0
		_, err = c.PutFile(ctx, root.Handle, &NewFile{Name: "f", Part: ".p", Data: []byte("new")})
		if !errors.Is(err, errors.ErrUnsupported) || calls != 0 {
			t.Errorf("with %d operations: %v after %d calls", opsLeast, err, calls)
		}
		n, err := c.Lookup(ctx, root.Handle, "f")
		if err != nil || !bytes.Equal(n.Handle, old) || n.Attr.Size != 3 {
			t.Errorf("the old file: %+v, %v", n, err)
		}
	}
}

// shortFS writes at most 100 bytes at a time.
type shortFS struct{ *memfs.FS }

// WriteAt implements blockstore.FS.
func (s shortFS) WriteAt(c *blockstore.Cred, h blockstore.Handle, p []byte, off uint64, how blockstore.Stability) (int,
	blockstore.Stability, blockstore.Wcc, error,
) {
	return s.FS.WriteAt(c, h, p[:min(len(p), 100)], off, how)
}

// TestPutFileInPart: a file of which the server has written a part alone does not take its place.
func TestPutFileInPart(t *testing.T) {
	s := newServerOf(t, shortFS{memfs.New(memfs.Options{})})
	ctx := context.Background()
	s.vers = Version42
	c := s.client()
	root, err := c.Resolve(ctx, "/data")
	if err != nil {
		t.Fatal(err)
	}
	old, err := c.PutFile(ctx, root.Handle, &NewFile{Name: "f", Part: ".p", Data: fill(1, 100)})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.PutFile(ctx, root.Handle, &NewFile{Name: "f", Part: ".p", Data: fill(2, 101)}); err == nil {
		t.Error("a file in part is no error")
	}
	n, err := c.Lookup(ctx, root.Handle, "f")
	if err != nil || !bytes.Equal(n.Handle, old) || n.Attr.Size != 100 {
		t.Errorf("the old file: %+v, %v", n, err)
	}
	if _, err := c.Lookup(ctx, root.Handle, ".p"); err != nil {
		t.Errorf("the part: %v", err)
	}
}

// fullFS has no space for data.
type fullFS struct{ *memfs.FS }

// WriteAt implements blockstore.FS.
func (fullFS) WriteAt(*blockstore.Cred, blockstore.Handle, []byte, uint64, blockstore.Stability) (int,
	blockstore.Stability, blockstore.Wcc, error,
) {
	return 0, 0, blockstore.Wcc{}, blockstore.ErrNoSpace
}

// TestPutFileFailed: a part that could not be written is not left open.
func TestPutFileFailed(t *testing.T) {
	s := newServerOf(t, fullFS{memfs.New(memfs.Options{})})
	ctx := context.Background()
	s.vers = Version42
	c := s.client()
	root, err := c.Resolve(ctx, "/data")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.PutFile(ctx, root.Handle, &NewFile{Name: "f", Part: ".p", Data: fill(1, 100)}); err != nfs.ErrNoSpc {
		t.Errorf("a full disk: %v", err)
	}
	if n := s.four.State().Counts().Opens; n != 0 {
		t.Errorf("%d files are open at the server", n)
	}
}

// TestPutFiles: small files share calls. Where one of them fails, those before it are complete,
// nothing is left open, and the handles say which they are.
func TestPutFiles(t *testing.T) {
	s, c, root, calls := counted(t)
	ctx := context.Background()
	const n = 23
	files := make([]NewFile, n)
	read := make([]FileData, n)
	for i := range files {
		files[i] = NewFile{
			Name: fmt.Sprint("file-", i), Part: fmt.Sprint(".part-", i), Data: fill(byte(i), 1000*i),
			Attr: &blockstore.SetAttr{Mode: new(uint32(0o640))},
		}
	}
	for range 2 { // the second time they replace the first ones
		*calls = 0
		made, err := c.PutFiles(ctx, root.Handle, files)
		if err != nil || len(made) != n || *calls > 5 {
			t.Fatalf("%d files by %d calls, %v", len(made), *calls, err)
		}
		for i := range files {
			read[i] = FileData{made[i], make([]byte, len(files[i].Data))}
		}
		*calls = 0
		got, err := c.ReadFiles(ctx, read)
		if err != nil || got != n || *calls > 2 {
			t.Fatalf("%d files by %d calls, %v", got, *calls, err)
		}
		for i := range files {
			if !bytes.Equal(read[i].Data, files[i].Data) {
				t.Errorf("file %d came back with other data", i)
			}
		}
	}
	read[7].Data = make([]byte, len(files[7].Data)+1)
	if got, err := c.ReadFiles(ctx, read); got != 7 || !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("a short file: %d files, %v", got, err)
	}
	for i := range files {
		files[i].Data = []byte("new")
	}
	const bad = 13
	files[bad].Part = "file-0"
	made, err := c.PutFiles(ctx, root.Handle, files)
	if err != nfs.ErrExist || len(made) != bad {
		t.Fatalf("a part with a name that is taken: %d files, %v", len(made), err)
	}
	for i := range files {
		at, err := c.Lookup(ctx, root.Handle, files[i].Name)
		if err != nil || (at.Attr.Size == 3) != (i < bad) {
			t.Errorf("file %d: %v, %v", i, at, err)
		}
	}
	if n := s.four.State().Counts().Opens; n != 0 {
		t.Errorf("%d files are open at the server", n)
	}
}
