package blockstore_test

import (
	"context"
	"fmt"
	"io/fs"
	"log"
	"net"
	"time"

	"github.com/rstored/rstored/blockstore"
	"github.com/rstored/rstored/nfs"
	"github.com/rstored/rstored/nfs/client"
	"github.com/rstored/rstored/nfs/nfs3"
	"github.com/rstored/rstored/rpcrdma/rpc"
	"github.com/rstored/rstored/rpcrdma/tcp"
)

// textStore is a store with one directory, which has one file. It is as small as a store can be.
//
// The embedded FS is nil. It stands for the methods that change something, which are never called,
// because the export is read-only.
type textStore struct {
	blockstore.FS
	name, text string
	made       time.Time
}

// The handles of the two objects. A handle must name the same object after a restart.
var (
	root, _ = blockstore.MakeHandle([]byte{1})
	file, _ = blockstore.MakeHandle([]byte{2})
)

func (s *textStore) Root() (blockstore.Handle, error) { return root, nil }
func (s *textStore) FSID() uint64                     { return 1 }
func (s *textStore) Verifier() [8]byte                { return [8]byte{1} } // no write can be lost
func (s *textStore) Close() error                     { return nil }

func (s *textStore) Limits() blockstore.Limits {
	return blockstore.Limits{MaxFileSize: 1 << 30, LinkMax: 1, NameMax: blockstore.NameMax}
}

func (s *textStore) Stat(*blockstore.Cred, blockstore.Handle) (blockstore.Stat, error) {
	return blockstore.Stat{TotalBytes: uint64(len(s.text)), TotalFiles: 2}, nil
}

func (s *textStore) GetAttr(_ *blockstore.Cred, h blockstore.Handle) (blockstore.Attr, error) {
	a := blockstore.Attr{Type: blockstore.TypeDir, Mode: 0o555, NLink: 2, FileID: 1, Mtime: s.made, Ctime: s.made}
	switch h {
	case root:
	case file:
		a.Type, a.Mode, a.NLink, a.FileID, a.Size = blockstore.TypeReg, 0o444, 1, 2, uint64(len(s.text))
	default:
		return a, blockstore.ErrStale // the handle of an object that is gone
	}
	return a, nil
}

func (s *textStore) Access(c *blockstore.Cred, h blockstore.Handle, want uint32) (uint32, blockstore.Attr, error) {
	a, err := s.GetAttr(c, h)
	return c.AccessBits(&a, want), a, err
}

func (s *textStore) Lookup(c *blockstore.Cred, dir blockstore.Handle, name string) (
	blockstore.Handle, blockstore.Attr, error,
) {
	h := root
	switch {
	case dir != root:
		return h, blockstore.Attr{}, blockstore.ErrNotDir
	case name == s.name:
		h = file
	case name != "." && name != "..":
		return h, blockstore.Attr{}, blockstore.ErrNotExist
	}
	a, err := s.GetAttr(c, h)
	return h, a, err
}

func (s *textStore) ReadAt(_ *blockstore.Cred, h blockstore.Handle, p []byte, off uint64, _ bool) (int, bool, error) {
	if h != file {
		return 0, false, blockstore.ErrIsDir
	}
	n := copy(p, s.text[min(off, uint64(len(s.text))):])
	return n, off+uint64(n) >= uint64(len(s.text)), nil
}

func (s *textStore) ReadDir(c *blockstore.Cred, dir blockstore.Handle, cookie uint64, verf [8]byte, plus bool,
	emit func(*blockstore.DirEntry) bool,
) ([8]byte, bool, error) {
	if dir != root {
		return verf, false, blockstore.ErrNotDir
	}
	for i, name := range []string{".", "..", s.name}[min(cookie, 3):] {
		h, a, err := s.Lookup(c, dir, name)
		if err != nil {
			return verf, false, err
		}
		e := blockstore.DirEntry{Name: name, FileID: a.FileID, Cookie: cookie + uint64(i) + 1}
		if plus {
			e.Attr, e.Handle = &a, &h
		}
		if !emit(&e) {
			return verf, false, nil
		}
	}
	return verf, true, nil
}

// A store of your own is served by NFS, and read by the client. Package storetest has the tests
// that such a store should pass.
func Example() {
	exports := nfs.NewTable(nil)
	store := &textStore{name: "motd", text: "Nothing but this text.\n", made: time.Now()}
	if err := exports.Add(&nfs.Export{ID: 1, Path: "/text", Pseudo: "/text", FS: store, ReadOnly: true}); err != nil {
		log.Fatal(err)
	}
	cfg := nfs.Config{Exports: exports, Codec: nfs.NewCodec([]byte("the secret key of handles"))}
	srv := rpc.NewServer(rpc.ServerConfig{Programs: nfs3.Programs(cfg)})
	defer srv.Close()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		log.Fatal(err)
	}
	listener := tcp.Serve(l, srv)
	defer listener.Close()

	ctx := context.Background()
	c := client.New(client.Config{
		Peer: "the example",
		Dial: func(ctx context.Context) (rpc.Client, error) { return tcp.Dial(ctx, l.Addr().String()) },
	})
	defer c.Close()
	files, err := c.FS(ctx, "/text")
	if err != nil {
		log.Fatal(err)
	}
	text, err := fs.ReadFile(files, "motd")
	if err != nil {
		log.Fatal(err)
	}
	fmt.Print(string(text))
	_, err = c.CreateFile(ctx, "/text/new", 0o644)
	fmt.Println(err)
	// Output:
	// Nothing but this text.
	// create /text/new: read-only filesystem
}
