package oracle

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"testing"
	"time"

	x4 "github.com/buildbarn/go-xdr/pkg/protocols/nfsv4"

	"github.com/rstored/rstored/blockstore"
	"github.com/rstored/rstored/nfs"
	"github.com/rstored/rstored/nfs/client"
	"github.com/rstored/rstored/nfs/nfs4"
	"github.com/rstored/rstored/rpcrdma/rpc"
	"github.com/rstored/rstored/rpcrdma/xdr"
)

// carrier connects the client with a server, and looks at every compound on its way: what
// go-xdr makes of it must be the same bytes again. change may turn a reply into another
// one that a server could have given.
type carrier struct {
	r      *rig
	change func(*x4.Compound4res)

	mu   sync.Mutex
	seen map[x4.NfsOpnum4]int // results that were fine
}

// Close implements rpc.Client.
func (c *carrier) Close() error { return nil }

// Call implements rpc.Client.
func (c *carrier) Call(_ context.Context, q *rpc.Request) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if q.Proc != nfs4.ProcCompound {
		return nil
	}
	t := c.r.t
	var e xdr.Encoder
	q.Args(&e)
	args := e.AppendFlat(nil)
	in := bytes.NewReader(args)
	var asked x4.Compound4args
	if _, err := asked.ReadFrom(in); err != nil || in.Len() != 0 {
		t.Errorf("the client sends %x: %v, %d bytes are left", args, err, in.Len())
		return &rpc.ConnError{Peer: "server", Err: io.ErrUnexpectedEOF}
	}
	if again := bytesOf(t, &asked); !bytes.Equal(again, args) {
		t.Errorf("the client sends\n%x, which put together again is\n%x", args, again)
	}
	raw, ok := c.r.send(args)
	if !ok {
		t.Errorf("refused: %x", args)
		return &rpc.ConnError{Peer: "server", Err: io.ErrUnexpectedEOF}
	}
	res := parse(t, raw)
	for _, op := range res.Resarray {
		if statusOf(t, op) == x4.NFS4_OK {
			c.seen[op.GetResop()]++
		}
	}
	if c.change != nil {
		c.change(res)
	}
	reply := bytesOf(t, res)
	d := xdr.NewDecoder(reply)
	if q.Res == nil {
		return nil
	}
	if err := q.Res(&d); err != nil {
		t.Errorf("the client does not take %x: %v", reply, err)
		return err
	}
	if res.Status == x4.NFS4_OK && d.Remaining() != 0 && !leaves(res) {
		t.Errorf("the client leaves %d bytes of %x", d.Remaining(), reply)
	}
	return nil
}

// leaves reports whether the end of a reply is of no use to the client: what the server
// calls itself.
func leaves(res *x4.Compound4res) bool { return res.Resarray[0].GetResop() == x4.OP_EXCHANGE_ID }

func connect(t *testing.T, v client.Version) (*client.Client, *carrier) {
	k := &carrier{r: newRig(t), seen: make(map[x4.NfsOpnum4]int)}
	c := client.New(client.Config{
		Peer: "server", Version: v, Cred: &rpc.Cred{Flavor: rpc.AuthSys, Machine: "test"}, GiveUp: time.Second,
		Dial: func(context.Context) (rpc.Client, error) { return k, nil },
	})
	t.Cleanup(func() { _ = c.Close() })
	return c, k
}

