package daemon

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rstored/rstored/blockstore"
	"github.com/rstored/rstored/cmd/internal/control"
	"github.com/rstored/rstored/nfs"
	"github.com/rstored/rstored/nfs/client"
	"github.com/rstored/rstored/nfs/dial"
	"github.com/rstored/rstored/nfs/nfs3"
	"github.com/rstored/rstored/rdma"
	rdmaend "github.com/rstored/rstored/rdma/endpoint"
	"github.com/rstored/rstored/rpcrdma"
	"github.com/rstored/rstored/rpcrdma/rpc"
)

// complaintsFile lists what tshark has to say about the kernel's own packets, which it
// may say about ours too. It is made by
//
//	RSTORED_CAPTURES=DIR go test ./cmd/internal/daemon -run TestTsharkKernel -update
//
// from a directory of captures of the kernel's client and server.
const complaintsFile = "testdata/tshark-kernel.txt"

var update = flag.Bool("update", false, "write "+complaintsFile+" anew")

// tshark reads captures; HOME keeps a user's own settings out of it.
func tshark(t *testing.T, file string, args ...string) string {
	t.Helper()
	bin, err := exec.LookPath("tshark")
	if err != nil {
		t.Skip("tshark is not installed: no other implementation has looked at the packets (Debian: apt-get install tshark)")
	}
	cmd := exec.Command(bin, append([]string{"-r", file, "-d", "udp.port==4791,infiniband"}, args...)...)
	cmd.Env = append(cmd.Environ(), "HOME="+filepath.Join(t.TempDir(), "none"))
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("tshark %v: %v\n%s", args, err, stderr.String())
	}
	return string(out)
}

// expertLine is a line of tshark's expert statistics: count, group, protocol, message.
// The first three columns are set to the right.
var expertLine = regexp.MustCompile(`^\s*(\d+)\s+(\S.*?)\s+(\S+)  (.*)$`)

// complaints are what tshark warns of or calls an error, by severity, protocol and
// message, and of malformed packets also in which message of which program.
func complaints(t *testing.T, file string) map[string]int {
	t.Helper()
	found := make(map[string]int)
	severity := ""
	for line := range strings.Lines(tshark(t, file, "-q", "-z", "expert,warn")) {
		line = strings.TrimRight(line, "\n")
		if name, _, ok := strings.Cut(line, " ("); ok && !strings.HasPrefix(line, " ") {
			severity = strings.ToLower(strings.TrimSuffix(name, "s"))
			continue
		}
		if m := expertLine.FindStringSubmatch(line); m != nil && severity != "" {
			n := 0
			if _, err := fmt.Sscan(m[1], &n); err != nil {
				t.Fatal(err)
			}
			found[severity+": "+m[3]+": "+m[4]] += n
		}
	}
	for line := range strings.Lines(tshark(t, file, "-Y", "_ws.malformed", "-T", "fields", "-E", "occurrence=l",
		"-e", "frame.protocols", "-e", "rpc.program", "-e", "rpc.programversion", "-e", "rpc.procedure", "-e", "rpc.msgtyp")) {
		f := strings.Split(strings.TrimRight(line, "\n"), "\t")
		if len(f) != 5 {
			t.Fatalf("tshark says %q", line)
		}
		layers := strings.Split(f[0], ":")
		in := strings.Join(layers[max(0, slices.Index(layers, "infiniband")):], ":")
		found[fmt.Sprintf("malformed: %s, program %s version %s procedure %s, message type %s", in, f[1], f[2], f[3], f[4])]++
	}
	return found
}

