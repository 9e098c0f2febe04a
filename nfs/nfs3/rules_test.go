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

// reply is what a call got.
type reply struct {
	body    []byte
	dropped bool
}

// as sends a call from a peer with a credential, and waits for the reply.
func (r *rig) as(p rpc.Peer, cred rpc.Cred, prog, proc uint32, args func(*xdr.Encoder)) reply {
	r.t.Helper()
	r.xid++
	var e xdr.Encoder
	rpc.EncodeCall(&e, r.xid, prog, 3, proc, &cred)
	args(&e)
	done := make(chan reply, 1)
	c := &rpc.Call{
		Peer: p, BulkMax: -1,
		Reply: func(c *rpc.Call, drop bool) { done <- reply{c.Res.AppendFlat(nil), drop} },
	}
	r.srv.Dispatch(c, xdr.NewDecoder(e.AppendFlat(nil)), false)
	select {
	case a := <-done:
		return a
	case <-time.After(10 * time.Second):
		r.t.Fatal("no reply")
		return reply{}
	}
}

// status is the procedure's status in a reply, and what follows.
func (a *reply) status(t *testing.T) (nfs.Status, *xdr.Decoder) {
	t.Helper()
	d := xdr.NewDecoder(a.body)
	d.Skip(20)
	if st := rpc.AcceptStat(d.Uint32()); st != rpc.RPCSuccess || a.dropped {
		t.Fatalf("accept status %v, dropped %v", st, a.dropped)
	}
	return nfs.Status(d.Uint32()), &d
}

// only gives the rig one export.
func (r *rig) only(x nfs.Export) {
	r.t.Helper()
	x.ID, x.Pseudo, x.FS = 1, "/one", r.fs
	if err := r.table.Replace([]*nfs.Export{&x}); err != nil {
		r.t.Fatal(err)
	}
}

func (r *rig) oneRoot() []byte {
	h, err := r.fs.Root()
	if err != nil {
		r.t.Fatal(err)
	}
	return r.codec.Append(nil, 1, &h)
}

var sys = rpc.Cred{Flavor: rpc.AuthSys, Machine: "client"}

func everyone(r nfs.ClientRule) []nfs.ClientRule {
	r.CIDR = netip.MustParsePrefix("0.0.0.0/0")
	return []nfs.ClientRule{r}
}

