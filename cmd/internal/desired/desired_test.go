package desired

import (
	"fmt"
	"slices"
	"testing"

	"github.com/rstored/rstored/cmd/internal/config"
	"github.com/rstored/rstored/cmd/internal/control"
	"github.com/rstored/rstored/cmd/internal/state"
)

func exports(t *testing.T, specs ...string) []config.Export {
	t.Helper()
	out := make([]config.Export, 0, len(specs))
	for _, s := range specs {
		e, err := config.ParseExport(s)
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, e)
	}
	return out
}

// TestDesiredExports: what is served, where, and why.
func TestDesiredExports(t *testing.T) {
	for _, tc := range []struct {
		name              string
		configured, added []string
		removed           []string
		setting, was      string // the root: by the configuration, and that of the last change
		want              []string
	}{
		{
			"first is the root too",
			[]string{"/srv/a", "/srv/b"},
			nil, nil, "", "",
			[]string{"/a [/ /srv/a] config", "/b [/srv/b] config"},
		},
		{
			"an export at / keeps it",
			[]string{"/srv/a", "/srv/b=/"},
			nil, nil, "", "",
			[]string{"/a [/srv/a] config", "/ [/srv/b] config"},
		},
		{
			"run time replaces",
			[]string{"/srv/a", "/srv/b"},
			[]string{"/mnt/a(ro)"},
			nil, "", "",
			[]string{"/a [/ /mnt/a] runtime", "/b [/srv/b] config"},
		},
		{
			"removed stays away",
			[]string{"/srv/a", "/srv/b"},
			nil,
			[]string{"/a"},
			"", "/a",
			[]string{"/b [/ /srv/b] config"},
		},
		{
			"pseudo before alias",
			[]string{"/a=/x"},
			[]string{"/b=/a"},
			nil, "", "",
			[]string{"/x [/] config", "/a [/b] runtime"},
		},
		{"memory has no path", []string{"memory:m"}, nil, nil, "", "", []string{"/m [/] config"}},
		{
			"one before the root does not move it",
			[]string{"/srv/new", "/srv/a"},
			nil, nil, "", "/a",
			[]string{"/new [/srv/new] config", "/a [/ /srv/a] config"},
		},
		{
			"the setting, by pseudo path",
			[]string{"/srv/a", "/srv/b"},
			nil, nil, "/b", "/a",
			[]string{"/a [/srv/a] config", "/b [/ /srv/b] config"},
		},
		{
			"the setting, by directory",
			[]string{"/srv/a", "/srv/b"},
			nil, nil, "/srv/b", "",
			[]string{"/a [/srv/a] config", "/b [/ /srv/b] config"},
		},
		{
			"the setting names nothing",
			[]string{"/srv/a"},
			nil, nil, "/c", "/a",
			[]string{"/a [/srv/a] config"},
		},
	} {
		var got []string
		src := Sources{
			Config:  &config.Config{Root: tc.setting, Exports: exports(t, tc.configured...)},
			Exports: exports(t, tc.added...), RemovedExports: tc.removed, Root: tc.was,
		}
		for _, e := range src.State().Exports {
			got = append(got, fmt.Sprint(e.Pseudo, " ", e.Aliases, " ", e.Origin))
		}
		if !slices.Equal(got, tc.want) {
			t.Errorf("%s:\n got %q\nwant %q", tc.name, got, tc.want)
		}
	}
}

