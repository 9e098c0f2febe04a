package captures_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/rstored/rstored/blockstore"
	"github.com/rstored/rstored/nfs"
	"github.com/rstored/rstored/nfs/client"
	"github.com/rstored/rstored/nfs/nfs3"
	"github.com/rstored/rstored/rpcrdma/rpc"
	"github.com/rstored/rstored/rpcrdma/xdr"
)

// recorded is a connection on which one call is answered as it was recorded.
type recorded struct {
	proc          uint32
	args, results []byte
	ownArgs       bool // our client may ask for it in its own way

	asked bool
	err   error // what our client did with it
}

var errAsked = errors.New("our client asks for more than was recorded")

func (r *recorded) Close() error { return nil }

func (r *recorded) Call(_ context.Context, q *rpc.Request) error {
	if q.Proc == nfs3.ProcFSInfo && r.proc != nfs3.ProcFSInfo { // asked before large transfers
		var e xdr.Encoder
		e.Uint32(0)
		e.Bool(false)
		for range 7 {
			e.Uint32(1 << 20)
		}
		e.Fixed(make([]byte, 20))
		d := xdr.NewDecoder(e.B)
		return q.Res(&d)
	}
	if r.asked || q.Proc != r.proc {
		return errAsked
	}
	r.asked = true
	var e xdr.Encoder
	q.Args(&e)
	if got := e.AppendFlat(nil); !r.ownArgs && !bytes.Equal(got, r.args) {
		r.err = fmt.Errorf("arguments\n%x are encoded as\n%x", r.args, got)
	}
	d := xdr.NewDecoder(r.results)
	err := q.Res(&d)
	if status := nfs.Status(rpc.ReplyXID(r.results)); r.err == nil && status == nfs.OK && d.Remaining() != 0 &&
		!hasRest[r.proc] {
		r.err = fmt.Errorf("%d bytes of the results are left over", d.Remaining())
	}
	return err
}

// hasRest are the procedures of whose results our client has no use for all.
var hasRest = map[uint32]bool{
	nfs3.ProcLookup: true, nfs3.ProcSetAttr: true, nfs3.ProcRemove: true, nfs3.ProcRmdir: true, nfs3.ProcRename: true,
	nfs3.ProcLink: true,
}

// replay makes a recorded call with our client: it has to encode the same arguments
// and to take the results.
func replay(proc uint32, args, results []byte) error {
	r := &recorded{proc: proc, args: args, results: results, ownArgs: proc == nfs3.ProcReadDirPlus}
	c := client.New(client.Config{
		Version: client.Version3, GiveUp: time.Second,
		Dial: func(context.Context) (rpc.Client, error) { return r, nil },
	})
	defer c.Close()
	err := ask(c, proc, args)
	var got nfs.Status
	want := nfs.Status(rpc.ReplyXID(results))
	switch {
	case r.err != nil:
		return r.err
	case errors.Is(err, errAsked) && r.asked: // the next page, or attributes that were left out
		return nil
	case errors.As(err, &got) && got == want && want != nfs.OK:
		return nil
	case err != nil:
		return err
	case want != nfs.OK:
		return fmt.Errorf("%v was taken for success", want)
	}
	return nil
}

// ask makes the call that arguments are of.
func ask(c *client.Client, proc uint32, args []byte) (err error) {
	ctx := context.Background()
	d := xdr.NewDecoder(args)
	handle := func() client.Handle { return bytes.Clone(nfs3.DecodeHandle(&d)) }
	name := func() string { return d.String(nfs3.NameLimit) }
	h := handle()
	switch proc {
	case nfs3.ProcGetAttr:
		_, err = c.GetAttr(ctx, h)
	case nfs3.ProcSetAttr:
		s := nfs3.DecodeSetAttr(&d)
		var guard *time.Time
		if d.Bool() {
			at := nfs3.DecodeTime(&d)
			guard = &at
		}
		err = c.SetAttr(ctx, h, &s, guard)
	case nfs3.ProcLookup:
		_, err = c.Lookup(ctx, h, name())
	case nfs3.ProcAccess:
		_, err = c.Access(ctx, h, d.Uint32())
	case nfs3.ProcReadLink:
		_, err = c.ReadLink(ctx, h)
	case nfs3.ProcRead:
		off := d.Uint64()
		_, _, err = c.Read(ctx, h, make([]byte, d.Uint32()), off)
	case nfs3.ProcWrite:
		off := d.Uint64()
		d.Uint32()
		how := blockstore.Stability(d.Uint32())
		_, err = c.Write(ctx, h, d.Opaque(client.TransferMax), off, how)
	case nfs3.ProcCreate:
		n, mode := name(), blockstore.CreateMode(d.Uint32())
		if mode == blockstore.Exclusive {
			_, err = c.Create(ctx, h, n, mode, nil, nfs3.DecodeVerifier(&d))
			break
		}
		s := nfs3.DecodeSetAttr(&d)
		_, err = c.Create(ctx, h, n, mode, &s, [nfs3.VerifierLen]byte{})
	case nfs3.ProcMkdir:
		n, s := name(), nfs3.DecodeSetAttr(&d)
		_, err = c.Mkdir(ctx, h, n, &s)
	case nfs3.ProcSymlink:
		n, s := name(), nfs3.DecodeSetAttr(&d)
		_, err = c.Symlink(ctx, h, n, d.String(nfs3.PathLimit), &s)
	case nfs3.ProcMknod:
		n, typ := name(), blockstore.FileType(d.Uint32())
		s := nfs3.DecodeSetAttr(&d)
		var major, minor uint32
		if typ == blockstore.TypeChr || typ == blockstore.TypeBlk {
			major, minor = d.Uint32(), d.Uint32()
		}
		_, err = c.Mknod(ctx, h, n, typ, major, minor, &s)
	case nfs3.ProcRemove:
		err = c.Remove(ctx, h, name())
	case nfs3.ProcRmdir:
		err = c.Rmdir(ctx, h, name())
	case nfs3.ProcRename:
		from, to := name(), handle()
		err = c.Rename(ctx, h, from, to, name())
	case nfs3.ProcLink:
		dir := handle()
		err = c.Link(ctx, h, dir, name())
	case nfs3.ProcReadDirPlus:
		err = c.ReadDir(ctx, h, func(*client.Entry) error { return nil })
	case nfs3.ProcFSStat:
		_, err = c.Stat(ctx, h)
	case nfs3.ProcFSInfo:
		_, err = c.Info(ctx, h)
	case nfs3.ProcPathConf:
		_, err = c.PathConf(ctx, h)
	case nfs3.ProcCommit:
		off := d.Uint64()
		_, err = c.Commit(ctx, h, off, d.Uint32())
	}
	return err
}
