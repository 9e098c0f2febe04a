package mount

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rstored/rstored/nfs"
	"github.com/rstored/rstored/nfs/client"
	"github.com/rstored/rstored/nfs/dial"
	"github.com/rstored/rstored/nfs/fusefs"
	"github.com/rstored/rstored/rpcrdma/rpc"
)

func parsed(t *testing.T, list string) *options {
	t.Helper()
	o := newOptions(new(dial.Dialer), false)
	if err := o.parse(list); err != nil {
		t.Fatal(err)
	}
	o.finish()
	return o
}

func TestOptions(t *testing.T) {
	o := parsed(t, "ro,sync,nocto,acregmin=5,acdirmax=7,soft,timeo=50,retrans=3,vers=4.1,uid=7,noexec,"+
		"x-systemd.automount,_netdev,mountport=20048,xprtsec=tls,"+
		"source=127.0.0.5,buffers=16,lookupcache=pos,allow_other,retry=1,bg")
	c := o.fs
	if !c.ReadOnly || !c.Sync || !c.NoCTO || !c.NoNegative || !c.AllowOther || *c.UID != 7 || c.GID != nil ||
		c.Memory != 16<<20 || !slices.Equal(c.Options, []string{"noexec"}) {
		t.Errorf("%+v", c)
	}
	if c.Times.RegMin != 5*time.Second || c.Times.DirMin != 30*time.Second || c.Times.DirMax != 30*time.Second {
		t.Errorf("%+v", c.Times)
	}
	if c.Timeout != 20*time.Second || o.dial.GiveUp != c.Timeout || !o.bg || o.retry != time.Minute {
		t.Error(c.Timeout, o.dial.GiveUp, o.bg, o.retry)
	}
	if o.dial.Version != client.Version41 || o.dial.MountPort != 20048 || o.dial.Security != rpc.TLS ||
		o.dial.Source.String() != "127.0.0.5" {
		t.Errorf("%+v", o.dial)
	}
	if o := parsed(t, "hard"); o.fs.Timeout != 0 || o.dial.GiveUp != forever {
		t.Error("a hard mount gives up")
	}
	if o := parsed(t, "actimeo=0"); o.fs.Times.RegMax != 0 || o.fs.Times.DirMax != 0 {
		t.Errorf("%+v", o.fs.Times)
	}
}

func TestBadOptions(t *testing.T) {
	for list, want := range map[string]string{
		"nonsense":        `unknown mount option "nonsense"`,
		"ro=1":            "takes no value",
		"uid":             "needs a value: uid=UID",
		"acregmin=x":      "not a number of seconds",
		"sec=spkm":        "not sys, krb5, krb5i or krb5p",
		"proto=udp":       "not rdma or tcp",
		"port=70000":      "from 1 to 65535",
		"lookupcache=yes": "not all or pos",
	} {
		err := newOptions(new(dial.Dialer), true).parse(list)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", list, err)
		}
	}
}

func TestDevice(t *testing.T) {
	for _, c := range []struct{ options, device, want string }{
		{"", "nfs+rdma://s/data", "nfs+rdma://s:20049/data"},
		{"proto=rdma", "s:/data", "nfs+rdma://s:20049/data"},
		{"proto=tcp,port=3049", "s:/a b?", "nfs+tcp://s:3049/a b%3F"},
		{"", "[fe80::1]:/data", "nfs+tcp://[fe80::1]:2049/data"},
		{"rdma,port=5", "nfs+rdma://s:7/x", "nfs+rdma://s:5/x"},
	} {
		u, err := parsed(t, c.options).device(c.device)
		if err != nil || u.String() != c.want {
			t.Errorf("%s %s: %v, %v", c.options, c.device, u, err)
		}
	}
	for _, c := range [][2]string{{"tcp", "nfs+rdma://s/data"}, {"", "/data"}, {"", ":/data"}, {"", "http://x/"}} {
		if u, err := parsed(t, c[0]).device(c[1]); err == nil {
			t.Errorf("%s: %v", c[1], u)
		}
	}
}

func TestHelperArgs(t *testing.T) {
	for _, c := range [][2]string{
		{"s:/d /mnt -sn -o rw,rdma", "mount s:/d /mnt -o rw,rdma"},
		{"s:/d /mnt -v -t fuse.rstored -N /proc/1/ns/mnt", "mount s:/d /mnt"},
		{"s:/d /mnt -f", "mount s:/d /mnt --fake"},
	} {
		if got := strings.Join(HelperArgs(strings.Fields(c[0])), " "); got != c[1] {
			t.Errorf("%s: %s", c[0], got)
		}
	}
}

