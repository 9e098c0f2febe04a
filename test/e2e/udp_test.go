package e2e

import (
	"context"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"net"
	"net/netip"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/rstored/rstored/nfs/client"
	"github.com/rstored/rstored/nfs/nfs3"
	"github.com/rstored/rstored/nfs/portmap"
	"github.com/rstored/rstored/rpcrdma/rpc"
	"github.com/rstored/rstored/rpcrdma/udp"
)

// overUDP starts a daemon whose export any host may use from any port, and whose port mapper
// answers by TCP and UDP at port 111. It skips the test where that port cannot be bound.
func overUDP(t *testing.T) *daemon {
	t.Helper()
	at := loopback()
	l, err := new(net.ListenConfig).ListenPacket(t.Context(), "udp4", netip.AddrPortFrom(at, portmap.Port).String())
	if err != nil {
		t.Skip(err)
	}
	_ = l.Close()
	return newDaemonOn(t, func(d *daemon) {
		d.addr = at
		d.args = append(d.args, "--portmap-listen", at.String()+":111", "--udp-listen", at.String()+":111")
	})
}

// TestUDPTools: rpcinfo and showmount find what is served by UDP, and that NFS is not.
func TestUDPTools(t *testing.T) {
	for _, p := range []string{"rpcinfo", "showmount"} {
		if _, err := exec.LookPath(p); err != nil {
			t.Skip(err)
		}
	}
	d := overUDP(t)
	run := func(name string, args ...string) (string, error) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		b, err := exec.CommandContext(ctx, name, args...).CombinedOutput()
		return string(b), err
	}
	host := d.addr.String()
	for _, c := range []struct{ prog, vers string }{
		{"100000", "2"},
		{"100000", "3"},
		{"100000", "4"},
		{"100005", "3"},
		{"100021", "4"},
		{"100024", "1"},
		{"100011", "1"},
		{"100011", "2"},
	} {
		out, err := run("rpcinfo", "-T", "udp", host, c.prog, c.vers)
		if err != nil || !strings.Contains(out, "ready and waiting") {
			t.Errorf("program %s version %s by UDP: %v, %s", c.prog, c.vers, err, out)
		}
	}
	if out, err := run("rpcinfo", "-u", host, "100005"); err != nil || !strings.Contains(out, "version 3 ready") {
		t.Errorf("rpcinfo -u of MOUNT: %v, %s", err, out)
	}
	if out, err := run("rpcinfo", "-T", "udp", host, "100003", "3"); err == nil {
		t.Errorf("NFS by UDP: %s", out)
	}
	out, err := run("rpcinfo", "-p", host)
	for _, want := range []string{"100005    3   udp    111", "100021    4   udp    111", "100003    3   tcp   2049"} {
		if err != nil || !strings.Contains(out, want) {
			t.Errorf("rpcinfo -p has no %q: %v\n%s", want, err, out)
		}
	}
	if out, err := run("showmount", "-e", host); err != nil || !strings.Contains(out, d.export) {
		t.Errorf("showmount: %v, %s", err, out)
	}
	if n, _ := counter(d.stats(), "udp_malformed"); n != 0 {
		t.Errorf("the tools sent %v datagrams that are no call", n)
	}
}

// foreign are calls as the clients of macOS and Windows send them, after the XID: docs/macos.md and
// docs/windows.md say where the facts are from.
var foreign = []struct {
	name, call string
	want       string // the results, or their beginning
}{
	{
		// AUTH_SYS with stamp 0 and an empty name of the machine, user 501, group 20, groups 20 and 12.
		"macOS: GETPORT of MOUNT version 3 by TCP",
		"00000000 00000002 000186a0 00000002 00000003 00000001 0000001c 00000000 00000000 000001f5 00000014 00000002 " +
			"00000014 0000000c 00000000 00000000 000186a5 00000003 00000006 00000000",
		"00000801",
	},
	{
		"macOS: the same by UDP, with the option mntudp",
		"00000000 00000002 000186a0 00000002 00000003 00000001 0000001c 00000000 00000000 000001f5 00000014 00000002 " +
			"00000014 0000000c 00000000 00000000 000186a5 00000003 00000011 00000000",
		"0000006f",
	},
	{
		"macOS: GETPORT of the lock manager by UDP",
		"00000000 00000002 000186a0 00000002 00000003 00000000 00000000 00000000 00000000 000186b5 00000004 " +
			"00000011 00000000",
		"0000006f",
	},
	{
		"Windows: GETPORT of MOUNT version 3 by UDP, AUTH_NONE",
		"00000000 00000002 000186a0 00000002 00000003 00000000 00000000 00000000 00000000 000186a5 00000003 " +
			"00000011 00000000",
		"0000006f",
	},
	{
		"Windows: GETPORT of NFS version 3 by TCP",
		"00000000 00000002 000186a0 00000002 00000003 00000000 00000000 00000000 00000000 000186a3 00000003 " +
			"00000006 00000000",
		"00000801",
	},
	{
		"Windows: GETPORT of NFS version 3 by UDP, which is not served",
		"00000000 00000002 000186a0 00000002 00000003 00000000 00000000 00000000 00000000 000186a3 00000003 " +
			"00000011 00000000",
		"00000000",
	},
	{
		"Windows: GETPORT of the lock manager without a version",
		"00000000 00000002 000186a0 00000002 00000003 00000000 00000000 00000000 00000000 000186b5 00000000 " +
			"00000011 00000000",
		"0000006f",
	},
	{
		"Windows: NULL of MOUNT",
		"00000000 00000002 000186a5 00000003 00000000 00000000 00000000 00000000 00000000",
		"",
	},
	{
		"Windows: NULL of the lock manager",
		"00000000 00000002 000186b5 00000004 00000000 00000000 00000000 00000000 00000000",
		"",
	},
	{
		// "/" is the export: the first one is also there. AUTH_SYS of machine "win", user and group -2.
		"Windows: MNT, anonymous",
		"00000000 00000002 000186a5 00000003 00000001 00000001 00000018 00000000 00000003 77696e00 fffffffe fffffffe " +
			"00000000 00000000 00000000 00000001 2f000000",
		"00000000",
	},
	{
		"Windows: MNT, AUTH_NONE",
		"00000000 00000002 000186a5 00000003 00000001 00000000 00000000 00000000 00000000 00000001 2f000000",
		"00000000",
	},
	{
		"MNT of what is not exported",
		"00000000 00000002 000186a5 00000003 00000001 00000000 00000000 00000000 00000000 00000005 2f6e6f6e " +
			"65000000",
		"00000002",
	},
}

