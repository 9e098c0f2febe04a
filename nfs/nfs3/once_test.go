package nfs3

import (
	"bytes"
	"errors"
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/rstored/rstored/blockstore"
	"github.com/rstored/rstored/blockstore/memfs"
	"github.com/rstored/rstored/nfs"
	"github.com/rstored/rstored/rpcrdma/rpc"
	"github.com/rstored/rstored/rpcrdma/xdr"
)

// doomed is a store whose server is killed around a change: moment is called
// before and after it, and stops it by a panic if it likes.
type doomed struct {
	blockstore.FS
	moment func(after bool)
}

func (f *doomed) around() func() {
	if f.moment == nil {
		return func() {}
	}
	f.moment(false)
	return func() { f.moment(true) }
}

func (f *doomed) SetAttr(c *blockstore.Cred, h blockstore.Handle, s *blockstore.SetAttr,
	guard *time.Time,
) (blockstore.Wcc, error) {
	defer f.around()()
	return f.FS.SetAttr(c, h, s, guard)
}

func (f *doomed) Create(c *blockstore.Cred, dir blockstore.Handle, name string, m blockstore.CreateMode,
	s *blockstore.SetAttr, v [8]byte,
) (blockstore.Handle, blockstore.Attr, blockstore.Wcc, error) {
	defer f.around()()
	return f.FS.Create(c, dir, name, m, s, v)
}

func (f *doomed) Mkdir(c *blockstore.Cred, dir blockstore.Handle, name string,
	s *blockstore.SetAttr,
) (blockstore.Handle, blockstore.Attr, blockstore.Wcc, error) {
	defer f.around()()
	return f.FS.Mkdir(c, dir, name, s)
}

func (f *doomed) Symlink(c *blockstore.Cred, dir blockstore.Handle, name, target string,
	s *blockstore.SetAttr,
) (blockstore.Handle, blockstore.Attr, blockstore.Wcc, error) {
	defer f.around()()
	return f.FS.Symlink(c, dir, name, target, s)
}

func (f *doomed) Mknod(c *blockstore.Cred, dir blockstore.Handle, name string, typ blockstore.FileType, major,
	minor uint32, s *blockstore.SetAttr,
) (blockstore.Handle, blockstore.Attr, blockstore.Wcc, error) {
	defer f.around()()
	return f.FS.Mknod(c, dir, name, typ, major, minor, s)
}

func (f *doomed) Remove(c *blockstore.Cred, dir blockstore.Handle, name string) (blockstore.Wcc, error) {
	defer f.around()()
	return f.FS.Remove(c, dir, name)
}

func (f *doomed) Rmdir(c *blockstore.Cred, dir blockstore.Handle, name string) (blockstore.Wcc, error) {
	defer f.around()()
	return f.FS.Rmdir(c, dir, name)
}

func (f *doomed) Rename(c *blockstore.Cred, from blockstore.Handle, fromName string, to blockstore.Handle,
	toName string,
) (a, b blockstore.Wcc, err error) {
	defer f.around()()
	return f.FS.Rename(c, from, fromName, to, toName)
}

func (f *doomed) Link(c *blockstore.Cred, h, dir blockstore.Handle, name string) (blockstore.Attr, blockstore.Wcc,
	error,
) {
	defer f.around()()
	return f.FS.Link(c, h, dir, name)
}

// once is a world for TestKilledServerDoesNothingTwice.
type once struct {
	t     *testing.T
	fs    *doomed
	root  blockstore.Handle
	table *nfs.Table
	codec *nfs.Codec
}

func (o *once) look(name string) (blockstore.Handle, blockstore.Attr, bool) {
	h, a, err := o.fs.FS.Lookup(nil, o.root, name)
	if err != nil && !errors.Is(err, blockstore.ErrNotExist) {
		o.t.Fatal(err)
	}
	return h, a, err == nil
}

func (o *once) create(name string) blockstore.Handle {
	h, _, _, err := o.fs.FS.Create(nil, o.root, name, blockstore.Guarded, &blockstore.SetAttr{}, [8]byte{})
	if err != nil {
		o.t.Fatal(err)
	}
	return h
}

func (o *once) fh(e *xdr.Encoder, h blockstore.Handle) {
	EncodeHandle(e, o.codec.Append(nil, 1, &h))
}

func (o *once) server(journal []byte) *rpc.Server {
	s := rpc.NewServer(rpc.ServerConfig{
		Programs: Programs(nfs.Config{Exports: o.table, Codec: o.codec}), Workers: 1, Journal: journal,
	})
	o.t.Cleanup(s.Close)
	return s
}