// TestTsharkKernel: the list of what tshark says of the kernel's packets is what it
// says of them.
func TestTsharkKernel(t *testing.T) {
	dir := os.Getenv("RSTORED_CAPTURES")
	if dir == "" {
		t.Skip("RSTORED_CAPTURES names no directory of captures of the kernel")
	}
	files, err := filepath.Glob(filepath.Join(dir, "*.pcap"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no captures in %s: %v", dir, err)
	}
	all := make(map[string]int)
	for _, f := range files {
		for k, n := range complaints(t, f) {
			all[k] += n
		}
	}
	list := strings.Join(slices.Sorted(maps.Keys(all)), "\n") + "\n"
	t.Logf("%d captures:\n%s", len(files), list)
	if *update {
		if err := os.WriteFile(complaintsFile, []byte(list), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(complaintsFile)
	if err != nil || string(want) != list {
		t.Errorf("%s (%v) has\n%s", complaintsFile, err, want)
	}
}

// TestTshark: tshark dissects what our client and server say to each other down to
// NFS, and complains of nothing that it does not complain of in the kernel's packets.
func TestTshark(t *testing.T) {
	if _, err := exec.LookPath("tshark"); err != nil {
		t.Skip("tshark is not installed: no other implementation has looked at the packets (Debian: apt-get install tshark)")
	}
	list, err := os.ReadFile(complaintsFile)
	if err != nil {
		t.Fatal(err)
	}
	cfg := testConfig(t, t.TempDir()+"=/a 127.0.0.0/8(no_root_squash)", t.TempDir()+"=/denied 192.0.2.0/24")
	cfg.TCPListen = nil
	d, ctl := startDaemon(t, cfg)
	defer stopDaemon(t, d)
	file := filepath.Join(t.TempDir(), "ours.pcap")
	record(t, ctl, file, func(ctx context.Context) { workload(ctx, t, cfg.RDMAListen[0]) })

	for k, n := range complaints(t, file) {
		if slices.Contains(strings.Split(string(list), "\n"), k) {
			t.Logf("%6d %s (as in the kernel's)", n, k)
		} else {
			t.Errorf("%6d %s, which the kernel's packets do not have", n, k)
		}
	}
	// A dissector that passes a message on as data has no complaint. Of messages with
	// errors it knows ERR_CHUNK; a version other than 1 it takes for data.
	for _, f := range []struct {
		filter string
		least  int
	}{
		{"infiniband", 500}, {"infiniband.mad", 6}, {"rpcordma", 50}, {"rpc", 50}, {"nfs", 40}, {"mount", 6},
		{"rpcordma.msg_type == 4", 1}, {"rpcordma && nfs.procedure_v3 == 6", 2}, {"rpcordma && nfs.procedure_v3 == 7", 2},
		{"nfs.procedure_v3 == 17", 2}, {"nfs.status == 2", 1}, {"rpc.state_accept != 0", 3},
		{"infiniband.reth && infiniband.bth.opcode == 12", 1}, {"infiniband.bth.opcode == 6", 1},
	} {
		n := strings.Count(tshark(t, file, "-Y", f.filter, "-T", "fields", "-e", "frame.number"), "\n")
		t.Logf("%6d frames of %s", n, f.filter)
		if n < f.least {
			t.Errorf("%d frames of %s, fewer than %d", n, f.filter, f.least)
		}
	}
}

// record captures at the server what f does.
func record(t *testing.T, ctl *control.Dialer, file string, f func(context.Context)) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
	defer cancel()
	capture, hangUp := context.WithCancel(ctx)
	var pcap shared
	ended := make(chan error, 1)
	go func() { ended <- ctl.Capture(capture, "", &pcap) }()
	for len(pcap.bytes()) == 0 && ctx.Err() == nil { // the header says that it has begun
		time.Sleep(time.Millisecond)
	}
	f(ctx)
	for n := -1; n != len(pcap.bytes()); time.Sleep(200 * time.Millisecond) { // until all has come
		n = len(pcap.bytes())
	}
	hangUp()
	if err := <-ended; err != nil {
		t.Errorf("capture: %v", err)
	}
	if err := os.WriteFile(file, pcap.bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
}

// workload makes calls of every kind over RDMA, some of which fail.
func workload(ctx context.Context, t *testing.T, server string) {
	t.Helper()
	check := func(err error) {
		t.Helper()
		if err != nil {
			t.Error(err)
		}
	}
	dl := dial.Dialer{Cred: &rpc.Cred{Flavor: rpc.AuthSys, Machine: "client.example", Groups: []uint32{0, 10}}}
	c := dl.Client(client.URL{Transport: rpc.TransportRDMA, Host: server, Path: "/a"})
	_, err := c.Exports(ctx)
	check(err)
	root, err := c.Mount(ctx, "/a")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Mount(ctx, "/nowhere"); !client.IsStatus(err, nfs.ErrNoEnt) {
		t.Errorf("a mount of nothing: %v", err)
	}
	if _, err := c.Mount(ctx, "/denied"); !client.IsStatus(err, nfs.ErrAcces) {
		t.Errorf("a mount that is not allowed: %v", err)
	}
	_, err = c.GetAttr(ctx, root)
	check(err)
	_, err = c.Info(ctx, root)
	check(err)
	_, err = c.Stat(ctx, root)
	check(err)
	_, err = c.PathConf(ctx, root)
	check(err)
	_, err = c.Access(ctx, root, 0x3f)
	check(err)

	mode := uint32(0o644)
	attr := &blockstore.SetAttr{Mode: &mode}
	n, err := c.Create(ctx, root, "big", blockstore.Guarded, attr, [8]byte{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Create(ctx, root, "big", blockstore.Guarded, attr, [8]byte{}); !client.IsStatus(err, nfs.ErrExist) {
		t.Errorf("created twice: %v", err)
	}
	data := bytes.Repeat([]byte("0123456789abcdef"), 1<<16)
	w, err := c.Write(ctx, n.Handle, data, 0, blockstore.Unstable)
	if err != nil || w.N != len(data) {
		t.Errorf("wrote %d: %v", w.N, err)
	}
	_, err = c.Commit(ctx, n.Handle, 0, 0)
	check(err)
	for _, size := range []int{1, 13, 1 << 20} { // inline and by chunks, with and without padding
		_, err = c.Write(ctx, n.Handle, data[:size], 0, blockstore.FileSync)
		check(err)
		got := make([]byte, size)
		if k, _, err := c.Read(ctx, n.Handle, got, 0); err != nil || k != size || !bytes.Equal(got, data[:size]) {
			t.Errorf("read %d of %d: %v", k, size, err)
		}
	}
	_, err = c.Symlink(ctx, root, "link", strings.Repeat("target/", 20), attr)
	check(err)
	link, err := c.Lookup(ctx, root, "link")
	check(err)
	_, err = c.ReadLink(ctx, link.Handle)
	check(err)
	_, err = c.Mkdir(ctx, root, "dir", attr)
	check(err)
	_, err = c.Mknod(ctx, root, "fifo", blockstore.TypeFifo, 0, 0, attr)
	check(err)
	check(c.Link(ctx, n.Handle, root, "other"))
	check(c.Rename(ctx, root, "other", root, "another"))
	check(c.SetAttr(ctx, n.Handle, attr, nil))
	for i := range 100 { // more than fits inline
		_, err := c.Create(ctx, root, fmt.Sprintf("a-file-with-quite-a-long-name-%03d", i), blockstore.Unchecked, attr, [8]byte{})
		check(err)
	}
	entries := 0
	check(c.ReadDir(ctx, root, func(*client.Entry) error { entries++; return nil }))
	if entries != 105 {
		t.Errorf("%d entries", entries)
	}
	check(c.Rmdir(ctx, root, "dir"))
	check(c.Remove(ctx, root, "link"))
	if _, err := c.Lookup(ctx, root, "nothing"); !client.IsStatus(err, nfs.ErrNoEnt) {
		t.Errorf("a name that is not there: %v", err)
	}
	if _, err := c.GetAttr(ctx, client.Handle("of no file")); !client.IsStatus(err, nfs.ErrBadHandle) {
		t.Errorf("a handle that is none: %v", err)
	}
	for _, r := range []rpc.Request{
		{Prog: nfs3.Program, Vers: nfs3.Version, Proc: 99},
		{Prog: nfs3.Program, Vers: 2},
		{Prog: 400000, Vers: 1},
		{Prog: nfs3.Program, Vers: nfs3.Version, Proc: nfs3.ProcLookup},
	} {
		var refused *rpc.AcceptError
		if err := c.RPC().Call(ctx, &r); !errors.As(err, &refused) {
			t.Errorf("program %d version %d procedure %d: %v", r.Prog, r.Vers, r.Proc, err)
		}
	}
	if err := dl.Close(); err != nil {
		t.Error(err)
	}
	rdmaErrors(ctx, t, netip.MustParseAddrPort(server))
}

// rdmaErrors provokes ERR_CHUNK and ERR_VERS.
func rdmaErrors(ctx context.Context, t *testing.T, server netip.AddrPort) {
	t.Helper()
	private := rpcrdma.PrivateMessage{Send: 4096, Receive: 4096}.Append(nil)
	c, err := rdmaend.Dial(ctx, clientDevice(t), server, rdmaend.Config{Params: rdma.ConnParams{PrivateData: private}})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	for _, h := range []rpcrdma.Header{
		{XID: 1, Version: rpcrdma.Version, Credits: 1, Type: rpcrdma.TypeNoMsg},
		{XID: 2, Version: 2, Credits: 1, Type: rpcrdma.TypeMsg},
	} {
		b := h.Append(nil)
		mr, err := c.Register(b, rdma.LocalWrite)
		if err != nil {
			t.Fatal(err)
		}
		if err := c.Send(ctx, mr, 0, len(b)); err != nil {
			t.Fatal(err)
		}
		if _, err := c.Recv(ctx); err != nil {
			t.Fatal(err)
		}
	}
}
