package lint

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

const module = "github.com/rstored/rstored"

// root is the top of the tree.
const root = "../../.."

// law is the dependency law: what the packages under a directory may import of
// this module, test files apart. The longest prefix that matches counts. A
// trailing /... allows a whole subtree; a package may always import itself and,
// where its row says so, its own subtree.
var law = []struct {
	dir   string
	allow []string
	unix  bool // may import golang.org/x/sys/unix
}{
	{dir: "rdma", unix: true}, // the arena maps memory
	{dir: "rdma/wire", allow: []string{"rdma"}},
	{dir: "rdma/wq", allow: []string{"rdma"}},
	{dir: "rdma/rc", allow: []string{"rdma", "rdma/wire", "rdma/wq"}},
	{dir: "rdma/ud", allow: []string{"rdma", "rdma/wire", "rdma/wq"}},
	{dir: "rdma/cm", allow: []string{"rdma", "rdma/wire"}},
	{dir: "rdma/endpoint", allow: []string{"rdma"}},
	{dir: "rdma/perf", allow: []string{"rdma"}},
	{dir: "rdma/link", allow: []string{"rdma", "rdma/wire", "rdma/link"}},
	{dir: "rdma/link/udp", allow: []string{"rdma", "rdma/wire", "rdma/link"}, unix: true},
	{dir: "rdma/roce", allow: []string{
		"rdma", "rdma/wire", "rdma/wq", "rdma/rc", "rdma/ud", "rdma/cm",
		"rdma/connstate", "rdma/eventloop", "rdma/link/...",
	}},
	{dir: "rdma/eventloop", allow: []string{"rdma"}},
	{dir: "rdma/connstate", allow: []string{"rdma"}},
	{dir: "rdma/verbs", allow: []string{"rdma", "rdma/connstate", "rdma/eventloop", "rdma/sysfs"}, unix: true},
	{dir: "rdma/sysfs"},
	{dir: "rdma/provider", allow: []string{"rdma", "rdma/roce", "rdma/sysfs", "rdma/verbs"}}, // chooses one
	{dir: "rdma/sim", allow: []string{"rdma/..."}},
	{dir: "rdma/rdmatest", allow: []string{"rdma/..."}, unix: true}, // dma-bufs to test with
	{dir: "rpcrdma/xdr"},
	{dir: "rpcrdma/gss", allow: []string{"rpcrdma/xdr"}},
	{dir: "rpcrdma/rpc", allow: []string{"rpcrdma/gss", "rpcrdma/xdr"}, unix: true}, // the clock of the boot
	{dir: "rpcrdma/tcp", allow: []string{"rpcrdma/xdr", "rpcrdma/rpc"}, unix: true}, // what a socket has sent
	{dir: "rpcrdma/udp", allow: []string{"rpcrdma/xdr", "rpcrdma/rpc"}, unix: true}, // the address that was called
	{dir: "rpcrdma", allow: []string{"rdma", "rpcrdma/xdr", "rpcrdma/rpc"}},
	{dir: "nfs", allow: []string{"nfs/...", "rpcrdma/xdr", "rpcrdma/rpc", "blockstore"}},
	{dir: "nfs/state", allow: []string{"nfs", "nfs/lock", "rpcrdma/rpc"}}, // no store, no message
	{dir: "nfs/acl", allow: []string{"rpcrdma/xdr", "blockstore"}},        // a function of what it is given
	{dir: "nfs/clock", allow: []string{"rpcrdma/rpc"}},                    // the clock of the boot
	{dir: "nfs/krb5", allow: []string{"rpcrdma/gss"}},
	{dir: "nfs/krb5/creds", allow: []string{"nfs/krb5", "rpcrdma/rpc"}, unix: true},
	{dir: "nfs/krb5/krbtest"},
	{dir: "nfs/idmap"}, // who knows names is passed in
	{dir: "nfs/hosts"}, // and who knows hosts
	{dir: "nfs/nfs4", allow: []string{
		"nfs", "nfs/acl", "nfs/clock", "nfs/lock", "nfs/state", "rpcrdma/gss", "rpcrdma/xdr", "rpcrdma/rpc",
		"blockstore",
	}},
	// puts the client together
	{dir: "nfs/dial", allow: []string{
		"nfs/...", "rdma", "rdma/provider", "rdma/roce", "rpcrdma", "rpcrdma/gss", "rpcrdma/rpc",
		"rpcrdma/tcp",
	}},
	// TCP to RDMA
	{dir: "nfs/bridge", allow: []string{"nfs/...", "rpcrdma", "rpcrdma/rpc", "rpcrdma/tcp", "rpcrdma/xdr"}},
	// a client with the kernel above it
	{dir: "nfs/fusefs", allow: []string{"nfs", "nfs/client", "nfs/nfs3", "rpcrdma/rpc", "blockstore"}, unix: true},
	// go-nfs over RDMA
	{dir: "nfs/gonfs", allow: []string{"nfs/...", "rdma", "rpcrdma", "rpcrdma/rpc", "rpcrdma/xdr"}},
	{dir: "blockstore", allow: []string{"blockstore/..."}},
	{dir: "blockstore/cephfs", allow: []string{"blockstore"}, unix: true},
	{dir: "blockstore/posixfs", allow: []string{"blockstore", "blockstore/boltfile"}, unix: true},
	// a client as any other
	{dir: "deploy/csi", allow: []string{"deploy/csi/...", "nfs", "nfs/client", "nfs/dial", "blockstore"}, unix: true},
	{dir: "cmd/internal/lint", allow: []string{"cmd/..."}},
	{dir: "cmd/internal/cluster", allow: []string{"cmd/internal/config", "cmd/internal/grace", "cmd/internal/rados"}},
	{dir: "cmd/internal/grace"},
	{dir: "cmd/internal/rados"},
	{dir: "cmd/internal/capture", allow: []string{"rdma", "rdma/link", "rdma/link/pcap", "rdma/link/udp", "rdma/wire"}},
	{
		dir: "cmd/internal/counters",
		allow: []string{
			"cmd/internal/control", "rdma", "rdma/perf", "rdma/roce", "rdma/verbs", "rpcrdma", "rpcrdma/tcp", "rpcrdma/udp",
		},
	},
	{
		dir: "cmd/internal/desired", allow: []string{"cmd/internal/config", "cmd/internal/control", "cmd/internal/state"},
		unix: true,
	},
	{dir: "cmd/internal/devices", allow: []string{
		"cmd/internal/capture", "cmd/internal/config", "cmd/internal/control", "cmd/internal/counters",
		"cmd/internal/devices", "cmd/internal/ops", "cmd/internal/postmortem", "cmd/internal/sockets", "cmd/internal/state",
		"cmd/internal/telemetry", "cmd/internal/upgrade", "rdma/...",
	}},
	{dir: "cmd/internal/ports", allow: []string{
		"cmd/internal/audit", "cmd/internal/certs", "cmd/internal/config", "cmd/internal/control",
		"cmd/internal/counters", "cmd/internal/desired", "cmd/internal/devices", "cmd/internal/sockets",
		"cmd/internal/state", "cmd/internal/telemetry", "cmd/internal/tickle", "cmd/internal/upgrade", "nfs/nfs3",
		"nfs/nfs4", "nfs/nlm", "nfs/portmap", "nfs/rquota", "rdma", "rdma/perf", "rdma/provider",
		"rpcrdma", "rpcrdma/rpc", "rpcrdma/tcp", "rpcrdma/udp", "rpcrdma/xdr",
	}},
	{dir: "cmd/internal/exports", allow: []string{
		"blockstore/...", "cmd/internal/config", "cmd/internal/control", "cmd/internal/desired",
		"cmd/internal/measure", "cmd/internal/state", "cmd/internal/telemetry", "cmd/internal/upgrade", "nfs", "rdma/verbs",
	}, unix: true},
	{dir: "cmd/internal/names", allow: []string{
		"cmd/internal/config", "cmd/internal/telemetry", "nfs/hosts", "nfs/idmap",
	}},
	{dir: "cmd/internal/plan", allow: []string{
		"cmd/internal/config", "cmd/internal/control", "cmd/internal/desired", "cmd/internal/exports",
		"cmd/internal/measure", "nfs", "nfs/hosts", "nfs/lock", "nfs/state", "rpcrdma/rpc",
	}},
	{
		dir:   "cmd/internal/postmortem",
		allow: []string{"cmd/internal/config", "cmd/internal/control", "rdma/...", "rpcrdma", "rpcrdma/rpc"},
	},
	{dir: "cmd/internal/reconcile", allow: []string{
		"cmd/internal/config", "cmd/internal/control", "cmd/internal/desired", "cmd/internal/exports", "cmd/internal/plan",
		"cmd/internal/ports", "cmd/internal/service", "cmd/internal/state", "cmd/internal/telemetry",
	}},
	{dir: "cmd/internal/service", allow: []string{
		"blockstore", "blockstore/posixfs", "cmd/internal/cluster", "cmd/internal/config", "cmd/internal/control",
		"cmd/internal/counters", "cmd/internal/exports", "cmd/internal/measure", "cmd/internal/names", "cmd/internal/state",
		"cmd/internal/telemetry", "cmd/internal/upgrade", "nfs/...", "rpcrdma/gss", "rpcrdma/rpc", "rpcrdma/tcp",
		"rpcrdma/udp", "rpcrdma/xdr",
	}},
	{dir: "cmd/internal/upgrade", allow: []string{"cmd/internal/handover"}, unix: true},
	{dir: "cmd", allow: []string{"..."}, unix: true},
}

