package daemon

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
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
	"github.com/rstored/rstored/rdma/wire"
	"github.com/rstored/rstored/rdma/wire/wiretest/tshark"
	"github.com/rstored/rstored/rpcrdma"
	"github.com/rstored/rstored/rpcrdma/rpc"
)

// TestTshark: tshark dissects what our client and server say to each other down to
// NFS, and complains of nothing that it does not complain of in the kernel's packets.
func TestTshark(t *testing.T) {
	ctx, file, again := recorded(t)
	kinds, err := tshark.Kinds(ctx, file)
	// tshark puts chunks together from the packets as they come, and is mistaken where one
	// came twice, as it does when the machine is too busy to answer in time.
	for range 5 {
		if err != nil || len(tshark.Beyond(kinds)) == 0 || again == 0 {
			break
		}
		t.Logf("%d packets were sent again, and tshark complains", again)
		ctx, file, again = recorded(t)
		kinds, err = tshark.Kinds(ctx, file)
	}
	if err != nil {
		t.Fatal(err)
	}
	for _, k := range slices.Sorted(maps.Keys(kinds)) {
		t.Logf("%6d %s", kinds[k], k)
	}
	for _, k := range tshark.Beyond(kinds) {
		t.Errorf("tshark complains of what the kernel's packets do not have: %s", k)
	}
	// A dissector that passes a message on as data has no complaint. Of messages with
	// errors it knows ERR_CHUNK; a version other than 1 it takes for data.
	for _, f := range []struct {
		filter string
		least  int
	}{
		{"infiniband", 500},
		{"infiniband.mad", 6},
		{"rpcordma", 50},
		{"rpc", 50},
		{"nfs", 40},
		{"mount", 6},
		{"rpcordma.msg_type == 4", 1},
		{"rpcordma && nfs.procedure_v3 == 6", 2},
		{"rpcordma && nfs.procedure_v3 == 7", 2},
		{"nfs.procedure_v3 == 17", 2},
		{"nfs.status == 2", 1},
		{"rpc.state_accept != 0", 3},
		{"infiniband.reth && infiniband.bth.opcode == 12", 1},
		{"infiniband.bth.opcode == 6", 1},
	} {
		n, err := tshark.Count(ctx, file, f.filter)
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("%6d frames of %s", n, f.filter)
		if n < f.least {
			t.Errorf("%d frames of %s, fewer than %d", n, f.filter, f.least)
		}
	}
	if t.Failed() {
		t.Logf("the packets are in %s", kept(t, file))
	}
}

// TestTsharkSpoilt: what tshark is asked does find a packet that is wrong, even among
// those READ replies about whose like in the kernel's captures it is wrong itself.
// Without this an option that no longer does what it did would let everything pass.
func TestTsharkSpoilt(t *testing.T) {
	ctx, file, _ := recorded(t)
	pcap, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name   string
		chunks uint32
	}{
		{"inline", 0},
		{"of a READ with a write chunk", 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			spoilt := shorten(pcap, c.chunks)
			if spoilt == nil {
				t.Fatal("no reply to shorten")
			}
			name := filepath.Join(t.TempDir(), "spoilt.pcap")
			if err := os.WriteFile(name, spoilt, 0o600); err != nil {
				t.Fatal(err)
			}
			kinds, err := tshark.Kinds(ctx, name)
			if err != nil {
				t.Fatal(err)
			}
			beyond := tshark.Beyond(kinds)
			t.Log(strings.Join(beyond, "\n"))
			if !slices.ContainsFunc(beyond, func(k string) bool { return strings.Contains(k, "reply: [Malformed Packet: ") }) {
				t.Errorf("tshark finds nothing wrong with a reply cut short; kinds %v", kinds)
			}
		})
	}
}

