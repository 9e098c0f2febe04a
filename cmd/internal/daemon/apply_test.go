package daemon

import (
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/rstored/rstored/blockstore"
	"github.com/rstored/rstored/cmd/internal/config"
	"github.com/rstored/rstored/cmd/internal/control"
	"github.com/rstored/rstored/cmd/internal/reconcile"
	"github.com/rstored/rstored/nfs"
	"github.com/rstored/rstored/nfs/client"
)

func yamlFile(format string, a ...any) control.File {
	return control.File{Name: "/f.yaml", Syntax: config.SyntaxYAML, Text: fmt.Sprintf(format, a...)}
}

func tableFile(format string, a ...any) control.File {
	return control.File{Name: "/exports", Syntax: config.SyntaxTable, Text: fmt.Sprintf(format, a...)}
}

func texts(list []control.Disruption) []string {
	out := []string{}
	for _, h := range list {
		out = append(out, h.Kind+": "+h.Text)
	}
	return out
}

// TestPlanDisruptions: what a plan says of a client is what the client meets when it is applied.
func TestPlanDisruptions(t *testing.T) {
	dir, other := t.TempDir(), t.TempDir()
	cfg := testConfig(t, dir+"=/a(no_root_squash)", other+"=/b(no_root_squash)")
	cfg.RDMAListen = nil
	d, ctl := startDaemon(t, cfg)
	defer stopDaemon(t, d)
	ctx := t.Context()
	file := func(opts string) control.File { return tableFile("%s *(insecure,fsid=root,%s)\n", dir, opts) }
	// From here on /a and / are the same file system, so that clients stay.
	apply := func(f control.File, disrupt bool) (control.Applied, error) {
		return ctl.Apply(ctx, control.Apply{File: f, Disrupt: disrupt})
	}
	if _, err := apply(file("rw,no_root_squash"), false); err != nil {
		t.Fatalf("nobody uses anything: %v", err)
	}
	for _, v := range []client.Version{client.Version3, client.Version42} {
		c := speak(t, cfg, v)
		root, err := c.Resolve(ctx, "/")
		if err != nil {
			t.Fatal(err)
		}
		n := 0
		put := func() error {
			n++
			h, err := c.Create(ctx, root.Handle, fmt.Sprintf("%v-%d", v, n), blockstore.Unchecked, &blockstore.SetAttr{},
				[8]byte{})
			if err == nil {
				_, err = c.Write(ctx, h.Handle, []byte("x"), 0, blockstore.Unstable)
			}
			return err
		}
		if err := put(); err != nil {
			t.Fatalf("%v: %v", v, err)
		}
		for _, tc := range []struct {
			opts string
			want []string
			met  func() error // what the client meets
		}{
			{"rw,no_root_squash", []string{}, put},
			{"ro,no_root_squash", []string{"write: client 127.0.0.1 would lose write on /"}, func() error {
				if err := put(); !client.IsStatus(err, nfs.ErrROFS) {
					return fmt.Errorf("it wrote: %v", err)
				}
				_, err := c.GetAttr(ctx, root.Handle)
				return err
			}},
			{"rw,root_squash", []string{"root: client 127.0.0.1's root would be squashed on /"}, func() error {
				h, err := c.Create(ctx, root.Handle, fmt.Sprintf("squashed-%v", v), blockstore.Unchecked, &blockstore.SetAttr{},
					[8]byte{})
				if os.Geteuid() != 0 {
					return nil // the store cannot tell users apart
				}
				if err == nil {
					a, err := c.GetAttr(ctx, h.Handle)
					if err == nil && a.UID == 0 {
						return errors.New("root made a file")
					}
					return err
				}
				if client.IsStatus(err, nfs.ErrAcces) {
					return nil
				}
				return err
			}},
			{
				"rw,all_squash,anonuid=7",
				[]string{"users: client 127.0.0.1's users would all be squashed on /"},
				func() error { return nil },
			},
			{"rw,no_root_squash,transport=rdma", []string{"access: client 127.0.0.1 would lose access to /"}, func() error {
				if _, err := c.GetAttr(ctx, root.Handle); !client.IsStatus(err, nfs.ErrAcces) {
					return fmt.Errorf("it was let in: %v", err)
				}
				return nil
			}},
			{
				"rw,no_root_squash,refer=/x@192.0.2.1",
				[]string{"access: client 127.0.0.1 would be referred to other servers for /, and has to mount it again " +
					"(version 4)"},
				func() error {
					want := nfs.ErrMoved
					if v == client.Version3 {
						want = nfs.OK // version 3 has no referrals
					}
					_, err := c.GetAttr(ctx, root.Handle)
					if want == nfs.OK && err != nil || want != nfs.OK && !client.IsStatus(err, want) {
						return fmt.Errorf("it met %v", err)
					}
					return nil
				},
			},
		} {
			p, err := ctl.Plan(ctx, file(tc.opts))
			if err != nil {
				t.Fatal(err)
			}
			if got := texts(p.Disruptions); !slices.Equal(got, tc.want) {
				t.Errorf("%v, %s: %q, want %q", v, tc.opts, got, tc.want)
			}
			a := control.Apply{File: file(tc.opts), State: p.State}
			if _, err := ctl.Apply(ctx, a); (err == nil) != (len(tc.want) == 0) ||
				err != nil && !strings.Contains(err.Error(), p.Disruptions[0].Text) {
				t.Errorf("%v, %s, without leave: %v", v, tc.opts, err)
			}
			if len(tc.want) > 0 {
				if err := put(); err != nil {
					t.Errorf("%v, %s: planned and refused, and something changed: %v", v, tc.opts, err)
				}
			}
			a.Disrupt = true
			if _, err := ctl.Apply(ctx, a); err != nil {
				t.Errorf("%v, %s: %v", v, tc.opts, err)
			}
			if err := tc.met(); err != nil {
				t.Errorf("%v, %s: %v", v, tc.opts, err)
			}
			if _, err := apply(file("rw,no_root_squash"), true); err != nil {
				t.Fatal(err)
			}
			if err := put(); err != nil {
				t.Errorf("%v, after %s: %v", v, tc.opts, err)
			}
		}
		// The export goes, and what is open in it.
		want := []string{"access: client 127.0.0.1 would lose access to /"}
		if v == client.Version42 {
			f, err := c.OpenShare(ctx, "/"+fmt.Sprintf("%v-%d", v, n), 1, 0)
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = f.Close() }()
			want = append(want, "state: 1 client with open files on / would be cut off: ")
		}
		p, err := ctl.Plan(ctx, yamlFile("exports: [{path: %s, pseudo: /b}]\n", other))
		if err != nil {
			t.Fatal(err)
		}
		if got := texts(p.Disruptions); !slices.EqualFunc(got, want, strings.HasPrefix) {
			t.Errorf("%v: %q, want %q", v, got, want)
		}
		_ = c.Close()
	}
}

