package e2e

import (
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rstored/rstored/blockstore"
	"github.com/rstored/rstored/nfs"
	"github.com/rstored/rstored/nfs/nfs3"
	"github.com/rstored/rstored/nfs/nfs4"
	"github.com/rstored/rstored/rdma/roce"
	"github.com/rstored/rstored/rpcrdma/rpc"
	"github.com/rstored/rstored/rpcrdma/xdr"
)

func doMkdir(p *accessPeer, c *rpc.Cred, h []byte) (nfs.Status, error) {
	if p.minor < 0 {
		return p.call3(nfs3.ProcMkdir, c, h, "new", newMode.encode3)
	}
	const directory = 2
	return p.on(c, h, op4(nfs4.OpCreate, directory, "new", newMode.encode4))
}

func doMknod(typ uint32) func(*accessPeer, *rpc.Cred, []byte) (nfs.Status, error) {
	return func(p *accessPeer, c *rpc.Cred, h []byte) (nfs.Status, error) {
		var device []any
		const block = 3
		if typ == block {
			device = []any{7, 0}
		}
		if p.minor < 0 {
			return p.call3(nfs3.ProcMknod, c, append([]any{h, "new", typ, newMode.encode3}, device...)...)
		}
		return p.on(c, h, op4(nfs4.OpCreate, append(append([]any{typ}, device...), "new", newMode.encode4)...))
	}
}

func doRemove(p *accessPeer, c *rpc.Cred, h []byte) (nfs.Status, error) {
	if p.minor < 0 {
		return p.call3(nfs3.ProcRemove, c, h, "x")
	}
	return p.on(c, h, op4(nfs4.OpRemove, "x"))
}

func doRename(p *accessPeer, c *rpc.Cred, h []byte) (nfs.Status, error) {
	if p.minor < 0 {
		return p.call3(nfs3.ProcRename, c, h, "x", h, "y")
	}
	return p.on(c, h, op4(nfs4.OpSaveFH), op4(nfs4.OpRename, "x", "y"))
}

func doLink(p *accessPeer, c *rpc.Cred, h []byte) (nfs.Status, error) {
	if p.minor >= 0 {
		return p.on(c, h, op4(nfs4.OpLookup, "x"), op4(nfs4.OpSaveFH), op4(nfs4.OpPutFH, h), op4(nfs4.OpLink, "y"))
	}
	var x []byte
	st, err := p.call(nfs3.Program, nfs3.Version, nfs3.ProcLookup, c, words(h, "x"), func(st nfs.Status, d *xdr.Decoder) {
		if st == nfs.OK {
			x = slices.Clone(d.Opaque(nfs.HandleMax))
		}
		d.Skip(d.Remaining())
	})
	if st != nfs.OK || err != nil {
		return st, err
	}
	return p.call3(nfs3.ProcLink, c, x, h, "y")
}

func doReserve(num uint32) func(*accessPeer, *rpc.Cred, []byte) (nfs.Status, error) {
	return func(p *accessPeer, c *rpc.Cred, h []byte) (nfs.Status, error) {
		return p.on(c, h, op4(num, noState, uint64(0), uint64(4096)))
	}
}

func doSeek(p *accessPeer, c *rpc.Cred, h []byte) (nfs.Status, error) {
	return p.on(c, h, op4(nfs4.OpSeek, noState, uint64(0), 0))
}

func doReadPlus(p *accessPeer, c *rpc.Cred, h []byte) (nfs.Status, error) {
	return p.on(c, h, op4(nfs4.OpReadPlus, noState, uint64(0), 100))
}

// doOpen is an OPEN of x and a CLOSE.
func doOpen(access, deny uint32, create ...any) func(*accessPeer, *rpc.Cred, []byte) (nfs.Status, error) {
	return func(p *accessPeer, c *rpc.Cred, h []byte) (nfs.Status, error) {
		current := [16]byte{3: 1}
		how := create
		if how == nil {
			how = []any{0}
		}
		return p.on(c, h, op4(nfs4.OpOpen, append(append([]any{0, access, deny, uint64(0), "me"}, how...), 0, "x")...),
			op4(nfs4.OpClose, 0, current))
	}
}