// recorded is what a server of ours captured of a client of ours, and the number of packets
// that either sent again.
func recorded(t *testing.T) (_ context.Context, file string, again uint64) {
	t.Helper()
	if _, err := exec.LookPath("tshark"); err != nil {
		t.Skip("tshark is not installed: no other implementation has looked at the packets (Debian: apt-get install tshark)")
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	cfg := testConfig(t, t.TempDir()+"=/a 127.0.0.0/8(no_root_squash)", t.TempDir()+"=/denied 192.0.2.0/24")
	cfg.TCPListen = nil
	d, ctl := startDaemon(t, cfg)
	defer stopDaemon(t, d)
	file = filepath.Join(t.TempDir(), "ours.pcap")
	record(t, ctl, file, func(ctx context.Context) { workload(ctx, t, cfg.RDMAListen[0]) })
	st, err := ctl.Stats(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, dev := range st.Devices {
		again += dev["RC.TxRetransmits"] + dev["RC.ReadReissues"] + dev["RC.RxDuplicate"] + dev["RC.RxStaleResponse"]
	}
	return ctx, file, again
}

// kept is a copy of a file that outlives the test.
func kept(t *testing.T, file string) string {
	t.Helper()
	b, err := os.ReadFile(file)
	if err != nil {
		return err.Error()
	}
	f, err := os.CreateTemp("", "tshark-*.pcap")
	if err != nil {
		return err.Error()
	}
	_, err = f.Write(b)
	if err := errors.Join(err, f.Close()); err != nil {
		return err.Error()
	}
	return f.Name()
}

// shorten cuts the end off the first reply that has attributes and whose list of write
// chunks begins with the word chunks, 0 when it is empty. It returns nil if there is
// none.
func shorten(pcap []byte, chunks uint32) []byte {
	const (
		sendOnly, sendOnlyInv = 0x04, 0x17 // the opcodes of a message that fits a packet
		bth, ieth             = 12, 4
		writeList             = 5 * 4 // behind the XID, version, credits, type and an empty read list
		cut                   = 20
		least                 = 100 // bytes of RPC in a reply with attributes
	)
	le, be := binary.LittleEndian, binary.BigEndian
	for at := fileHdrLen; at < len(pcap); {
		size := int(le.Uint32(pcap[at+8:]))
		end := at + recordHdrLen + size
		dgram := pcap[at+recordHdrLen+ipv4Len+udpLen : end]
		if op := dgram[0]; (op == sendOnly || op == sendOnlyInv) && len(dgram) > least {
			p := dgram[bth:]
			if op == sendOnlyInv {
				p = p[ieth:]
			}
			// The RPC message begins where the XID is again; 1 is a reply.
			i := bytes.Index(p[writeList:], p[:4]) + writeList
			if i > writeList && len(p)-i > least && be.Uint32(p[i+4:]) == 1 && be.Uint32(p[writeList:]) == chunks {
				short := append(slices.Clone(pcap[at:end-wire.ICRCLen-cut]), pcap[end-wire.ICRCLen:end]...)
				size -= cut
				le.PutUint32(short[8:], uint32(size))
				le.PutUint32(short[12:], uint32(size))
				ip := short[recordHdrLen:]
				be.PutUint16(ip[2:], uint16(size))
				be.PutUint16(ip[ipv4Len+4:], uint16(size-ipv4Len))
				be.PutUint16(ip[10:], 0)
				be.PutUint16(ip[10:], sum16(ip[:ipv4Len]))
				return slices.Concat(pcap[:at], short, pcap[end:])
			}
		}
		at = end
	}
	return nil
}

// record captures at the server what f does.
func record(t *testing.T, ctl *control.Dialer, file string, f func(context.Context)) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
	defer cancel()
	capture, hangUp := context.WithCancel(ctx)
	var pcap shared
	ended := make(chan error, 1)
	go func() { ended <- ctl.Capture(capture, control.CaptureSpec{}, &pcap) }()
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
		_, err := c.Create(ctx, root, fmt.Sprintf("a-file-with-quite-a-long-name-%03d", i), blockstore.Unchecked, attr,
			[8]byte{})
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