// TestAdmission asks for attributes under rules about how a client comes.
func TestAdmission(t *testing.T) {
	r := newRig(t)
	at := func(port string, by rpc.Transport) rpc.Peer {
		return rpc.Peer{Addr: netip.MustParseAddrPort("10.0.0.1:" + port), Transport: by}
	}
	none := rpc.Cred{Flavor: rpc.AuthNone}
	const tooWeak = 5
	for name, c := range map[string]struct {
		rule nfs.ClientRule
		peer rpc.Peer
		cred rpc.Cred
		want nfs.Status
		auth bool // refused by its flavor
	}{
		"secure, low port":    {nfs.ClientRule{Secure: true}, at("1023", rpc.TransportTCP), sys, nfs.OK, false},
		"secure, high port":   {nfs.ClientRule{Secure: true}, at("1024", rpc.TransportTCP), sys, nfs.ErrAcces, false},
		"secure, RDMA":        {nfs.ClientRule{Secure: true}, at("40000", rpc.TransportRDMA), sys, nfs.OK, false},
		"insecure, high port": {nfs.ClientRule{}, at("40000", rpc.TransportTCP), sys, nfs.OK, false},
		"RDMA only, by RDMA":  {nfs.ClientRule{Transports: nfs.ByRDMA}, at("700", rpc.TransportRDMA), sys, nfs.OK, false},
		"RDMA only, by TCP": {
			nfs.ClientRule{Transports: nfs.ByRDMA},
			at("700", rpc.TransportTCP), sys, nfs.ErrAcces,
			false,
		},
		"TCP only, by TCP": {nfs.ClientRule{Transports: nfs.ByTCP}, at("700", rpc.TransportTCP), sys, nfs.OK, false},
		"TCP only, by RDMA": {
			nfs.ClientRule{Transports: nfs.ByTCP},
			at("700", rpc.TransportRDMA), sys, nfs.ErrAcces,
			false,
		},
		"no flavor asked for": {nfs.ClientRule{}, at("700", rpc.TransportTCP), none, nfs.OK, false},
		"sys only, sys":       {nfs.ClientRule{Flavors: nfs.FlavorSys}, at("700", rpc.TransportTCP), sys, nfs.OK, false},
		"sys only, none":      {nfs.ClientRule{Flavors: nfs.FlavorSys}, at("700", rpc.TransportTCP), none, 0, true},
		"none only, sys":      {nfs.ClientRule{Flavors: nfs.FlavorNone}, at("700", rpc.TransportTCP), sys, 0, true},
		"Kerberos only, sys": {
			nfs.ClientRule{Flavors: nfs.FlavorsGSS}, at("700", rpc.TransportTCP), sys, 0, true,
		},
		"Kerberos only, none": {
			nfs.ClientRule{Flavors: nfs.FlavorKrb5p}, at("700", rpc.TransportRDMA), none, 0, true,
		},
		"both, none is nobody": {
			nfs.ClientRule{Flavors: nfs.FlavorSys | nfs.FlavorNone},
			at("700", rpc.TransportTCP), none,
			nfs.OK, false,
		},
		"no rule for the client": {
			nfs.ClientRule{},
			rpc.Peer{Addr: netip.MustParseAddrPort("[2001:db8::1]:700"), Transport: rpc.TransportTCP},
			sys, nfs.ErrAcces, false,
		},
	} {
		r.only(nfs.Export{Clients: everyone(c.rule)})
		got := r.as(c.peer, c.cred, Program, ProcGetAttr, func(e *xdr.Encoder) { EncodeHandle(e, r.oneRoot()) })
		if c.auth {
			d := xdr.NewDecoder(got.body)
			d.Skip(8)
			if denied, why, stat := d.Uint32(), d.Uint32(), d.Uint32(); denied != 1 || why != 1 || stat != tooWeak {
				t.Errorf("%s: %x", name, got.body)
			}
			continue
		}
		if st, _ := got.status(t); st != c.want {
			t.Errorf("%s: %v, want %v", name, st, c.want)
		}
	}
}

// TestSizes reads and writes more at once than a rule has it.
func TestSizes(t *testing.T) {
	r := newRig(t)
	cred := &blockstore.Cred{}
	root, _ := r.fs.Root()
	h, _, _, err := r.fs.Create(cred, root, "f", blockstore.Unchecked, &blockstore.SetAttr{}, [8]byte{})
	if err != nil {
		t.Fatal(err)
	}
	fh := r.codec.Append(nil, 1, &h)
	r.only(nfs.Export{Clients: everyone(nfs.ClientRule{Squash: nfs.NoRootSquash, MaxRead: 8192, MaxWrite: 4096})})
	st, d := r.nfs(ProcFSInfo, func(e *xdr.Encoder) { EncodeHandle(e, r.oneRoot()) })
	if DecodePostOp(d); st != nfs.OK {
		t.Fatal(st)
	}
	for _, want := range []uint32{8192, 8192, 4096, 4096, 4096, 4096, 8192} {
		if got := d.Uint32(); got != want {
			t.Errorf("FSINFO has %d, want %d", got, want)
		}
	}
	st, d = r.nfs(ProcWrite, func(e *xdr.Encoder) {
		EncodeHandle(e, fh)
		e.Uint64(0)
		e.Uint32(20000)
		e.Uint32(2)
		e.Opaque(make([]byte, 20000))
	})
	DecodeWcc(d)
	if n := d.Uint32(); st != nfs.OK || n != 4096 {
		t.Errorf("WRITE of 20000 bytes: %v, %d", st, n)
	}
	if _, _, _, err := r.fs.WriteAt(cred, h, make([]byte, 20000), 0, blockstore.FileSync); err != nil {
		t.Fatal(err)
	}
	st, d = r.nfs(ProcRead, func(e *xdr.Encoder) {
		EncodeHandle(e, fh)
		e.Uint64(0)
		e.Uint32(20000)
	})
	DecodePostOp(d)
	if n, eof := d.Uint32(), d.Bool(); st != nfs.OK || n != 8192 || eof {
		t.Errorf("READ of 20000 bytes: %v, %d, end %v", st, n, eof)
	}
	r.only(nfs.Export{Clients: everyone(nfs.ClientRule{NoReadDirPlus: true})})
	if st, _ := r.nfs(ProcReadDirPlus, func(e *xdr.Encoder) {
		EncodeHandle(e, r.oneRoot())
		e.Uint64(0)
		e.Uint64(0)
		e.Uint32(4096)
		e.Uint32(4096)
	}); st != nfs.ErrNotSupp {
		t.Errorf("READDIRPLUS: %v", st)
	}
}