// empty is a fattr4 of size 0.
var empty = (&setAttr{size: new(uint64(0))}).encode4

// verifierTime is a time to come, so that reading does not change the time of access.
const verifierTime = 2_000_000_000

// verifier is what withTimes leaves in the times of a file, as far as they hold it.
var verifier = func() (v [8]byte) {
	binary.BigEndian.PutUint32(v[:4], verifierTime)
	binary.BigEndian.PutUint32(v[4:], verifierTime+1)
	return v
}()

// withTimes makes an empty file of the owner that others have no rights to, with the times of a
// verifier.
func withTimes(dir string) error {
	x := filepath.Join(dir, "d/x")
	return errors.Join(made(0o777, 0o600)(dir), os.Truncate(x, 0),
		os.Chtimes(x, time.Unix(verifierTime+1, 0), time.Unix(verifierTime, 0)))
}

func withXattr(mode uint32) func(string) error {
	return func(dir string) error {
		return errors.Join(made(0o755, mode)(dir), unix.Setxattr(filepath.Join(dir, "d/x"), "user.there", []byte("value"), 0))
	}
}

func doXattr(num uint32, args ...any) func(*accessPeer, *rpc.Cred, []byte) (nfs.Status, error) {
	return func(p *accessPeer, c *rpc.Cred, h []byte) (nfs.Status, error) { return p.on(c, h, op4(num, args...)) }
}

// doACL sets an ACL that gives everybody everything.
func doACL(p *accessPeer, c *rpc.Cred, h []byte) (nfs.Status, error) {
	if p.minor < 0 {
		everything := nfs3.ACLToWire(blockstore.ACLOfMode(0o777), 0, 0, true)
		return p.call(nfs3.ACLProgram, nfs3.ACLVersion, nfs3.ProcSetACL, c, func(e *xdr.Encoder) {
			nfs3.EncodeHandle(e, h)
			e.Uint32(nfs3.MaskACL)
			nfs3.EncodeACL(e, everything, false)
			nfs3.EncodeACL(e, nfs3.WireACL{}, true)
		}, func(_ nfs.Status, d *xdr.Decoder) { d.Skip(d.Remaining()) })
	}
	const acl, all = 12, 0x1601ff
	var v xdr.Encoder
	words(3)(&v)
	for _, who := range []string{"OWNER@", "GROUP@", "EVERYONE@"} {
		words(0, 0, all, who)(&v)
	}
	return p.on(c, h, op4(nfs4.OpSetAttr, noState, 1, 1<<acl, v.B))
}

// outcome is what a call came to, in the terms of the test.
func outcome(st nfs.Status, err error) string {
	var denied *rpc.DeniedError
	switch {
	case errors.As(err, &denied):
		return "denied"
	case err != nil:
		return err.Error()
	}
	switch st {
	case nfs.OK:
		return "done"
	case nfs.ErrPerm, nfs.ErrAcces, nfs.ErrWrongSec:
		return "denied"
	case nfs.ErrROFS:
		return "read-only"
	}
	return st.String()
}

// state is what is to be seen of a directory and all that is in it.
func state(dir string) string {
	var b strings.Builder
	_ = filepath.WalkDir(dir, func(p string, e os.DirEntry, err error) error {
		var st unix.Stat_t
		if err == nil {
			err = unix.Lstat(p, &st)
		}
		data := []byte(nil)
		if err == nil && e.Type().IsRegular() {
			data, err = os.ReadFile(p)
		}
		xattr := make([]byte, 100)
		n, _ := unix.Getxattr(p, "user.there", xattr)
		fmt.Fprintln(&b, p, err, string(xattr[:max(n, 0)]), st.Mode, st.Uid, st.Gid, st.Size, st.Mtim.Sec, st.Nlink, st.Rdev,
			string(data))
		return nil
	})
	return b.String()
}

// TestAccess holds what callers can do against what the host's kernel grants the users that the
// rules make of them: rule, claimed identity, operation, version and carrier. It is done with a
// daemon of root and with one as the unit file runs it: another user, with capabilities. What is
// denied must leave no trace.
func TestAccess(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	t.Run("root", func(t *testing.T) { accessMatrix(t, false) })
	t.Run("unit", func(t *testing.T) { accessMatrix(t, true) })
}

