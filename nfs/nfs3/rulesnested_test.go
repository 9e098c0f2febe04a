package nfs3

import (
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/rstored/rstored/blockstore"
	"github.com/rstored/rstored/blockstore/memfs"
	"github.com/rstored/rstored/nfs"
	"github.com/rstored/rstored/rpcrdma/rpc"
	"github.com/rstored/rstored/rpcrdma/xdr"
)

// TestNested has an export below another one.
func TestNested(t *testing.T) {
	for name, c := range map[string]struct {
		crossmnt, nohide, admitted bool
		want                       uint64 // the file system that is found
		st                         nfs.Status
	}{
		"hidden":            {false, false, true, 77, nfs.OK},
		"crossmnt":          {true, false, true, 99, nfs.OK},
		"nohide":            {false, true, true, 99, nfs.OK},
		"nohide, not for":   {false, true, false, 77, nfs.OK},
		"crossmnt, not for": {true, false, false, 0, nfs.ErrAcces},
	} {
		r := newRig(t)
		cred := &blockstore.Cred{}
		root, _ := r.fs.Root()
		sub, _, _, err := r.fs.Mkdir(cred, root, "sub", &blockstore.SetAttr{Mode: new(uint32(0o755))})
		if err != nil {
			t.Fatal(err)
		}
		if _, _, _, err := r.fs.Mkdir(cred, sub, "child", &blockstore.SetAttr{Mode: new(uint32(0o755))}); err != nil {
			t.Fatal(err)
		}
		child := nfs.ClientRule{NoHide: c.nohide, CIDR: netip.MustParsePrefix("10.0.0.0/8")}
		if !c.admitted {
			child.CIDR = netip.MustParsePrefix("11.0.0.0/8")
		}
		if err := r.table.Replace([]*nfs.Export{
			{ID: 1, Pseudo: "/one", FS: r.fs, CrossMnt: c.crossmnt},
			{
				ID: 2, Pseudo: "/one/sub/child", FS: memfs.New(memfs.Options{FSID: 98, RootMode: 0o755}), Ident: 99,
				Clients: []nfs.ClientRule{child}, Place: &nfs.Place{Export: 1, Dir: sub, Name: "child"},
			},
		}); err != nil {
			t.Fatal(err)
		}
		fh := r.codec.Append(nil, 1, &sub)
		for _, name := range []string{"child", "elsewhere"} {
			st, _ := r.nfs(ProcRename, func(e *xdr.Encoder) {
				EncodeHandle(e, fh)
				e.String(name)
				EncodeHandle(e, fh)
				e.String("child")
			})
			if st != nfs.ErrAcces {
				t.Errorf("renaming %s to the name of an export: %v", name, st)
			}
		}
		if st, _ := r.nfs(ProcRmdir, func(e *xdr.Encoder) { EncodeHandle(e, fh); e.String("child") }); st != nfs.ErrAcces {
			t.Errorf("removing the name of an export: %v", st)
		}
		st, d := r.nfs(ProcLookup, func(e *xdr.Encoder) {
			EncodeHandle(e, fh)
			e.String("child")
		})
		if st != c.st {
			t.Errorf("%s: %v", name, st)
			continue
		}
		if st != nfs.OK {
			continue
		}
		got := bytesOf(DecodeHandle(d))
		st, d = r.nfs(ProcGetAttr, func(e *xdr.Encoder) { EncodeHandle(e, got) })
		d.Skip(44)
		if fsid := d.Uint64(); st != nfs.OK || fsid != c.want {
			t.Errorf("%s: %v, file system %d, want %d", name, st, fsid, c.want)
		}
	}
}

func bytesOf(b []byte) []byte { return slices.Clone(b) }