// pure are the packages whose code is a function of its inputs: no clock, no
// IO, no goroutines, nothing whose order is chance.
var pure = []string{
	"rdma/wire", "rdma/wq", "rdma/rc", "rdma/ud", "rdma/cm", "rpcrdma/xdr", "nfs/acl",
	"cmd/internal/grace",
}

// impureImports are the imports that a pure package must do without.
var impureImports = []string{
	"time", "net", "os", "sync", "sync/atomic", "context", "math/rand", "math/rand/v2", "log", "log/slog", "syscall",
	"runtime",
}

// pkg is the part of go list's answer that is needed.
type pkg struct {
	ImportPath string
	Dir        string
	Export     string
	GoFiles    []string
	CgoFiles   []string
	Imports    []string
	Standard   bool
}

func (p *pkg) rel() string {
	return strings.TrimPrefix(strings.TrimPrefix(p.ImportPath, module), "/")
}

// packages lists the module's packages (and with deps what they import), built
// far enough to have type information.
func packages(t *testing.T, args ...string) []*pkg {
	t.Helper()
	cmd := exec.Command("go", append([]string{"list", "-json=ImportPath,Dir,Export,GoFiles,CgoFiles,Imports,Standard"},
		args...)...)
	cmd.Dir = root
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list: %v\n%s", err, stderr.String())
	}
	var list []*pkg
	for dec := json.NewDecoder(bytes.NewReader(out)); ; {
		p := new(pkg)
		if err := dec.Decode(p); errors.Is(err, io.EOF) {
			return list
		} else if err != nil {
			t.Fatal(err)
		}
		list = append(list, p)
	}
}