func accessMatrix(t *testing.T, unit bool) {
	base, err := os.MkdirTemp("", "rs-access-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(base) })
	if err := os.Chmod(base, 0o755); err != nil {
		t.Fatal(err)
	}
	client, friend := loopback(), loopback()
	args := []string{"--audit", "off"}
	for _, r := range accessRules {
		if err := os.Mkdir(filepath.Join(base, r.name), 0o755); err != nil {
			t.Fatal(err)
		}
		who, options := client.String(), r.options
		if options == "" {
			who, options = "192.0.2.1", "rw,no_root_squash"
		}
		args = append(args, "--export",
			fmt.Sprintf("%s=/%s(async) %s(%s) %s(rw,no_root_squash)", filepath.Join(base, r.name), r.name, who, options, friend))
	}
	d := newDaemonOn(t, func(d *daemon) {
		if unit {
			d.asUnit()
		}
	}, args...)

	dev, err := roce.Open(roce.Config{Addr: client})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = dev.Close() })
	noXattrs := unix.Setxattr(base, "user.probe", []byte("1"), 0) != nil
	creds := claims()
	helper := d.accessPeer("tcp", -1, friend, nil) // it has what it takes to find handles that others could not
	number := 0
	try := func(p *accessPeer, r *accessRule, o *accessOp, claim string) {
		number++
		name := fmt.Sprint(number)
		dir := filepath.Join(base, r.name, name)
		defer func() { _ = os.RemoveAll(dir) }()
		if err := errors.Join(os.Mkdir(dir, 0o755), o.prepare(dir)); err != nil {
			t.Fatal(err)
		}
		h, st, err := helper.find(creds["root"], filepath.Join("/", r.name, name, o.on))
		if st != nfs.OK || err != nil {
			t.Fatal(r.name, st, err)
		}
		before := state(dir)
		c := creds[claim]
		i := r.as(c)
		want := "denied"
		switch {
		case r.admits != nil && !r.admits(p.transport, c):
		case r.readOnly && o.changes && (p.minor < 0 || !o.ends):
			want = "read-only"
		case o.may(&i):
			want = "done"
		}
		got := outcome(o.call(p, c, h))
		about := fmt.Sprintf("%s, %s, %s, as %s", r.name, o.name, p, claim)
		switch {
		case got != want:
			t.Errorf("%s: %s, not %s", about, got, want)
		case got != "done" && state(dir) != before:
			t.Errorf("%s: %s, but it is done:\n%s%s", about, got, before, state(dir))
		case got == "done" && o.then != nil:
			if err := o.then(dir, &i); err != nil {
				t.Errorf("%s: %v", about, err)
			}
		}
	}
	ops := slices.DeleteFunc(accessOps(), func(o accessOp) bool {
		return noXattrs && strings.Contains(o.name, "XATTR")
	})
	for _, v := range []struct {
		transport string
		minor     int
		claims    []string // nil: all
	}{
		{"tcp", -1, nil},
		{"tcp", 2, nil},
		{"tcp", 0, []string{"root", "daemon", "owner", "other"}},
		{"tcp", 1, []string{"root", "last of 16", "-1"}},
		{"rdma", -1, []string{"root", "daemon", "member"}},
		{"rdma", 2, []string{"root", "other", "no credential"}},
	} {
		p := d.accessPeer(v.transport, v.minor, client, dev)
		switch {
		case v.claims == nil && unit: // what the daemon's own user has to do with it
			v.claims = []string{"root", "daemon", "member", "other"}
		case v.claims == nil:
			v.claims = slices.Sorted(maps.Keys(creds))
		}
		for i := range accessRules {
			for j := range ops {
				if o := &ops[j]; v.minor >= o.minor && (v.minor >= 0 || !o.no3) {
					for _, claim := range v.claims {
						try(p, &accessRules[i], o, claim)
					}
				}
			}
		}
		if h, st, err := p.find(creds["root"], "/unlisted"); err == nil && (st == nfs.OK || h != nil) {
			t.Errorf("%s finds an export that is not for it", p)
		}
	}
	t.Logf("%d calls", number)
}
