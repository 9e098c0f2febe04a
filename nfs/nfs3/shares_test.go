package nfs3

import (
	"net/netip"
	"testing"

	"github.com/rstored/rstored/blockstore"
	"github.com/rstored/rstored/nfs"
	"github.com/rstored/rstored/nfs/lock"
	"github.com/rstored/rstored/rpcrdma/rpc"
	"github.com/rstored/rstored/rpcrdma/xdr"
)

// reserved is a file of which another host denies something.
type reserved struct {
	nfs.Shares
	file        lock.File
	read, write bool
	hosts       map[netip.Addr]bool
}

func (r *reserved) Denying() bool { return r.read || r.write }

func (r *reserved) Denied(f lock.File, host netip.Addr, write, _ bool) bool {
	r.hosts[host] = true
	return f == r.file && (write && r.write || !write && r.read)
}

// TestReservedByOthers: what others have reserved a file against ends with ACCES and
// nothing done; everything else goes on.
func TestReservedByOthers(t *testing.T) {
	size, mode := uint64(2), uint32(0o600)
	for _, c := range []struct {
		name        string
		proc        uint32
		args        func(root, fh []byte) func(*xdr.Encoder)
		read, write bool // which of the denials it minds
	}{
		{"READ", ProcRead, func(_, fh []byte) func(*xdr.Encoder) { return fhArgs(fh, 0, 0, 10) }, true, false},
		{"WRITE", ProcWrite, func(_, fh []byte) func(*xdr.Encoder) { return writeArgs(fh) }, false, true},
		{
			"SETATTR of the size", ProcSetAttr,
			func(_, fh []byte) func(*xdr.Encoder) { return setArgs(fh, &blockstore.SetAttr{Size: &size}) }, false, true,
		},
		{
			"SETATTR of the mode", ProcSetAttr,
			func(_, fh []byte) func(*xdr.Encoder) { return setArgs(fh, &blockstore.SetAttr{Mode: &mode}) }, false, false,
		},
		{"CREATE that cuts it", ProcCreate, func(root, _ []byte) func(*xdr.Encoder) {
			return dirArgs(root, "f", words(CreateUnchecked), sattr(&blockstore.SetAttr{Size: &size}))
		}, false, true},
		{"CREATE that finds it", ProcCreate, func(root, _ []byte) func(*xdr.Encoder) {
			return dirArgs(root, "f", words(CreateUnchecked), sattr(&blockstore.SetAttr{}))
		}, false, false},
		{"CREATE beside it", ProcCreate, func(root, _ []byte) func(*xdr.Encoder) {
			return dirArgs(root, "h", words(CreateUnchecked), sattr(&blockstore.SetAttr{Size: &size}))
		}, false, false},
		{"GETATTR", ProcGetAttr, func(_, fh []byte) func(*xdr.Encoder) { return fhArgs(fh) }, false, false},
	} {
		for _, deny := range []int{0, nfs.ShareRead, nfs.ShareWrite, nfs.ShareBoth} {
			r := newRig(t)
			g := &reserved{hosts: make(map[netip.Addr]bool)}
			r.srv.Close()
			r.srv = rpc.NewServer(rpc.ServerConfig{
				Programs: Programs(nfs.Config{Exports: r.table, Codec: r.codec, Counters: &r.count, Shares: g}), Workers: 2,
			})
			t.Cleanup(r.srv.Close)
			root := r.root()
			fh := r.file(root, "f", "content")
			id, h, err := r.codec.Parse(fh)
			if err != nil {
				t.Fatal(err)
			}
			g.file = lock.File{Export: id, Handle: h}
			g.read, g.write = deny&nfs.ShareRead != 0, deny&nfs.ShareWrite != 0
			want := nfs.OK
			if c.read && g.read || c.write && g.write {
				want = nfs.ErrAcces
			}
			before, _ := r.fs.GetAttr(nil, h)
			if st, _ := r.nfs(c.proc, c.args(root, fh)); st != want {
				t.Errorf("%s, deny %d: %v instead of %v", c.name, deny, st, want)
			}
			if after, _ := r.fs.GetAttr(nil, h); want != nfs.OK && (after.Ctime != before.Ctime || after.Size != before.Size) {
				t.Errorf("%s, deny %d: done all the same", c.name, deny)
			}
			for host := range g.hosts {
				if !host.IsValid() || host.Is4In6() {
					t.Errorf("%s: asked for host %v", c.name, host)
				}
			}
		}
	}
}