func TestParseMounts(t *testing.T) {
	list, err := parseMounts(strings.NewReader(`22 1 0:20 / /proc rw - proc proc rw
90 22 0:77 / /mnt/a\040b rw,nosuid - fuse.rstored nfs+rdma://s:20049/d\040e rw,user_id=7,group_id=0
91 22 0:78 / /mnt/c rw shared:3 master:4 - fuse.sshfs x rw
`))
	want := []entry{{"/mnt/a b", "nfs+rdma://s:20049/d e", 77, "7"}}
	if err != nil || !slices.Equal(list, want) {
		t.Errorf("%+v, %v", list, err)
	}
}

// TestExplain: errors have the words of mount.nfs(8), and say what to do.
func TestExplain(t *testing.T) {
	u, err := client.ParseURL("nfs+tcp://s/data/x")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		err   error
		words []string
	}{
		{&fs.PathError{Err: nfs.ErrAcces}, []string{"access denied by server while mounting", "export"}},
		{nfs.ErrNoEnt, []string{"No such file or directory", "rstorectl ls nfs+tcp://s:2049/data'"}},
		{fmt.Errorf("dial: %w", syscall.ECONNREFUSED), []string{"Connection refused", "s:2049"}},
		{os.ErrDeadlineExceeded, []string{"Connection timed out", "4791", "doctor"}},
		{&rpc.AcceptError{}, []string{"requested NFS version", "vers"}},
		{errors.New("else"), []string{"mounting", "else"}},
	} {
		for _, w := range c.words {
			if got := explain(u, c.err).Error(); !strings.Contains(got, w) {
				t.Errorf("%q has no %q", got, w)
			}
		}
	}
	for err, retry := range map[error]bool{nfs.ErrNoEnt: false, syscall.ECONNREFUSED: true} {
		if answered(err) == retry {
			t.Errorf("%v: %v", err, retry)
		}
	}
}

// counted is a mount with some counts.
func counted(read uint64, calls uint64, took time.Duration) Mount {
	return Mount{
		Dir: "/mnt/a b", Source: "nfs+tcp://s/d", PID: 7, State: stateOK, Client: &client.Stats{Connections: 2},
		FS: &fusefs.Stats{BytesRead: read, Ops: []fusefs.OpStats{{Name: "READ", Calls: calls, Failed: 1, Time: took}}},
	}
}

func TestRates(t *testing.T) {
	restarted := counted(5, 1, 1)
	restarted.PID = 8
	for _, c := range []struct {
		after Mount
		want  Rates
	}{
		{counted(3000, 30, 3*time.Second), Rates{"/mnt/a b", stateOK, 1000, 0, 10, 0.1}},
		{counted(1000, 10, time.Second), Rates{"/mnt/a b", stateOK, 0, 0, 0, 0}},
		{restarted, Rates{Dir: "/mnt/a b", State: stateOK}},
		{Mount{Dir: "/mnt/a b", PID: 7, State: stateDead}, Rates{Dir: "/mnt/a b", State: stateDead}},
	} {
		got := ratesOf([]Mount{counted(1000, 10, time.Second)}, []Mount{c.after}, 2*time.Second)
		if len(got) != 1 || got[0] != c.want {
			t.Errorf("%+v, want %+v", got, c.want)
		}
	}
}

// TestRepeat: the first list is the base of the first report.
func TestRepeat(t *testing.T) {
	n := 0
	list := func() ([]Mount, error) {
		n++
		return []Mount{{PID: n}}, nil
	}
	var pairs []int
	err := repeat(t.Context(), time.Millisecond, 2, list, func(before, all []Mount, took time.Duration) error {
		if before != nil {
			pairs = append(pairs, before[0].PID, all[0].PID)
		}
		return nil
	})
	if err != nil || !slices.Equal(pairs, []int{1, 2, 2, 3}) {
		t.Error(pairs, err)
	}
}

// TestMetrics: the file is one that Prometheus reads, and a mount without a process is down.
func TestMetrics(t *testing.T) {
	name := filepath.Join(t.TempDir(), "m.prom")
	for range 2 { // it replaces the file
		err := writeMetrics(name, []Mount{
			counted(1000, 10, 1500*time.Millisecond), {Dir: "/mnt/dead", Source: "x", State: stateDead},
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	b, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		`rstored_mount_up{directory="/mnt/a b",source="nfs+tcp://s/d"} 1`,
		`rstored_mount_up{directory="/mnt/dead",source="x"} 0`,
		`rstored_mount_read_bytes_total{directory="/mnt/a b",source="nfs+tcp://s/d"} 1000`,
		`rstored_mount_operation_seconds_total{directory="/mnt/a b",operation="READ",source="nfs+tcp://s/d"} 1.5`,
		"# TYPE rstored_mount_operations_total counter",
	} {
		if !strings.Contains(string(b), want+"\n") {
			t.Errorf("no %s in\n%s", want, b)
		}
	}
}