func (o *once) send(s *rpc.Server, msg []byte) nfs.Status {
	o.t.Helper()
	done := make(chan []byte, 1)
	c := &rpc.Call{Peer: rpc.Peer{Addr: netip.MustParseAddrPort(friend)}, BulkMax: -1}
	c.Reply = func(c *rpc.Call, drop bool) { done <- c.Res.AppendFlat(nil) }
	s.Dispatch(c, xdr.NewDecoder(msg), true)
	d := xdr.NewDecoder(<-done)
	d.Skip(20)
	if st := d.Uint32(); st != 0 {
		return nfs.Status(1<<16 + st)
	}
	return nfs.Status(d.Uint32())
}

// TestKilledServerDoesNothingTwice kills the server before it makes a change,
// after it, and after the reply, and sends the call again to the next one.
func TestKilledServerDoesNothingTwice(t *testing.T) {
	type procedure struct {
		name string
		proc uint32
		// setUp makes what the call needs and returns its arguments.
		setUp func(o *once) func(e *xdr.Encoder)
		// check looks at what there is after the second attempt.
		check func(o *once)
		// others is what another client does between the two attempts, and spared
		// looks whether it was left alone.
		others, spared func(o *once)
	}
	dirOp := func(o *once, e *xdr.Encoder, name string) {
		o.fh(e, o.root)
		e.String(name)
	}
	exists := func(name string, typ blockstore.FileType, mode uint32) func(o *once) {
		return func(o *once) {
			if _, a, ok := o.look(name); !ok || a.Type != typ || mode != 0 && a.Mode != mode {
				o.t.Errorf("%s: %+v, %v", name, a, ok)
			}
		}
	}
	absent := func(name string) func(o *once) {
		return func(o *once) {
			if _, _, ok := o.look(name); ok {
				o.t.Errorf("%s is there", name)
			}
		}
	}
	both := func(a, b func(*once)) func(*once) { return func(o *once) { a(o); b(o) } }
	mode := uint32(0o751)
	attrs := func(e *xdr.Encoder) { EncodeSetAttr(e, &blockstore.SetAttr{Mode: &mode}) }
	recreate := func(name string) func(o *once) { return func(o *once) { o.create(name) } }
	for _, p := range []procedure{
		{
			name: "CREATE", proc: ProcCreate,
			setUp: func(o *once) func(*xdr.Encoder) {
				return func(e *xdr.Encoder) { dirOp(o, e, "new"); e.Uint32(CreateGuarded); attrs(e) }
			},
			check: exists("new", blockstore.TypeReg, mode),
			others: func(o *once) {
				h, _, _ := o.look("new")
				if _, _, _, err := o.fs.WriteAt(nil, h, []byte("written since"), 0, blockstore.FileSync); err != nil {
					o.t.Fatal(err)
				}
			},
			spared: func(o *once) {
				if _, a, _ := o.look("new"); a.Size != 13 {
					o.t.Errorf("the file has %d bytes", a.Size)
				}
			},
		},
		{
			name: "CREATE UNCHECKED with a size", proc: ProcCreate,
			setUp: func(o *once) func(*xdr.Encoder) {
				return func(e *xdr.Encoder) {
					dirOp(o, e, "new")
					e.Uint32(CreateUnchecked)
					size := uint64(0)
					EncodeSetAttr(e, &blockstore.SetAttr{Mode: &mode, Size: &size})
				}
			},
			check: exists("new", blockstore.TypeReg, mode),
			others: func(o *once) {
				h, _, _ := o.look("new")
				if _, _, _, err := o.fs.WriteAt(nil, h, []byte("written since"), 0, blockstore.FileSync); err != nil {
					o.t.Fatal(err)
				}
			},
			spared: func(o *once) {
				if _, a, _ := o.look("new"); a.Size != 13 {
					o.t.Errorf("the file has %d bytes", a.Size)
				}
			},
		},
		{
			name: "MKDIR", proc: ProcMkdir,
			setUp: func(o *once) func(*xdr.Encoder) { return func(e *xdr.Encoder) { dirOp(o, e, "new"); attrs(e) } },
			check: exists("new", blockstore.TypeDir, mode),
		},
		{
			name: "SYMLINK", proc: ProcSymlink,
			setUp: func(o *once) func(*xdr.Encoder) {
				return func(e *xdr.Encoder) { dirOp(o, e, "new"); attrs(e); e.String("target") }
			},
			check: exists("new", blockstore.TypeLnk, 0),
		},
		{
			name: "MKNOD", proc: ProcMknod,
			setUp: func(o *once) func(*xdr.Encoder) {
				return func(e *xdr.Encoder) { dirOp(o, e, "new"); e.Uint32(uint32(blockstore.TypeFifo)); attrs(e) }
			},
			check: exists("new", blockstore.TypeFifo, mode),
		},
		{
			name: "REMOVE", proc: ProcRemove,
			setUp: func(o *once) func(*xdr.Encoder) {
				o.create("old")
				return func(e *xdr.Encoder) { dirOp(o, e, "old") }
			},
			check: absent("old"), others: recreate("old"), spared: exists("old", blockstore.TypeReg, 0),
		},
		{
			name: "RMDIR", proc: ProcRmdir,
			setUp: func(o *once) func(*xdr.Encoder) {
				if _, _, _, err := o.fs.FS.Mkdir(nil, o.root, "old", &blockstore.SetAttr{}); err != nil {
					o.t.Fatal(err)
				}
				return func(e *xdr.Encoder) { dirOp(o, e, "old") }
			},
			check: absent("old"),
		},
		{
			name: "RENAME", proc: ProcRename,
			setUp: func(o *once) func(*xdr.Encoder) {
				o.create("old")
				o.create("new")
				return func(e *xdr.Encoder) { dirOp(o, e, "old"); dirOp(o, e, "new") }
			},
			check:  both(absent("old"), exists("new", blockstore.TypeReg, 0)),
			others: recreate("old"), spared: exists("old", blockstore.TypeReg, 0),
		},
		{
			name: "LINK", proc: ProcLink,
			setUp: func(o *once) func(*xdr.Encoder) {
				h := o.create("old")
				return func(e *xdr.Encoder) { o.fh(e, h); dirOp(o, e, "new") }
			},
			check: func(o *once) {
				if _, a, ok := o.look("new"); !ok || a.NLink != 2 {
					o.t.Errorf("%+v, %v", a, ok)
				}
			},
		},
		{
			name: "SETATTR with a guard", proc: ProcSetAttr,
			setUp: func(o *once) func(*xdr.Encoder) {
				h := o.create("new")
				_, a, _ := o.look("new")
				time.Sleep(time.Millisecond) // so that the change has another time
				return func(e *xdr.Encoder) {
					o.fh(e, h)
					attrs(e)
					e.Bool(true)
					EncodeTime(e, a.Ctime)
				}
			},
			check: exists("new", blockstore.TypeReg, mode),
		},
	} {
		for _, kill := range []string{"before", "after", "after, with others", "answered"} {
			if kill == "after, with others" && p.others == nil {
				continue
			}
			t.Run(fmt.Sprintf("%s/%s", p.name, kill), func(t *testing.T) {
				o := &once{
					t: t, fs: &doomed{FS: memfs.New(memfs.Options{})}, table: nfs.NewTable(nil),
					codec: nfs.NewCodec([]byte("secret")),
				}
				var err error
				if o.root, err = o.fs.Root(); err != nil {
					t.Fatal(err)
				}
				rule := nfs.ClientRule{CIDR: netip.MustParsePrefix("10.0.0.1/32"), Squash: nfs.NoRootSquash}
				if err := o.table.Add(&nfs.Export{ID: 1, Pseudo: "/one", FS: o.fs, Clients: []nfs.ClientRule{rule}}); err != nil {
					t.Fatal(err)
				}
				args := p.setUp(o)
				var e xdr.Encoder
				rpc.EncodeCall(&e, 77, Program, 3, p.proc, &rpc.Cred{Flavor: rpc.AuthSys, Machine: "client"})
				args(&e)
				msg := e.AppendFlat(nil)

				live := make([]byte, 16*512)
				var left []byte // what the killed server leaves
				changes := 0
				o.fs.moment = func(after bool) {
					if after {
						changes++
					}
					if after == (kill != "before") && left == nil {
						left = bytes.Clone(live)
						if !after {
							panic("killed")
						}
					}
				}
				first := o.send(o.server(live), msg)
				if kill == "answered" {
					left = bytes.Clone(live)
				}
				if (first == nfs.OK) == (kill == "before") || left == nil {
					t.Fatalf("the first attempt ended with %v", first)
				}
				o.fs.moment = func(after bool) {
					if after {
						changes++
					}
				}
				if kill == "after, with others" {
					p.others(o)
				}
				next := o.server(left)
				for i := range 2 {
					if st := o.send(next, msg); st != nfs.OK {
						t.Errorf("attempt %d: %v", i+2, st)
					}
				}
				if kill == "after, with others" {
					p.spared(o)
					return
				}
				p.check(o)
				if kill == "answered" && changes != 1 {
					t.Errorf("%d changes", changes)
				}
				// The journal of the second server serves a third.
				if st := o.send(o.server(bytes.Clone(left)), msg); st != nfs.OK {
					t.Errorf("a third server: %v", st)
				}
				p.check(o)
			})
		}
	}
}