// under reports whether a package path lies in a directory of the tree.
func under(rel, dir string) bool { return rel == dir || strings.HasPrefix(rel, dir+"/") }

func allowed(rel, imp string, allow []string) bool {
	for _, a := range allow {
		if a == "..." || a == imp {
			return true
		}
		if d, ok := strings.CutSuffix(a, "/..."); ok && under(imp, d) {
			return true
		}
	}
	return rel == imp
}

// TestLeasesGoByTheirClock: the packages whose leases, recalls, grace periods and limits must not
// depend on how the host's clock is set read nfs/clock, or no clock at all. Where a file says what
// time of the wall clock it needs, that is listed here.
func TestLeasesGoByTheirClock(t *testing.T) {
	wall := map[string]string{"nfs/nfs4/server.go": "cfg.Wall = time.Now"} // times of files
	reads := regexp.MustCompile(`\btime\.(Now|Since|Until)\b`)
	for _, dir := range []string{"nfs", "nfs/state", "nfs/lock", "nfs/nfs3", "nfs/nfs4", "nfs/nlm", "nfs/rquota"} {
		files, err := filepath.Glob(filepath.Join(root, dir, "*.go"))
		if err != nil || len(files) == 0 {
			t.Fatalf("%s: %d files, %v", dir, len(files), err)
		}
		for _, file := range files {
			if strings.HasSuffix(file, "_test.go") {
				continue
			}
			b, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			name := dir + "/" + filepath.Base(file)
			for i, line := range strings.Split(string(b), "\n") {
				code, _, _ := strings.Cut(line, "//")
				if reads.MatchString(code) && (wall[name] == "" || !strings.Contains(code, wall[name])) {
					t.Errorf("%s:%d reads the wall clock: %s", name, i+1, strings.TrimSpace(line))
				}
			}
		}
	}
}
