package e2e

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/rstored/rstored/nfs"
	"github.com/rstored/rstored/nfs/nfs4"
	"github.com/rstored/rstored/rdma/roce"
	"github.com/rstored/rstored/rpcrdma/rpc"
	"github.com/rstored/rstored/rpcrdma/xdr"
)

// TestAccessAcross: what one caller may do in one export does not help in another one, nor what
// somebody else has open.
func TestAccessAcross(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	base, err := os.MkdirTemp("", "rs-across-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(base) })
	client, friend := loopback(), loopback()
	args := []string{"--audit", "off"}
	for _, x := range []struct{ name, options string }{
		{"free", "rw,no_root_squash"},
		{"squashed", "rw,root_squash"},
		{"ro", "ro,no_root_squash"},
		{"hidden", ""},
	} {
		dir := filepath.Join(base, x.name)
		if err := errors.Join(os.Mkdir(dir, 0o777), unix.Chmod(dir, 0o777)); err != nil {
			t.Fatal(err)
		}
		for name, mode := range map[string]uint32{"secret": 0o600, "public": 0o644} {
			p := filepath.Join(dir, name)
			if err := errors.Join(os.WriteFile(p, []byte("data of "+x.name), 0o600), os.Chown(p, owner, ownGroup),
				unix.Chmod(p, mode)); err != nil {
				t.Fatal(err)
			}
		}
		if err := errors.Join(os.Symlink("/etc", filepath.Join(dir, "etc")),
			os.Symlink("../hidden", filepath.Join(dir, "beside")),
			unix.Mknod(filepath.Join(dir, "zero"), unix.S_IFCHR|0o666, int(unix.Mkdev(1, 5)))); err != nil {
			t.Fatal(err)
		}
		rule := fmt.Sprintf("%s(%s) ", client, x.options)
		if x.options == "" {
			rule = ""
		}
		args = append(args, "--export", fmt.Sprintf("%s=/%s(async) %s%s(rw,no_root_squash)", dir, x.name, rule, friend))
	}
	d := newDaemonOn(t, func(d *daemon) { d.asUnit() }, args...)
	dev, err := roce.Open(roce.Config{Addr: client})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = dev.Close() })
	creds := claims()
	root, other, own := creds["root"], creds["other"], creds["owner"]
	helper := d.accessPeer("tcp", -1, friend, nil)
	h := make(map[string][]byte)
	for _, x := range []string{"free", "squashed", "ro", "hidden"} {
		for _, name := range []string{"", "/secret", "/public", "/zero", "/etc"} {
			var st nfs.Status
			if h[x+name], st, err = helper.find(root, x+name); st != nfs.OK || err != nil {
				t.Fatal(x+name, st, err)
			}
		}
	}
	before := state(base)
	for _, p := range []*accessPeer{
		d.accessPeer("tcp", 0, client, nil), d.accessPeer("tcp", 1, client, nil),
		d.accessPeer("tcp", 2, client, nil), d.accessPeer("rdma", 2, client, dev),
	} {
		put := func(name string) op { return op4(nfs4.OpPutFH, h[name]) }
		save, restore := op4(nfs4.OpSaveFH), op4(nfs4.OpRestoreFH)
		copied := op4(nfs4.OpCopy, noState, noState, uint64(0), uint64(0), uint64(0), true, true, 0)
		cloned := op4(nfs4.OpClone, noState, noState, uint64(0), uint64(0), uint64(0))
		const all = 0x3f
		attrs := op4(nfs4.OpGetAttr, 1, 1<<1)
		for _, c := range []struct {
			about string
			minor int
			as    *rpc.Cred
			want  string
			ops   []op
		}{
			{
				"LINK into another export", 0, root, "XDEV",
				[]op{put("free/secret"), save, put("squashed"), op4(nfs4.OpLink, "new")},
			},
			{
				"RENAME into another export", 0, root, "XDEV",
				[]op{put("free"), save, put("ro"), op4(nfs4.OpRename, "public", "new")},
			},
			{
				"RENAME out of a hidden export", 0, root, "denied",
				[]op{put("hidden"), save, put("free"), op4(nfs4.OpRename, "public", "new")},
			},
			{
				"LINK out of a hidden export", 0, root, "denied",
				[]op{put("hidden/public"), save, put("free"), op4(nfs4.OpLink, "new")},
			},
			{
				"COPY of what root may not read there", 2, root, "denied",
				[]op{put("squashed/secret"), save, put("free/public"), copied},
			},
			{
				"COPY to what root may not write there", 2, root, "denied",
				[]op{put("free/secret"), save, put("squashed/public"), copied},
			},
			{"COPY to a read-only export", 2, root, "read-only", []op{put("free/secret"), save, put("ro/public"), copied}},
			{"COPY out of a hidden export", 2, root, "denied", []op{put("hidden/public"), save, put("free/public"), copied}},
			{"COPY into a hidden export", 2, root, "denied", []op{put("free/public"), save, put("hidden/public"), copied}},
			{"COPY of another's", 2, other, "denied", []op{put("free/secret"), save, put("free/public"), copied}},
			{"CLONE between exports", 2, root, "XDEV", []op{put("squashed/secret"), save, put("free/public"), cloned}},
			{
				"CLONE out of a hidden export", 2, root, "denied|XDEV",
				[]op{put("hidden/public"), save, put("free/public"), cloned},
			},
			{
				"identities in turn", 0, root, "denied",
				[]op{
					put("free/secret"), op4(nfs4.OpRead, noState, uint64(0), 1), put("squashed/secret"),
					op4(nfs4.OpRead, noState, uint64(0), 1),
				},
			},
			{
				"an identity that was saved", 0, root, "denied",
				[]op{
					put("squashed/secret"), save, put("free/secret"), op4(nfs4.OpRead, noState, uint64(0), 1), restore,
					op4(nfs4.OpRead, noState, uint64(0), 1),
				},
			},
			{
				"a read-only export that was saved", 0, root, "read-only",
				[]op{put("ro/secret"), save, put("free/secret"), restore, op4(nfs4.OpWrite, noState, uint64(0), 0, "evil")},
			},
			{"a hidden export that was saved", 0, root, "denied", []op{put("hidden"), save, put("free"), restore, attrs}},
			{"GETATTR in a hidden export", 0, root, "denied", []op{put("hidden/public"), attrs}},
			{"ACCESS in a hidden export", 0, root, "denied", []op{put("hidden/public"), op4(nfs4.OpAccess, all)}},
			{"READ in a hidden export", 0, root, "denied", []op{put("hidden/public"), op4(nfs4.OpRead, noState, uint64(0), 1)}},
			{
				"WRITE in a hidden export", 0, root, "denied",
				[]op{put("hidden/public"), op4(nfs4.OpWrite, noState, uint64(0), 0, "evil")},
			},
			{"COMMIT in a hidden export", 0, root, "denied", []op{put("hidden/public"), op4(nfs4.OpCommit, uint64(0), 0)}},
			{
				"READDIR in a hidden export", 0, root, "denied",
				[]op{put("hidden"), op4(nfs4.OpReadDir, uint64(0), [8]byte{}, 4096, 4096, 0)},
			},
			{"LOOKUP in a hidden export", 0, root, "denied", []op{put("hidden"), op4(nfs4.OpLookup, "public")}},
			{"LOOKUPP in a hidden export", 0, root, "denied", []op{put("hidden/public"), op4(nfs4.OpLookupP)}},
			{"READLINK in a hidden export", 0, root, "denied", []op{put("hidden/etc"), op4(nfs4.OpReadLink)}},
			{"SECINFO in a hidden export", 0, root, "denied", []op{put("hidden"), op4(nfs4.OpSecInfo, "public")}},
			{
				"VERIFY in a hidden export", 0, root, "denied",
				[]op{put("hidden/public"), op4(nfs4.OpVerify, 1, 1<<4, []byte{7: 1})},
			},
			{"REMOVE in a hidden export", 0, root, "denied", []op{put("hidden"), op4(nfs4.OpRemove, "public")}},
			{"CREATE in a hidden export", 0, root, "denied", []op{put("hidden"), op4(nfs4.OpCreate, 2, "new", newMode.encode4)}},
			{
				"SETATTR in a hidden export", 0, root, "denied",
				[]op{put("hidden/public"), op4(nfs4.OpSetAttr, noState, setMode.encode4)},
			},
			{
				"OPEN in a hidden export", 1, root, "denied",
				[]op{put("hidden"), op4(nfs4.OpOpen, 0, 1, 0, uint64(0), "me", 0, 0, "public")},
			},
			{
				"LISTXATTRS in a hidden export", 2, root, "denied",
				[]op{put("hidden/public"), op4(nfs4.OpListXattrs, uint64(0), 4096)},
			},
			{"SEEK in a hidden export", 2, root, "denied", []op{put("hidden/public"), op4(nfs4.OpSeek, noState, uint64(0), 0)}},
			{
				"READ_PLUS in a hidden export", 2, root, "denied",
				[]op{put("hidden/public"), op4(nfs4.OpReadPlus, noState, uint64(0), 10)},
			},
			{
				"ALLOCATE in a hidden export", 2, root, "denied",
				[]op{put("hidden/public"), op4(nfs4.OpAllocate, noState, uint64(0), uint64(10))},
			},
			{"LOOKUP of a hidden export", 0, root, "NOENT", []op{op4(nfs4.OpPutRootFH), op4(nfs4.OpLookup, "hidden")}},
			{"SECINFO of a hidden export", 0, root, "NOENT", []op{op4(nfs4.OpPutRootFH), op4(nfs4.OpSecInfo, "hidden")}},
			{
				"LOOKUPP out of an export into a hidden one", 0, root, "NOENT",
				[]op{put("free"), op4(nfs4.OpLookupP), op4(nfs4.OpLookup, "hidden")},
			},
			{"LOOKUPP out of the server", 0, root, "NOENT", []op{put("free"), op4(nfs4.OpLookupP), op4(nfs4.OpLookupP)}},
			{"LOOKUP of ..", 0, root, "BADNAME", []op{put("free"), op4(nfs4.OpLookup, "..")}},
			{"LOOKUP of a path", 0, root, "BADCHAR", []op{put("free"), op4(nfs4.OpLookup, "../hidden")}},
			{
				"LOOKUP through a link to the host", 0, root, "SYMLINK",
				[]op{put("free"), op4(nfs4.OpLookup, "etc"), op4(nfs4.OpLookup, "passwd")},
			},
			{
				"LOOKUP through a link to another export", 0, root, "SYMLINK",
				[]op{put("free"), op4(nfs4.OpLookup, "beside"), op4(nfs4.OpLookup, "public")},
			},
			{"READ of a device", 0, root, "INVAL|WRONG_TYPE", []op{put("free/zero"), op4(nfs4.OpRead, noState, uint64(0), 10)}},
			{
				"WRITE to a device", 0, root, "INVAL|WRONG_TYPE",
				[]op{put("free/zero"), op4(nfs4.OpWrite, noState, uint64(0), 0, "evil")},
			},
			{
				"OPEN of a device", 1, root, "SYMLINK",
				[]op{put("free"), op4(nfs4.OpOpen, 0, 3, 0, uint64(0), "me", 0, 0, "zero")},
			},
			{
				"OPEN by its handle of what is another's", 1, other, "denied",
				[]op{put("free/secret"), op4(nfs4.OpOpen, 0, 1, 0, uint64(0), "me", 0, 4)},
			},
			{
				"READ past all locks of what is another's", 0, other, "denied",
				[]op{put("free/secret"), op4(nfs4.OpRead, allOnes, uint64(0), 10)},
			},
			{
				"attributes of trusted users", 2, other, "denied",
				[]op{put("free/public"), op4(nfs4.OpSetXattr, 0, "../trusted.x", "evil")},
			},
		} {
			if p.minor < c.minor {
				continue
			}
			if got := outcome(p.compound(c.as, nil, c.ops...)); !slices.Contains(strings.Split(c.want, "|"), got) {
				t.Errorf("%s, %s: %s, not %s", c.about, p, got, c.want)
			}
		}
		if now := state(base); now != before {
			t.Fatalf("%s: something was done:\n%s%s", p, before, now)
		}
		if p.minor > 0 {
			p.othersState(own, other, h["free/secret"])
		}
		for i := range h["free/secret"] {
			forged := slices.Clone(h["free/secret"])
			forged[i] ^= 1
			if st, err := p.on(root, forged, attrs); err != nil || st != nfs.ErrBadHandle {
				t.Errorf("%s: a handle with another byte %d: %v, %v", p, i, st, err)
			}
		}
	}
	// An export that was removed takes its handles with it, and one of the same place has its own
	// rules.
	dir := filepath.Join(base, "squashed")
	p := d.accessPeer("tcp", 2, client, nil)
	read := func() string {
		return outcome(p.on(own, h["squashed/secret"], op4(nfs4.OpRead, noState, uint64(0), 1)))
	}
	if got := read(); got != "done" {
		t.Error(got)
	}
	d.ctl("export", "remove", "/squashed")
	if got := read(); got != "STALE" {
		t.Errorf("after the export was removed: %s", got)
	}
	d.ctl("export", "add", dir+"=/again", "--client", friend.String()+"(rw)")
	if got := read(); got != "denied" && got != "STALE" {
		t.Errorf("after it was exported to somebody else: %s", got)
	}
}

