package rquota

import (
	"net/netip"
	"testing"
	"time"

	"github.com/rstored/rstored/blockstore"
	"github.com/rstored/rstored/blockstore/memfs"
	"github.com/rstored/rstored/nfs"
	"github.com/rstored/rstored/rpcrdma/rpc"
	"github.com/rstored/rstored/rpcrdma/xdr"
)

// quotaFS is a store in which each user has a quota after its number.
type quotaFS struct {
	blockstore.FS
	none bool
}

func (s quotaFS) Limits() blockstore.Limits {
	l := s.FS.Limits()
	l.Quotas = !s.none
	return l
}

func (s quotaFS) Quota(c *blockstore.Cred, _ blockstore.Handle) (blockstore.Quota, error) {
	switch c.UID {
	case 7:
		return blockstore.Quota{}, nil // it has no files
	case 8:
		return blockstore.Quota{}, blockstore.ErrPerm
	}
	return blockstore.Quota{
		Used: uint64(c.UID) * 4096, Soft: 1 << 20, Hard: 1 << 60, Files: 3, FilesSoft: 10, FilesHard: 20, Until: 1100,
	}, nil
}

var wall = time.Unix(1000, 0)

// ask makes a call as a user, and returns the quota.
func ask(t *testing.T, s *rpc.Server, peer string, vers uint32, uid uint32, args func(*xdr.Encoder)) (
	blockstore.Quota, Status, rpc.AcceptStat,
) {
	t.Helper()
	var e xdr.Encoder
	rpc.EncodeCall(&e, 1, Program, vers, ProcGet, &rpc.Cred{Flavor: rpc.AuthSys, UID: uid, GID: uid})
	args(&e)
	c := &rpc.Call{Peer: rpc.Peer{Addr: netip.MustParseAddrPort(peer), Transport: rpc.TransportTCP}}
	var out []byte
	c.Reply = func(c *rpc.Call, _ bool) { out = c.Res.AppendFlat(nil) }
	s.Dispatch(c, xdr.NewDecoder(e.B), true)
	d := xdr.NewDecoder(out)
	d.Skip(20)
	if st := rpc.AcceptStat(d.Uint32()); st != rpc.RPCSuccess {
		return blockstore.Quota{}, 0, st
	}
	q, st, err := Decode(&d, wall)
	if err != nil || d.Remaining() != 0 {
		t.Errorf("%v, %d bytes left", err, d.Remaining())
	}
	return q, st, rpc.RPCSuccess
}

func TestQuota(t *testing.T) {
	table := nfs.NewTable(nil)
	export := func(id uint32, name string, none bool, r nfs.ClientRule) {
		r.CIDR = netip.MustParsePrefix("10.0.0.0/8")
		x := &nfs.Export{
			ID: id, Path: "/srv" + name, Pseudo: name, FS: quotaFS{memfs.New(memfs.Options{}), none},
			Clients: []nfs.ClientRule{r},
		}
		if err := table.Add(x); err != nil {
			t.Fatal(err)
		}
	}
	export(1, "/a", false, nfs.ClientRule{Squash: nfs.RootSquash, AnonUID: 65534, AnonGID: 65534})
	export(2, "/b", false, nfs.ClientRule{Squash: nfs.NoRootSquash})
	export(3, "/c", false, nfs.ClientRule{Squash: nfs.AllSquash, AnonUID: 99, AnonGID: 99})
	export(4, "/none", true, nfs.ClientRule{})
	export(5, "/krb5", false, nfs.ClientRule{Squash: nfs.NoRootSquash, Flavors: nfs.FlavorsGSS})
	denials := new(nfs.Denials)
	s := rpc.NewServer(rpc.ServerConfig{
		Programs: Programs(nfs.Config{Exports: table, Denials: denials}, func() time.Time { return wall }), Workers: 1,
	})
	defer s.Close()
	const in, out = "10.1.2.3:700", "192.0.2.1:700"
	for _, c := range []struct {
		peer     string
		path     string
		uid, id  uint32
		want     Status
		usedByID uint32
	}{
		{in, "/a", 5, 5, OK, 5},
		{in, "/a/below", 5, 5, OK, 5},
		{in, "/a", 5, 6, Perm, 0},    // another user's
		{in, "/a", 0, 6, Perm, 0},    // root is squashed
		{in, "/a", 0, 0, OK, 65534},  // and has the quota of who it is here
		{in, "/b", 0, 6, OK, 6},      // root may
		{in, "/b", 0, 7, NoQuota, 0}, // no files
		{in, "/b", 0, 8, Perm, 0},    // the store refuses
		{in, "/c", 5, 5, OK, 99},     // everybody is one user
		{in, "/none", 5, 5, NoQuota, 0},
		{in, "/other", 5, 5, NoQuota, 0},
		{out, "/a", 5, 5, Perm, 0},
		{in, "/krb5", 5, 5, Perm, 0}, // by AUTH_SYS
	} {
		q, st, _ := ask(t, s, c.peer, Version1, c.uid, func(e *xdr.Encoder) { EncodeArgs(e, c.path, c.id) })
		if st != c.want {
			t.Errorf("%+v: status %d", c, st)
			continue
		}
		want := blockstore.Quota{}
		if st == OK {
			want = blockstore.Quota{
				Used: uint64(c.usedByID) * blockSize, Soft: 1 << 20, Hard: (1<<32 - 1) * blockSize, // the most on the wire
				Files: 3, FilesSoft: 10, FilesHard: 20, Until: 1100,
			}
		}
		if q != want {
			t.Errorf("%+v: %+v, want %+v", c, q, want)
		}
	}
	if list := denials.List(); len(list) != 2 || list[0].Export != "/krb5" || list[1].Export != "/a" {
		t.Errorf("denials: %+v", list)
	}
	for kind, want := range map[uint32]Status{KindUser: OK, KindGroup: NoQuota, 9: NoQuota} {
		if _, st, _ := ask(t, s, in, Version2, 5, func(e *xdr.Encoder) {
			e.String("/a")
			e.Uint32s(kind, 5)
		}); st != want {
			t.Errorf("kind %d: %d", kind, st)
		}
	}
	if _, _, st := ask(t, s, in, Version2, 5, func(e *xdr.Encoder) { EncodeArgs(e, "/a", 5) }); st != rpc.GarbageArgs {
		t.Errorf("short arguments: %d", st)
	}
}

