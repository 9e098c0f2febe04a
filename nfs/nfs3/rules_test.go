package nfs3

import (
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/rstored/rstored/blockstore"
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

// TestDoors: no procedure serves a call by a flavor that the export does not accept.
func TestDoors(t *testing.T) {
	r := newRig(t)
	rule := nfs.ClientRule{Flavors: nfs.FlavorKrb5p | nfs.FlavorKrb5i, Squash: nfs.NoRootSquash}
	r.only(nfs.Export{Clients: everyone(rule)})
	peer := rpc.Peer{Addr: netip.MustParseAddrPort("10.0.0.1:700"), Transport: rpc.TransportTCP}
	handle := func(e *xdr.Encoder) { EncodeHandle(e, r.oneRoot()) }
	denied := 0
	try := func(what string, prog, proc uint32, args func(*xdr.Encoder)) {
		t.Helper()
		got := r.as(peer, sys, prog, proc, args)
		d := xdr.NewDecoder(got.body)
		d.Skip(8)
		const accepted, tooWeak = 0, 5
		if d.Uint32() != accepted {
			if why, stat := d.Uint32(), d.Uint32(); why != 1 || stat != tooWeak {
				t.Errorf("%s %d: denied by %d, %d", what, proc, why, stat)
			}
			denied++
			return
		}
		d.Skip(8)
		if st := rpc.AcceptStat(d.Uint32()); st == rpc.RPCSuccess && nfs.Status(d.Uint32()) == nfs.OK {
			t.Errorf("%s %d is served", what, proc)
		}
	}
	for proc := uint32(ProcGetAttr); proc <= ProcCommit; proc++ {
		try("NFS", Program, proc, func(e *xdr.Encoder) {
			handle(e)
			if proc == ProcRename || proc == ProcLink {
				if proc == ProcRename {
					e.String("a")
				}
				handle(e)
				e.String("b")
				return
			}
			if proc == ProcSymlink || proc >= ProcCreate && proc <= ProcRmdir || proc == ProcLookup {
				e.String("a")
			}
			if proc == ProcMknod {
				e.Uint32(7) // a FIFO
			}
			for range 24 {
				e.Uint32(0)
			}
		})
	}
	if denied != ProcCommit {
		t.Errorf("%d of %d procedures are denied", denied, ProcCommit)
	}
	for _, proc := range []uint32{ProcGetACL, ProcSetACL} {
		try("NFSACL", ACLProgram, proc, func(e *xdr.Encoder) {
			handle(e)
			e.Uint32s(0, 0, 0, 0, 0)
		})
	}
	if denied != ProcCommit+2 {
		t.Error("NFSACL is served")
	}
}