// datagram sends a call over UDP and returns the results.
func datagram(ctx context.Context, to netip.AddrPort, xid uint32, body string) (rpc.AcceptStat, []byte, error) {
	b, err := hex.DecodeString(strings.ReplaceAll(body, " ", ""))
	if err != nil {
		return 0, nil, err
	}
	c, err := new(net.Dialer).DialContext(ctx, "udp4", to.String())
	if err != nil {
		return 0, nil, err
	}
	defer c.Close()
	if _, err := c.Write(append(binary.BigEndian.AppendUint32(nil, xid), b...)); err != nil {
		return 0, nil, err
	}
	in := make([]byte, 1<<16)
	_ = c.SetReadDeadline(time.Now().Add(30 * time.Second))
	n, err := c.Read(in)
	if err == nil && (n < 24 || binary.BigEndian.Uint32(in) != xid) {
		err = fmt.Errorf("the reply is %x", in[:n])
	}
	return rpc.AcceptStat(binary.BigEndian.Uint32(in[20:])), in[24:max(n, 24)], err
}

// TestForeignCalls: the calls of macOS and Windows have the answers that they need.
func TestForeignCalls(t *testing.T) {
	d := overUDP(t)
	to := netip.AddrPortFrom(d.addr, portmap.Port)
	for i, c := range foreign {
		accept, results, err := datagram(t.Context(), to, 0xcafe0000+uint32(i), c.call)
		got := hex.EncodeToString(results)
		if err != nil || accept != rpc.RPCSuccess || !strings.HasPrefix(got, c.want) || c.want == "" && got != "" {
			t.Errorf("%s: %v, accept status %d, results %s, want %s", c.name, err, accept, got, c.want)
		}
	}
	if n, _ := counter(d.stats(), "udp_withheld"); n != 0 {
		t.Errorf("%v replies were withheld", n)
	}
}

// TestUDPDenied: who may use no export gets no answer by UDP, not even of the port mapper.
func TestUDPDenied(t *testing.T) {
	d := overUDP(t)
	pm, err := udp.Dial(netip.AddrPortFrom(d.addr, portmap.Port))
	if err != nil {
		t.Fatal(err)
	}
	defer pm.Close()
	ask := func(limit time.Duration) error {
		ctx, cancel := context.WithTimeout(t.Context(), limit)
		defer cancel()
		_, err := client.Port(ctx, pm, nfs3.MountProgram, nfs3.MountVersion, portmap.ProtoUDP)
		return err
	}
	if err := ask(30 * time.Second); err != nil {
		t.Fatal(err)
	}
	d.ctl("export", "set", d.export, "--client", "192.0.2.0/24(rw)")
	if err := ask(200 * time.Millisecond); err == nil {
		t.Error("a host without an export is answered")
	}
	if n, _ := counter(d.stats(), "udp_denied"); n == 0 {
		t.Error("it is not counted")
	}
	d.ctl("export", "set", d.export, "--client", "127.0.0.0/8(rw)")
	if err := ask(30 * time.Second); err != nil {
		t.Error(err)
	}
	// The port goes, and comes again, at run time.
	d.ctl("port", "remove", "udp", d.addr.String())
	if err := ask(200 * time.Millisecond); err == nil {
		t.Error("the port was removed, and answers")
	}
	d.ctl("port", "add", "udp", d.addr.String())
	if err := ask(30 * time.Second); err != nil {
		t.Error(err)
	}
}

// TestUDPUpgrade: an upgrade loses no datagram: each is sent once.
func TestUDPUpgrade(t *testing.T) {
	d := overUDP(t)
	t.Cleanup(func() {
		if _, pid := d.serving(); pid != d.cmd.Process.Pid {
			d.successor = pid
		}
	})
	to := netip.AddrPortFrom(d.addr, portmap.Port)
	calls, stop, done := 0, make(chan struct{}), make(chan error)
	go func() {
		var err error
		for err == nil {
			select {
			case <-stop:
				done <- nil
				return
			default:
				calls++
				_, _, err = datagram(t.Context(), to, uint32(calls), foreign[0].call)
			}
		}
		done <- err
	}()
	_, before := d.serving()
	d.takeOver("upgrade")
	if _, now := d.serving(); now == before {
		t.Error("the old process serves")
	}
	accept, _, err := datagram(t.Context(), to, 1<<20, foreign[0].call)
	close(stop)
	if e := <-done; e != nil || err != nil || accept != rpc.RPCSuccess || calls < 2 {
		t.Errorf("%d calls, accept status %d: %v, %v", calls, accept, e, err)
	}
}
