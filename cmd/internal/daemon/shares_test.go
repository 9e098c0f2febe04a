package daemon

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"github.com/rstored/rstored/blockstore"
	"github.com/rstored/rstored/nfs"
	"github.com/rstored/rstored/nfs/client"
	"github.com/rstored/rstored/nfs/nfs3"
	"github.com/rstored/rstored/nfs/nlm"
	"github.com/rstored/rstored/rpcrdma/rpc"
	"github.com/rstored/rstored/rpcrdma/tcp"
	"github.com/rstored/rstored/rpcrdma/xdr"
)

// TestReservedAcrossVersions: what an open of version 4 denies, neither version 3 nor the
// lock manager may do, and the other way round.
func TestReservedAcrossVersions(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "f"), []byte("content"), 0o666); err != nil {
		t.Fatal(err)
	}
	cfg := testConfig(t, dir+"=/a(no_root_squash)")
	cfg.RDMAListen = nil
	d, _ := startDaemon(t, cfg)
	defer stopDaemon(t, d)
	ctx := t.Context()
	dial := func(context.Context) (rpc.Client, error) { return tcp.Dial(ctx, cfg.TCPListen[0]) }
	speak := func(v client.Version) *client.Client {
		c := client.New(client.Config{Version: v, Cred: &rpc.Cred{Flavor: rpc.AuthSys}, Dial: dial})
		t.Cleanup(func() { _ = c.Close() })
		return c
	}
	three, four := speak(client.Version3), speak(client.Version42)
	n, err := three.Resolve(ctx, "/a/f")
	if err != nil {
		t.Fatal(err)
	}
	size := uint64(3)
	want := func(when string, read, write error) {
		t.Helper()
		is := func(what string, got, want error) {
			t.Helper()
			if (got == nil) != (want == nil) || want != nil && !client.IsStatus(got, nfs.ErrAcces) {
				t.Errorf("%s: %s by version 3: %v", when, what, got)
			}
		}
		_, _, err := three.Read(ctx, n.Handle, make([]byte, 10), 0)
		is("READ", err, read)
		_, err = three.Write(ctx, n.Handle, []byte("x"), 0, blockstore.Unstable)
		is("WRITE", err, write)
		is("SETATTR", three.SetAttr(ctx, n.Handle, &blockstore.SetAttr{Size: &size}, nil), write)
	}
	conn, err := dial(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	share := func(proc, access, deny uint32) (st nlm.Stat) {
		t.Helper()
		err := conn.Call(ctx, &rpc.Request{
			Prog: nlm.Program, Vers: nlm.Version, Proc: proc,
			Cred: &rpc.Cred{Flavor: rpc.AuthSys}, Args: func(e *xdr.Encoder) {
				e.Opaque([]byte("c"))
				e.String("client")
				nfs3.EncodeHandle(e, n.Handle)
				e.Opaque([]byte("o"))
				e.Uint32(deny)
				e.Uint32(access)
				e.Bool(false)
			}, Res: func(d *xdr.Decoder) error {
				d.Opaque(100)
				st = nlm.Stat(d.Uint32())
				d.Uint32()
				return d.Err()
			},
		})
		if err != nil {
			t.Fatal(err)
		}
		return st
	}
	want("before", nil, nil)
	f, err := four.OpenShare(ctx, "/a/f", nfs.ShareRead, nfs.ShareWrite)
	if err != nil {
		t.Fatal(err)
	}
	want("nobody is to write", nil, nfs.ErrAcces)
	if st := share(nlm.ProcShare, nfs.ShareBoth, 0); st != nlm.Denied {
		t.Errorf("SHARE to write: %v", st)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	want("closed", nil, nil)
	if f, err = four.OpenShare(ctx, "/a/f", nfs.ShareBoth, nfs.ShareBoth); err != nil {
		t.Fatal(err)
	}
	want("nobody is to do anything", nfs.ErrAcces, nfs.ErrAcces)
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	if st := share(nlm.ProcShare, nfs.ShareRead, nfs.ShareWrite); st != nlm.Granted {
		t.Errorf("SHARE: %v", st)
	}
	want("reserved by the same host", nil, nil)
	if _, err := four.OpenShare(ctx, "/a/f", nfs.ShareBoth, 0); !client.IsStatus(err, nfs.ErrShareDenied) {
		t.Errorf("OPEN to write: %v", err)
	}
	if st := share(nlm.ProcUnshare, 0, 0); st != nlm.Granted {
		t.Errorf("UNSHARE: %v", st)
	}
	if f, err = four.OpenShare(ctx, "/a/f", nfs.ShareBoth, 0); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Error(err)
	}
}