// TestClient: what the client sends, and what it makes of the replies.
func TestClient(t *testing.T) {
	for _, v := range []client.Version{client.Version41, client.Version42} {
		t.Run(v.String(), func(t *testing.T) {
			c, k := connect(t, v)
			ctx := context.Background()
			dir, err := c.Resolve(ctx, "/data")
			if err != nil {
				t.Fatal(err)
			}
			h := dir.Handle
			f, err := c.Create(ctx, h, "f", blockstore.Exclusive, nil, [8]byte{1})
			if err != nil {
				t.Fatal(err)
			}
			mode, size, uid, gid, when := uint32(0o640), uint64(7), uint32(5), uint32(6), time.Unix(1e9, 5)
			all := &blockstore.SetAttr{
				Mode: &mode, UID: &uid, GID: &gid, Size: &size,
				AtimeHow: blockstore.TimeServer, MtimeHow: blockstore.TimeClient, Mtime: when,
			}
			for i, err := range []error{
				c.SetAttr(ctx, f.Handle, all, nil), c.Link(ctx, f.Handle, h, "g"), c.Rename(ctx, h, "g", h, "i"),
				c.Remove(ctx, h, "i"),
			} {
				if err != nil {
					t.Errorf("number %d: %v", i, err)
				}
			}
			if a, err := c.GetAttr(ctx, f.Handle); err != nil || a.Size != 7 || a.Mode != mode || a.UID != uid || a.GID != gid ||
				!a.Mtime.Equal(when) {
				t.Errorf("%+v, %v", a, err)
			}
			if n, err := c.Symlink(ctx, h, "s", "a target", nil); err != nil {
				t.Error(err)
			} else if s, err := c.ReadLink(ctx, n.Handle); err != nil || s != "a target" {
				t.Errorf("%q, %v", s, err)
			}
			if n, err := c.Mknod(ctx, h, "dev", blockstore.TypeChr, 1, 3, &blockstore.SetAttr{Mode: &mode}); err != nil ||
				n.Attr.Type != blockstore.TypeChr {
				t.Errorf("%+v, %v", n, err)
			}
			if _, err := c.Mkdir(ctx, h, "d", nil); err != nil {
				t.Error(err)
			}
			if err := c.Rmdir(ctx, h, "d"); err != nil {
				t.Error(err)
			}
			guard := time.Unix(1, 0)
			if err := c.SetAttr(ctx, f.Handle, all, &guard); !client.IsStatus(err, nfs.ErrNotSync) {
				t.Errorf("a change that is guarded: %v", err)
			}
			a, err := c.GetAttr(ctx, f.Handle)
			if err != nil {
				t.Fatal(err)
			}
			if err := c.SetAttr(ctx, f.Handle, all, &a.Ctime); err != nil {
				t.Errorf("a change that is guarded rightly: %v", err)
			}
			if _, err := c.Access(ctx, f.Handle, blockstore.AccessRead); err != nil {
				t.Error(err)
			}
			if _, err := c.Commit(ctx, f.Handle, 0, 0); err != nil {
				t.Error(err)
			}
			if _, err := c.Info(ctx, h); err != nil {
				t.Error(err)
			}
			if _, err := c.PathConf(ctx, h); err != nil {
				t.Error(err)
			}
			if _, err := c.Stat(ctx, h); err != nil {
				t.Error(err)
			}
			data := bytes.Repeat([]byte("0123456789abc"), 5000)
			if err := c.Upload(ctx, f.Handle, bytes.NewReader(data), 0, uint64(len(data)), nil); err != nil {
				t.Error(err)
			}
			file, err := c.OpenShare(ctx, "/data/f", client.ShareBoth, client.ShareWrite)
			if err != nil {
				t.Fatal(err)
			}
			other, err := c.OpenShare(ctx, "/data/f", client.ShareRead, 0)
			if err != nil {
				t.Fatal(err)
			}
			for range 2 {
				if err := file.TryLock(3, 10, true); err != nil {
					t.Error(err)
				}
			}
			var held *client.LockedError
			if err := other.TryLock(5, 0, false); !errors.As(err, &held) || held.Holder.Offset != 3 ||
				held.Holder.Length != 10 || !held.Holder.Exclusive {
				t.Errorf("%+v, %v", held, err)
			}
			if h, err := other.TestLock(5, 0, false); err != nil || h == nil || h.Offset != 3 {
				t.Errorf("%+v, %v", h, err)
			}
			if err := file.Unlock(4, 9); err != nil {
				t.Error(err)
			}
			if h, err := other.TestLock(5, 0, true); err != nil || h != nil {
				t.Errorf("%+v, %v", h, err)
			}
			if err := other.TryLock(5, 0, false); err != nil {
				t.Error(err)
			}
			if err := other.Close(); err != nil {
				t.Error(err)
			}
			got := make([]byte, len(data))
			if _, err := file.ReadAt(got, 0); err != nil || !bytes.Equal(got, data) {
				t.Errorf("%d bytes, %v", len(got), err)
			}
			if _, err := file.WriteAt([]byte("x"), 3); err != nil {
				t.Error(err)
			}
			if err := file.Close(); err != nil {
				t.Error(err)
			}
			for i := range 200 {
				if _, err := c.Create(ctx, h, fmt.Sprint("many", i), blockstore.Guarded, nil, [8]byte{}); err != nil {
					t.Fatal(err)
				}
			}
			n := 0
			if err := c.ReadDir(ctx, h, func(e *client.Entry) error {
				if e.Attr == nil || e.Handle == nil {
					t.Errorf("%+v", e)
				}
				n++
				return nil
			}); err != nil || n < 203 {
				t.Errorf("%d entries, %v", n, err)
			}
			if _, err := c.Lookup(ctx, h, "none"); err == nil {
				t.Error("something was found")
			}
			ops := []x4.NfsOpnum4{
				x4.OP_ACCESS, x4.OP_CLOSE, x4.OP_COMMIT, x4.OP_CREATE, x4.OP_GETATTR, x4.OP_GETFH, x4.OP_LINK, x4.OP_LOOKUP,
				x4.OP_NVERIFY, x4.OP_OPEN,
				x4.OP_PUTFH, x4.OP_PUTROOTFH, x4.OP_READ, x4.OP_READDIR, x4.OP_READLINK, x4.OP_REMOVE, x4.OP_RENAME,
				x4.OP_RESTOREFH, x4.OP_SAVEFH,
				x4.OP_SETATTR, x4.OP_VERIFY, x4.OP_WRITE, x4.OP_EXCHANGE_ID, x4.OP_CREATE_SESSION, x4.OP_SEQUENCE,
				x4.OP_RECLAIM_COMPLETE,
				x4.OP_DESTROY_SESSION, x4.OP_DESTROY_CLIENTID, x4.OP_LOCK, x4.OP_LOCKT, x4.OP_LOCKU, x4.OP_FREE_STATEID,
			}
			if v == client.Version42 {
				to, err := c.Create(ctx, h, "to", blockstore.Guarded, nil, [8]byte{})
				if err != nil {
					t.Fatal(err)
				}
				if err := c.Copy(ctx, f.Handle, to.Handle, 0, uint64(len(data)), nil); err != nil {
					t.Error(err)
				}
				if x, err := c.Extents(ctx, f.Handle, uint64(len(data))); err != nil || len(x) != 1 {
					t.Errorf("%v, %v", x, err)
				}
				ops = append(ops, x4.OP_COPY, x4.OP_SEEK)
			}
			_ = c.Close()
			for _, op := range ops {
				if k.seen[op] == 0 {
					t.Errorf("%s was not used", x4.NfsOpnum4_name[op])
				}
			}
		})
	}
}