// users are those of a server.
type users map[uint32][]uint32

func (u users) Groups(uid uint32, wait bool) ([]uint32, bool, bool) {
	list, ok := u[uid]
	return list, ok, wait
}

// TestManageGIDs opens a directory to a group that the client cannot tell.
func TestManageGIDs(t *testing.T) {
	var groups []uint32
	for g := range uint32(40) {
		groups = append(groups, 1000+g)
	}
	for name, c := range map[string]struct {
		rule nfs.ClientRule
		uid  uint32
		told []uint32
		want []uint32
	}{
		"off":             {nfs.ClientRule{}, 500, []uint32{7}, []uint32{7}},
		"on":              {nfs.ClientRule{ManageGIDs: true}, 500, []uint32{7}, groups},
		"not a user":      {nfs.ClientRule{ManageGIDs: true}, 501, []uint32{7}, []uint32{7}},
		"squashed groups": {nfs.ClientRule{ManageGIDs: true, AnonGID: 99}, 502, nil, []uint32{99, 5}},
		"all squashed":    {nfs.ClientRule{ManageGIDs: true, Squash: nfs.AllSquash}, 500, []uint32{7}, []uint32{}},
	} {
		var got blockstore.Cred
		cred := rpc.Cred{Flavor: rpc.AuthSys, UID: c.uid, GID: 100, Groups: c.told}
		g := users{500: groups, 502: {0, 5}}
		if c.rule.ManageGIDs && c.rule.Squash != nfs.AllSquash && c.rule.Identity(&cred, g, false, &got) {
			t.Errorf("%s: ready without waiting", name)
		}
		if !c.rule.Identity(&cred, g, true, &got) || !slices.Equal(got.Groups, c.want) {
			t.Errorf("%s: %v, want %v", name, got.Groups, c.want)
		}
	}
	// Who claims to be no user is anonymous.
	cred := rpc.Cred{Flavor: rpc.AuthSys, UID: 1<<32 - 1, GID: 1<<32 - 1}
	var got blockstore.Cred
	rule := nfs.ClientRule{Squash: nfs.NoRootSquash, AnonUID: 5, AnonGID: 6}
	if rule.Identity(&cred, nil, false, &got); got.UID != 5 || got.GID != 6 {
		t.Errorf("no user is %d:%d", got.UID, got.GID)
	}
}

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
		sub, _, _, err := r.fs.Mkdir(cred, root, "sub", &blockstore.SetAttr{Mode: ptr(uint32(0o755))})
		if err != nil {
			t.Fatal(err)
		}
		if _, _, _, err := r.fs.Mkdir(cred, sub, "child", &blockstore.SetAttr{Mode: ptr(uint32(0o755))}); err != nil {
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

func ptr[T any](v T) *T { return &v }

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
