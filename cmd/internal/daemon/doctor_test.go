package daemon

import (
	"bytes"
	"net"
	"slices"
	"strings"
	"testing"

	"github.com/rstored/rstored/cmd/internal/doctor"
	"github.com/rstored/rstored/nfs/client"
)

// TestDoctor: the probes of a client and the look at the server, against a real one.
func TestDoctor(t *testing.T) {
	open, shut := t.TempDir(), t.TempDir()
	cfg := testConfig(t, open+"=/open", shut+"=/shut 10.0.0.0/8(rw)")
	d, ctl := startDaemon(t, cfg)
	defer stopDaemon(t, d)
	addr, _, err := net.SplitHostPort(cfg.RDMAListen[0])
	if err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		url   string
		fails bool
		want  map[string]string // check to a part of a line
	}{
		{"nfs+rdma://" + addr + "/open", false, map[string]string{
			"connect": "path MTU 4096", "null": "NULL call over RDMA: answered", "full-packet": "4096 bytes of payload",
			"mount": "MOUNT of /open over RDMA", "fsinfo": "over RDMA: reads up to",
		}},
		{
			"nfs+tcp://" + cfg.TCPListen[0] + "/open", false,
			map[string]string{
				"tcp": "TCP connect to " + cfg.TCPListen[0], "null": "over TCP", "mount": "over TCP",
				"fsinfo": "over TCP",
			},
		},
		{
			"nfs+rdma://" + addr + ":7/open", true,
			map[string]string{"connect": "nothing listens on the port  -> on the server: 'rstorectl port list'"},
		},
		{
			"nfs+rdma://" + addr + "/shut", true,
			map[string]string{"mount": "'rstorectl doctor' names the rule that has denied 127."},
		},
		{"nfs+rdma://" + addr + "/none", true, map[string]string{"mount": "the server exports "}},
		{"nfs+tcp://" + addr + ":9/open", true, map[string]string{"tcp": "refused"}},
	} {
		u, err := client.ParseURL(tc.url)
		if err != nil {
			t.Fatal(err)
		}
		r := doctor.Client(t.Context(), doctor.This(), u, nil)
		lines := printed(r)
		for check, part := range tc.want {
			if !slices.ContainsFunc(r, func(f doctor.Finding) bool {
				return f.Check == check && strings.Contains(printed(doctor.Report{f}), part)
			}) {
				t.Errorf("%s: no %s with %q:\n%s", tc.url, check, part, lines)
			}
		}
		if r.Failed() != tc.fails {
			t.Errorf("%s: failed %v:\n%s", tc.url, r.Failed(), lines)
		}
	}
	r := doctor.Server(t.Context(), doctor.This(), ctl)
	if lines := printed(r); r.Failed() || !strings.Contains(lines, ":7: refused: nothing listens on the port") ||
		!strings.Contains(lines, "UDP port 4791 of "+addr+" is rstored's") {
		t.Errorf("the server:\n%s", lines)
	}
}

// TestDoctorUnreachable: nobody answers.
func TestDoctorUnreachable(t *testing.T) {
	t.Parallel()
	u, err := client.ParseURL("nfs+rdma://" + testAddr() + "/data")
	if err != nil {
		t.Fatal(err)
	}
	r := doctor.Client(t.Context(), doctor.This(), u, nil)
	if lines := printed(r); !r.Failed() || !strings.Contains(lines, "did not answer the CM REQ") ||
		!strings.Contains(lines, "let UDP port 4791 in and out") {
		t.Error(lines)
	}
}

func printed(r doctor.Report) string {
	var b bytes.Buffer
	r.Print(&b)
	return b.String()
}
