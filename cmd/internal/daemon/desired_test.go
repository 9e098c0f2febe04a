package daemon

import (
	"fmt"
	"slices"
	"testing"

	"github.com/rstored/rstored/cmd/internal/config"
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
		want              []string
	}{
		{"first is the root too", []string{"/srv/a", "/srv/b"}, nil, nil, []string{"/a [/ /srv/a] config", "/b [/srv/b] config"}},
		{"an export at / keeps it", []string{"/srv/a", "/srv/b=/"}, nil, nil, []string{"/a [/srv/a] config", "/ [/srv/b] config"}},
		{"run time replaces", []string{"/srv/a", "/srv/b"}, []string{"/mnt/a(ro)"}, nil, []string{"/a [/ /mnt/a] runtime", "/b [/srv/b] config"}},
		{"removed stays away", []string{"/srv/a", "/srv/b"}, nil, []string{"/a"}, []string{"/b [/ /srv/b] config"}},
		{"pseudo before alias", []string{"/a=/x"}, []string{"/b=/a"}, nil, []string{"/x [/] config", "/a [/b] runtime"}},
		{"memory has no path", []string{"memory:m"}, nil, nil, []string{"/m [/] config"}},
	} {
		var got []string
		for _, e := range desiredExports(exports(t, tc.configured...), exports(t, tc.added...), tc.removed) {
			got = append(got, fmt.Sprint(e.Pseudo, " ", e.Aliases, " ", e.Origin))
		}
		if !slices.Equal(got, tc.want) {
			t.Errorf("%s:\n got %q\nwant %q", tc.name, got, tc.want)
		}
	}
}

func TestDesiredPorts(t *testing.T) {
	cfg := &config.Config{RDMAListen: []string{":20049"}, TCPListen: []string{"0.0.0.0:2049", "127.0.0.1:3049"}, MountListen: []string{"127.0.0.1:3049"}}
	added := []state.Port{{Transport: "tcp", Listen: "127.0.0.1:3049"}, {Transport: "tcp", Listen: "127.0.0.1:4049"}}
	removed := []state.Port{{Transport: "tcp", Listen: ":2049"}}
	var got []string
	for _, p := range desiredPorts(cfg, added, removed) {
		got = append(got, p.Transport+" "+p.Listen+" "+p.Origin)
	}
	want := []string{"rdma :20049 config", "tcp 127.0.0.1:3049 config", "tcp 127.0.0.1:4049 runtime"}
	if !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}