// TestThrottle asks for more operations than are allowed: all are answered, none before its
// time, and they wait nowhere where a worker is needed.
func TestThrottle(t *testing.T) {
	const calls, perSecond = 60, 200 // of which an eighth of a second's go at once
	r := newRig(t)
	r.only(nfs.Export{Clients: everyone(nfs.ClientRule{Limit: nfs.Limit{Ops: perSecond}})})
	replies := make(chan bool, calls)
	begin := time.Now()
	for i := range calls {
		var e xdr.Encoder
		rpc.EncodeCall(&e, uint32(1000+i), Program, 3, ProcGetAttr, &sys)
		EncodeHandle(&e, r.oneRoot())
		c := &rpc.Call{
			Peer: rpc.Peer{Addr: netip.MustParseAddrPort(friend)}, BulkMax: -1,
			Reply: func(_ *rpc.Call, drop bool) { replies <- drop },
		}
		r.srv.Dispatch(c, xdr.NewDecoder(e.AppendFlat(nil)), false)
	}
	issued := time.Since(begin)
	for range calls {
		if <-replies {
			t.Error("a reply was dropped")
		}
	}
	if took := time.Since(begin); took < 150*time.Millisecond {
		t.Errorf("%d operations took %v", calls, took)
	}
	// Those before have left some to be served at once, the more the longer it took to ask for all.
	if n, least := r.count.Throttled.Load(),
		calls-perSecond/8-int(perSecond*issued.Seconds())-1; int(n) < least || n > calls {
		t.Errorf("%d waited, of %d at least", n, least)
	}
	// More than can wait, or for too long, are told to come again.
	r.only(nfs.Export{Limit: nfs.Limit{Ops: 1}})
	away := 0
	for range 40 {
		var e xdr.Encoder
		rpc.EncodeCall(&e, 5000, Program, 3, ProcGetAttr, &sys)
		EncodeHandle(&e, r.oneRoot())
		told := make(chan nfs.Status, 1)
		c := &rpc.Call{
			Peer: rpc.Peer{Addr: netip.MustParseAddrPort(friend)}, BulkMax: -1,
			Reply: func(c *rpc.Call, drop bool) {
				d := xdr.NewDecoder(c.Res.AppendFlat(nil))
				d.Skip(24)
				if st := nfs.Status(d.Uint32()); !drop {
					told <- st
				}
			},
		}
		r.srv.Dispatch(c, xdr.NewDecoder(e.AppendFlat(nil)), true)
		select {
		case st := <-told:
			if st == nfs.ErrJukebox {
				away++
			}
		default:
		}
	}
	if away < 20 {
		t.Errorf("%d of 40 were told to come again", away)
	}
	// What still waits is dropped when the server closes.
}

// lookups is a Hosts that knows who somebody is after Wait.
type lookups struct{ known bool }

func (l *lookups) Is(netip.Addr, string) (bool, bool)      { return true, l.known }
func (l *lookups) Want([]string)                           {}
func (l *lookups) Wait(_ netip.Addr, done <-chan struct{}) { l.known = true }

// TestByName lets a client in whose name has to be found out.
func TestByName(t *testing.T) {
	r := newRig(t)
	l := new(lookups)
	r.table = nfs.NewTable(l)
	srv := rpc.NewServer(rpc.ServerConfig{Programs: Programs(nfs.Config{Exports: r.table, Codec: r.codec}), Workers: 1})
	t.Cleanup(srv.Close)
	r.srv = srv
	r.only(nfs.Export{Clients: []nfs.ClientRule{{Name: "*.example.org", AnonUID: 1}}})
	peer := rpc.Peer{Addr: netip.MustParseAddrPort(friend)}
	got := r.as(peer, sys, Program, ProcGetAttr, func(e *xdr.Encoder) { EncodeHandle(e, r.oneRoot()) })
	if st, _ := got.status(t); st != nfs.ErrJukebox {
		t.Errorf("before it is known: %v", st)
	}
	got = r.as(peer, sys, MountProgram, MountMnt, func(e *xdr.Encoder) { e.String("/one") })
	if st, _ := got.status(t); st != nfs.OK {
		t.Errorf("a mount does not wait: %v", st)
	}
	got = r.as(peer, sys, Program, ProcGetAttr, func(e *xdr.Encoder) { EncodeHandle(e, r.oneRoot()) })
	if st, _ := got.status(t); st != nfs.OK {
		t.Errorf("once it is known: %v", st)
	}
}