var allOnes = [16]byte{255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255}

// othersState has one user of a client use the open of another one, in the same session.
func (p *accessPeer) othersState(own, other *rpc.Cred, h []byte) {
	p.t.Helper()
	var id [16]byte
	st, err := p.compound(own, func(d *xdr.Decoder) {
		d.Skip(8 + 8)
		copy(id[:], d.Fixed(16))
	}, op4(nfs4.OpPutFH, h), op4(nfs4.OpOpen, 0, 3, 0, uint64(0), "mine", 0, 4))
	if st != nfs.OK || err != nil {
		p.t.Fatal(p, st, err)
	}
	for name, o := range map[string]op{
		"READ": op4(nfs4.OpRead, id, uint64(0), 10), "WRITE": op4(nfs4.OpWrite, id, uint64(0), 0, "evil"),
		"SETATTR": op4(nfs4.OpSetAttr, id, setSize.encode4),
	} {
		if got := outcome(p.on(other, h, o)); got != "denied" {
			p.t.Errorf("%s: %s by the open of another user: %s", p, name, got)
		}
		if got := outcome(p.on(own, h, op4(nfs4.OpRead, id, uint64(0), 10))); got != "done" {
			p.t.Errorf("%s: by his own: %s", p, got)
		}
	}
	if got := outcome(p.on(own, h, op4(nfs4.OpClose, 0, id))); got != "done" {
		p.t.Error(p, got)
	}
}