func TestDesiredPorts(t *testing.T) {
	cfg := &config.Config{
		RDMAListen: []string{":20049"}, TCPListen: []string{":2049", "127.0.0.1:3049"},
		MountListen: []string{"127.0.0.1:3049"},
	}
	added := []state.Port{{Transport: "tcp", Listen: "127.0.0.1:3049"}, {Transport: "tcp", Listen: "127.0.0.1:4049"}}
	removed := []state.Port{{Transport: "tcp", Listen: ":2049"}}
	var got []string
	for _, p := range mergePorts(cfg, added, removed) {
		got = append(got, p.Transport+" "+p.Listen+" "+p.Origin)
	}
	want := []string{"rdma :20049 config", "tcp 127.0.0.1:3049 config", "tcp 127.0.0.1:4049 runtime"}
	if !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestMountPointOption(t *testing.T) {
	mounts := parseMounts(`22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw
30 22 8:2 / /srv/a\040b rw - xfs /dev/sdb rw
31 22 0:5 / /proc rw - proc proc rw
short
`)
	if len(mounts) != 3 || mounts[1] != (Mount{"/srv/a b", "xfs", "/dev/sdb"}) {
		t.Fatalf("%+v", mounts)
	}
	for at, want := range map[string]bool{"": true, ".": true, "/proc": true, "/srv": false} {
		e := config.Export{Path: "/srv/a b", Type: config.TypePosix, MountPoint: at}
		if err := MountedAt(&e, mounts); (err == nil) != want {
			t.Errorf("mountpoint %q: %v", at, err)
		}
	}
	list := []control.Export{
		{Export: config.Export{Path: "/", Pseudo: "/", Type: config.TypePosix, CrossMnt: true}},
		{Export: config.Export{Path: "/srv/a b/c", Pseudo: "/c", Type: config.TypePosix}},
	}
	mounts = append(mounts, Mount{At: "/srv/a b/c/d", Kind: "ext4"}, Mount{At: "/srv/a b/c", Kind: "ext4"})
	got := mountedBelow(list, mounts)
	if len(got) != 1 || got[0].Path != "/srv/a b" || got[0].Pseudo != "/srv/a b" || got[0].Origin != control.OriginMount {
		t.Errorf("%+v", got)
	}
}

// TestBypassed: an export inside of another one that is stricter is warned of, unless a mount is
// between them.
func TestBypassed(t *testing.T) {
	for _, c := range []struct {
		about      string
		over, in   string
		mounts     []Mount
		isBypassed bool
	}{
		{"the same rules", "10.0.0.0/8(rw)", "10.0.0.0/8(rw)", nil, false},
		{"fewer clients", "10.0.0.0/8(rw)", "10.0.0.1(rw)", nil, true},
		{"more clients", "10.0.0.1(rw)", "10.0.0.0/8(rw)", nil, false},
		{"other clients", "10.0.0.0/8(ro)", "192.0.2.0/24(rw)", nil, true},
		{"read-only", "10.0.0.0/8(rw)", "10.0.0.0/8(ro)", nil, true},
		{"the other one is read-only", "10.0.0.0/8(ro)", "10.0.0.0/8(rw)", nil, false},
		{"root is squashed", "10.0.0.0/8(rw,no_root_squash)", "10.0.0.0/8(rw)", nil, true},
		{"root is squashed in the other one", "10.0.0.0/8(rw)", "10.0.0.0/8(rw,no_root_squash)", nil, false},
		{"names", "*.example.org(rw)", "*.example.org(rw)", nil, false},
		{"a name of them", "*.example.org(rw)", "one.example.org(rw)", nil, true},
		{"the server's own host alone", "*(rw)", "", nil, true},
		{"a mount", "10.0.0.0/8(rw)", "10.0.0.1(rw)", []Mount{{At: "/srv/a/in"}}, false},
		{"a mount on the way", "10.0.0.0/8(rw)", "10.0.0.1(rw)", []Mount{{At: "/srv/a"}}, false},
		{
			"mounts elsewhere", "10.0.0.0/8(rw)", "10.0.0.1(rw)",
			[]Mount{{At: "/srv"}, {At: "/srv/a/in/x"}, {At: "/srv/a/i"}},
			true,
		},
	} {
		var list []control.Export
		for _, e := range exports(t, "/srv "+c.over, "/srv/a/in "+c.in, "/srv2 "+c.in) {
			list = append(list, control.Export{Export: e})
		}
		got := Bypassed(list, c.mounts)
		if len(got) > 1 || (len(got) == 1) != c.isBypassed {
			t.Errorf("%s: %q", c.about, got)
		}
	}
}