// TestPace counts READs and WRITEs before their data is there: once, for all of the data, and only
// where there is a limit. A call that has paid does not pay again when it is served.
func TestPace(t *testing.T) {
	r := newRig(t)
	srv := rpc.NewServer(rpc.ServerConfig{Programs: Programs(nfs.Config{
		Exports: r.table, Codec: r.codec,
		Counters: &r.count,
	}), Paced: r.table.Limited})
	defer srv.Close()
	const size = 1 << 20
	message := func(proc uint32, fh []byte) xdr.Decoder {
		var e xdr.Encoder
		rpc.EncodeCall(&e, 1, Program, 3, proc, &sys)
		EncodeHandle(&e, fh)
		e.Uint64(0)
		e.Uint32(size)
		return xdr.NewDecoder(e.AppendFlat(nil))
	}
	call := func(addr string) *rpc.Call {
		return &rpc.Call{Peer: rpc.Peer{Addr: netip.MustParseAddrPort(addr)}, BulkMax: -1}
	}
	pace := func(addr string, m xdr.Decoder, bulk int, take bool) (uint32, time.Duration, bool) {
		c := call(addr)
		limit, wait, ok := srv.Pace(c, m, bulk, take)
		if c.Paid != (take && limit != 0 && ok) {
			t.Errorf("%+v, take %v: paid %v", limit, take, c.Paid)
		}
		return limit, wait, ok
	}
	if limit, _, _ := pace(friend, message(ProcWrite, r.oneRoot()), size, true); limit != 0 {
		t.Errorf("without a limit: %d", limit)
	}
	r.only(nfs.Export{Clients: everyone(nfs.ClientRule{Limit: nfs.Limit{Bytes: size}})})
	fh := r.oneRoot()
	for range 3 {
		if limit, wait, ok := pace(friend, message(ProcWrite, fh), size, false); limit == 0 || wait != 0 || !ok {
			t.Errorf("asked without taking: %d %v %v", limit, wait, ok)
		}
	}
	waits := 0
	for i := range 20 {
		m, bulk := message(ProcWrite, fh), size
		if i%2 == 1 {
			m, bulk = message(ProcRead, fh), 0
		}
		_, wait, ok := pace(friend, m, bulk, true)
		switch {
		case i == 0 && (wait != 0 || !ok), i > 3 && ok && wait == 0, i > 0 && i < 14 && !ok, ok && wait > 15*time.Second:
			t.Errorf("call %d waits %v, %v", i, wait, ok)
		case !ok:
			waits++
		}
	}
	if waits == 0 {
		t.Error("nobody was told to come again")
	}
	if _, wait, ok := pace("10.0.0.9:700", message(ProcRead, fh), 0, true); wait != 0 || !ok {
		t.Errorf("another client waits %v, %v", wait, ok)
	}
	// What does not decode, or is not paced, is seen when it is served.
	for _, m := range []xdr.Decoder{
		message(ProcCommit, fh), message(ProcRead, []byte("no handle")),
		xdr.NewDecoder([]byte{1, 2, 3}),
	} {
		if limit, _, ok := pace(friend, m, 0, true); limit != 0 || !ok {
			t.Errorf("limit %d, %v", limit, ok)
		}
	}
	c := call(friend)
	c.Paid = true
	done := make(chan bool, 1)
	c.Reply = func(_ *rpc.Call, drop bool) { done <- drop }
	before := r.count.Throttled.Load()
	srv.Dispatch(c, message(ProcRead, fh), true)
	if <-done || r.count.Throttled.Load() != before {
		t.Error("a call that has paid waits again")
	}
}