// TestApplyAllOrNothing: what cannot be opened, changed meanwhile, or disrupts clients changes
// nothing at all.
func TestApplyAllOrNothing(t *testing.T) {
	a, b := t.TempDir(), t.TempDir()
	cfg := testConfig(t, a+"=/a", "memory:m")
	cfg.RDMAListen = nil
	d, ctl := startDaemon(t, cfg)
	defer stopDaemon(t, d)
	ctx := t.Context()
	before := describe(t, ctl)
	taken, err := net.Listen("tcp", testAddr()+":3049")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = taken.Close() }()
	host, _, _ := net.SplitHostPort(cfg.TCPListen[0])
	plan := func(f control.File) control.Plan {
		t.Helper()
		p, err := ctl.Plan(ctx, f)
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	good := yamlFile("exports: [{path: %s, pseudo: /b}, {path: m, type: memory}]\n", b)
	stale := plan(good).State
	for _, tc := range []struct {
		name string
		a    control.Apply
		err  string
	}{
		{
			"a directory that is not there",
			control.Apply{File: yamlFile("exports: [{path: %s, pseudo: /b}, {path: /no/such}, {path: m, type: memory}]\n", b)},
			"no such file",
		},
		{"a port that is taken", control.Apply{File: yamlFile("exports: [{path: %s, pseudo: /b}, {path: m, type: "+
			"memory}]\ntcp_listen: ['%s', '%s']\n", b, cfg.TCPListen[0], taken.Addr())}, "in use"},
		{
			"a port that is taken, in the place of another",
			control.Apply{File: yamlFile("exports: [{path: %s, pseudo: /b}, {path: m, type: memory}]\ntcp_listen: ['%s', "+
				"'192.0.2.1:2049']\n", b, net.JoinHostPort(host, "2050"))},
			"does not have that address",
		},
		{
			"a memory export that goes",
			control.Apply{File: yamlFile("exports: [{path: %s, pseudo: /b}]\n", b)},
			"all files of /m would be lost",
		},
		{"another state", control.Apply{File: good, State: "0123"}, "the running state has changed since"},
		{"no file", control.Apply{File: yamlFile("")}, "neither exports nor ports"},
		{"a long comment", control.Apply{File: good, Comment: strings.Repeat("x", reconcile.CommentMax+1)}, "comment"},
	} {
		if _, err := ctl.Apply(ctx, tc.a); err == nil || !strings.Contains(err.Error(), tc.err) {
			t.Errorf("%s: %v, want %q", tc.name, err, tc.err)
		}
		if after := describe(t, ctl); !slices.Equal(before, after) {
			t.Fatalf("%s: before\n%s\nafter\n%s", tc.name, strings.Join(before, "\n"), strings.Join(after, "\n"))
		}
	}
	if h, err := ctl.History(ctx); err != nil || len(h) != 0 {
		t.Errorf("history %v, %v", h, err)
	}
	// Somebody else changes something between plan and apply.
	ro := true
	if _, err := ctl.SetExport(ctx, "/a", control.ExportPatch{ReadOnly: &ro}); err != nil {
		t.Fatal(err)
	}
	if _, err := ctl.Apply(ctx, control.Apply{File: good, State: stale}); err == nil ||
		!strings.Contains(err.Error(), "has changed since") {
		t.Errorf("an old plan: %v", err)
	}
	if got := plan(good); got.State == stale || len(got.Problems) != 0 {
		t.Errorf("%+v", got)
	}
	// Apart from that it works, and a port moves though it is in its own way.
	if got, err := ctl.Apply(ctx, control.Apply{File: yamlFile("tcp_listen: ['%s', '%s']\nmount_listen: ['%s:3050']\n",
		cfg.TCPListen[0], net.JoinHostPort(testAddr(), "2049"), host)}); err != nil || len(got.Plan.Changes) != 2 {
		t.Errorf("%+v, %v", got, err)
	}
	if got, err := ctl.Apply(ctx, control.Apply{File: good, Comment: "the good one"}); err != nil || got.Number == 0 {
		t.Errorf("%+v, %v", got, err)
	}
}