// FuzzDecode: an answer of any bytes is a quota, or an error, or no quota.
func FuzzDecode(f *testing.F) {
	var e xdr.Encoder
	e.Uint32(uint32(OK))
	Encode(&e, &blockstore.Quota{Used: 1, Soft: 2, Hard: 3, Until: 2000}, wall)
	f.Add(e.B)
	f.Add([]byte{0, 0, 0, 2})
	f.Fuzz(func(t *testing.T, b []byte) {
		d := xdr.NewDecoder(b)
		q, st, err := Decode(&d, wall)
		if err == nil && st != OK && q != (blockstore.Quota{}) {
			t.Errorf("%+v with status %d", q, st)
		}
	})
}

// FuzzCall: a call of any bytes has an answer, or is dropped.
func FuzzCall(f *testing.F) {
	table := nfs.NewTable(nil)
	s := &server{nfs.Config{Exports: table, Denials: new(nfs.Denials)}, time.Now}
	var e xdr.Encoder
	EncodeArgs(&e, "/a", 5)
	f.Add(e.B, true)
	f.Fuzz(func(_ *testing.T, b []byte, kinds bool) { s.get(&rpc.Call{Args: xdr.NewDecoder(b)}, kinds) })
}

// projectFS is a store in which one directory is in a project with a quota.
type projectFS struct {
	blockstore.FS
	dir blockstore.Handle
}

func (s *projectFS) ProjectQuota(dir blockstore.Handle) (blockstore.Quota, error) {
	if dir != s.dir {
		return blockstore.Quota{}, nil
	}
	return blockstore.Quota{Used: 8192, Hard: 1 << 20}, nil
}

// TestProjectQuota: the quota of a directory is told to who may go there.
func TestProjectQuota(t *testing.T) {
	fs := memfs.New(memfs.Options{})
	root, err := fs.Root()
	if err != nil {
		t.Fatal(err)
	}
	mkdir := func(in blockstore.Handle, name string, mode uint32) blockstore.Handle {
		t.Helper()
		h, _, _, err := fs.Mkdir(&blockstore.Cred{}, in, name, &blockstore.SetAttr{Mode: &mode})
		if err != nil {
			t.Fatal(err)
		}
		return h
	}
	store := &projectFS{FS: fs, dir: mkdir(mkdir(root, "locked", 0o711), "dir", 0o755)}
	mkdir(root, "closed", 0o700)
	table := nfs.NewTable(nil)
	if err := table.Add(&nfs.Export{
		ID: 1, Path: "/srv/a", Pseudo: "/a", FS: store,
		Clients: []nfs.ClientRule{{CIDR: netip.MustParsePrefix("10.0.0.0/8"), Squash: nfs.NoRootSquash}},
	}); err != nil {
		t.Fatal(err)
	}
	s := rpc.NewServer(rpc.ServerConfig{
		Programs: Programs(nfs.Config{Exports: table, Denials: new(nfs.Denials)}, func() time.Time { return wall }),
		Workers:  1,
	})
	defer s.Close()
	for _, c := range []struct {
		peer, path string
		want       Status
	}{
		{"10.1.2.3:700", "/a/locked/dir", OK},
		{"10.1.2.3:700", "/a/locked/./dir/", OK},
		{"10.1.2.3:700", "/a/locked/dir/..", NoQuota},
		{"10.1.2.3:700", "/a", NoQuota},
		{"10.1.2.3:700", "/a/none", NoQuota},
		{"10.1.2.3:700", "/a/closed/x", Perm},
		{"10.1.2.3:700", "/b", NoQuota},
		{"192.0.2.1:700", "/a/locked/dir", Perm},
	} {
		q, st, _ := ask(t, s, c.peer, Version2, 5, func(e *xdr.Encoder) { EncodeKindArgs(e, c.path, KindProject, 0) })
		if st != c.want || st == OK && (q != blockstore.Quota{Used: 8192, Hard: 1 << 20}) {
			t.Errorf("%+v: %d, %+v", c, st, q)
		}
	}
}
