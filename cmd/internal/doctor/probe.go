package doctor

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/rstored/rstored/nfs"
	"github.com/rstored/rstored/nfs/client"
	"github.com/rstored/rstored/nfs/dial"
	"github.com/rstored/rstored/nfs/nfs3"
	"github.com/rstored/rstored/rdma"
	"github.com/rstored/rstored/rdma/cm"
	"github.com/rstored/rstored/rdma/provider"
	"github.com/rstored/rstored/rdma/roce"
	"github.com/rstored/rstored/rdma/verbs"
	"github.com/rstored/rstored/rdma/wire"
	"github.com/rstored/rstored/rpcrdma"
	"github.com/rstored/rstored/rpcrdma/rpc"
	"github.com/rstored/rstored/rpcrdma/xdr"
)

const (
	// connectTime bounds an attempt to connect, callTime one call.
	connectTime = 4 * time.Second
	// btcrc is the size of BTH and ICRC: a SEND packet has them around its payload, a packet of
	// ping does not.
	btcrc    = 16
	callTime = 3 * time.Second
	// callHead is the size of the headers of RPC-over-RDMA (7 words) and RPC (10 words, with
	// AUTH_NONE) before the arguments of a call.
	callHead = 68
	// recordTime bounds the wait for the failure record of a connection, which the device writes
	// after the end of the connection.
	recordTime = 200 * time.Millisecond
)

// probeRDMA connects as a client and makes the calls of a mount, as sec protects them.
func (r *Report) probeRDMA(
	ctx context.Context, h *Host, at netip.AddrPort, local netip.Addr, name, path string, sec *dial.Secure,
) {
	ends := make(chan end, 1) // of the one connection that is made
	reportFailure := func(e end) {
		select {
		case ends <- e:
		default:
		}
	}
	var dev rdma.Device
	host := provider.System()
	choice, err := host.ChooseFor(provider.Auto, at.Addr(), local)
	if err == nil && choice.Kind == provider.Verbs {
		dev, err = host.Open(provider.Config{Choice: choice, Verbs: verbs.Config{OnFailure: func(x verbs.Record) {
			reportFailure(end{x.Outcome, cm.Reason(x.Reason), !x.Software || x.Transport != verbs.RoCEv2})
		}}})
		r.ok("provider", "RDMA is tried by the kernel's %s: %s", choice.Device, choice.Why)
	}
	for _, from := range sources(h, local) {
		if dev != nil {
			break
		}
		dev, err = openSoft(roce.Config{
			Addr: from, ConnectLimit: rdma.Time(connectTime),
			OnFailure: func(x roce.Record) { reportFailure(end{x.Outcome, x.Reason, false}) },
		})
		if !errors.Is(err, syscall.EADDRINUSE) {
			break
		}
	}
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		r.add(Warn, "connect", "mount, then see dmesg here and 'rstorectl connections --failed' on the server; "+
			"to try it from here, install rstored-rdma, whose rstorectl uses the kernel's RDMA devices, "+
			"or use a host or network namespace without rdma_rxe",
			"RDMA cannot be tried from %v: UDP port %d is taken, on the other addresses of its interface too; "+
				"going on with TCP", local, wire.Port)
		return
	case err != nil:
		r.add(Fail, "connect", "", "RDMA cannot be tried: %v", err)
		return
	}
	defer func() { _ = dev.Close() }()
	begun := time.Now()
	connecting, cancel := context.WithTimeout(ctx, connectTime+time.Second)
	c, err := rpcrdma.Dial(connecting, dev, at, rpcrdma.ClientConfig{})
	cancel()
	if err != nil {
		var e end
		select {
		case e = <-ends:
		case <-time.After(recordTime):
		}
		r.add(Fail, "connect", connectHint(e, dev, at), "RDMA connect from %v to %v: %v", dev.Addr(), at, plain(err))
		return
	}
	defer func() { _ = c.Close() }()
	if soft, ok := dev.(*roce.Device); ok {
		r.comparePathMTU(c.Info().PathMTU, soft.MTU(), dev.Addr(), at)
	}
	r.ok("connect", "RDMA connect from %v to %v in %v: path MTU %d, messages up to %d bytes out and %d in",
		dev.Addr(), at, time.Since(begun).Round(100*time.Microsecond), c.Info().PathMTU,
		c.Info().InlineOut, c.Info().InlineIn)
	other := fmt.Sprintf("something other than NFS may serve port %d: 'rstorectl port list' on the server", at.Port())
	if !r.null(ctx, c, "RDMA", 0, other) {
		return
	}
	if n := min(c.Info().InlineOut, int(c.Info().PathMTU)) - callHead; n > 0 {
		do := fmt.Sprintf("the network between carries less than the interfaces: 'ping -M do -s %d %v' must pass; else "+
			"lower the MTU of the interface on both sides", n+callHead+btcrc, at.Addr())
		if !r.null(ctx, c, "RDMA", n, do) {
			return
		}
	}
	nc := client.New(client.Config{
		Peer: at.String(), Cred: dial.Self(), GiveUp: callTime,
		Dial: func(context.Context) (rpc.Client, error) { return sec.Protect(c, name), nil },
	})
	r.mount(ctx, nc, "RDMA", path, dev.Addr(), Fail)
}

// openSoft opens a device in user space.
func openSoft(c roce.Config) (rdma.Device, error) {
	d, err := roce.Open(c)
	if err != nil {
		return nil, err // an rdma.Device with a nil *roce.Device in it would not be nil
	}
	return d, nil
}

// end says why a connection could not be established.
type end struct {
	outcome rdma.Outcome
	reason  cm.Reason
	other   bool // the packets are no UDP packets that a firewall of a host sees
}

// connectHint says what to do if a connection could not be established.
func connectHint(e end, dev rdma.Device, at netip.AddrPort) string {
	switch e.outcome {
	case rdma.Rejected:
		switch e.reason {
		case cm.InvalidServiceID:
			return fmt.Sprintf("on the server: 'rstorectl port list' shows what is served, 'rstorectl port add rdma %v' "+
				"adds it; or give the right port in the URL and as port= when mounting", at)
		case cm.InvalidMTU:
			soft, ok := dev.(*roce.Device)
			if !ok {
				break
			}
			return smallerMTUHint(soft.MTU())
		case cm.InvalidGID:
			return "there is address translation (NAT) between here and the server, which RoCE does not pass; " +
				"use a network without, such as the host's for a container"
		case cm.ConsumerDefined, cm.NoResources:
			return "on the server: 'rstorectl connections --failed' says why it was refused"
		}
		return "on the server: 'rstorectl connections --failed'"
	case rdma.Unreachable:
		if e.other {
			return "see that the device there is up, and that rstored serves RDMA by a device of the same kind: " +
				"'rstorectl doctor' and 'rstorectl port list' on the server"
		}
		return fmt.Sprintf("let UDP port %d in and out on both hosts and between ('nft list ruleset', cloud security "+
			"groups), and see that rstored runs there: 'rstorectl doctor' on the server", wire.Port)
	}
	return "rstorectl doctor, on the server"
}

func smallerMTUHint(own rdma.MTU) string {
	return fmt.Sprintf(
		"the server's interface has a smaller MTU: 'ip link set dev IFACE mtu %d' there, or the server's MTU here",
		int(own)+headers)
}

// comparePathMTU warns when the path MTU of a connection is smaller than that of our interface. A
// device in user space repeats its request with a smaller path MTU when the server refuses the
// first. The kernel's client gives up.
func (r *Report) comparePathMTU(got, own rdma.MTU, local netip.Addr, at netip.AddrPort) {
	if got < own && !local.IsLoopback() {
		r.add(Warn, "path-mtu", smallerMTUHint(own),
			"%v refuses path MTU %d, which the interface of %v carries, and accepts %d: "+
				"the kernel's client does not try a smaller one and cannot mount", at, own, local, got)
	}
}

// plain returns an error without the words "connection to", which the finding has already.
func plain(err error) error {
	var gone *rpc.ConnError
	if errors.As(err, &gone) {
		return gone.Err
	}
	return err
}

// null makes a NULL call, with padding bytes of arguments, so that the call can fill a packet. A
// server may refuse the padding, but must reply.
func (r *Report) null(ctx context.Context, c rpc.Client, over string, padding int, do string) bool {
	ctx, cancel := context.WithTimeout(ctx, callTime)
	defer cancel()
	q := rpc.Request{Prog: nfs3.Program, Vers: nfs3.Version, Proc: nfs3.ProcNull}
	check, what := "null", "NULL call over "+over
	if padding > 0 {
		check, what = "full-packet", fmt.Sprintf("a packet with %d bytes of payload, from here to the server",
			padding&^3+callHead)
		q.Args = func(e *xdr.Encoder) { e.B = append(e.B, make([]byte, padding&^3)...) }
	}
	begun := time.Now()
	err := c.Call(ctx, &q)
	var answered *rpc.AcceptError
	if err != nil && (padding == 0 || !errors.As(err, &answered)) {
		if errors.Is(err, context.DeadlineExceeded) {
			err = fmt.Errorf("no answer in %v", callTime)
		}
		r.add(Fail, check, do, "%s: %v", what, plain(err))
		return false
	}
	r.ok(check, "%s: answered in %v", what, time.Since(begun).Round(10*time.Microsecond))
	return true
}

// mount calls MOUNT for the export, as a mount does.
func (r *Report) mount(ctx context.Context, c *client.Client, over, path string, from netip.Addr, level Level) {
	ctx, cancel := context.WithTimeout(ctx, 2*callTime)
	defer cancel()
	root, err := c.Mount(ctx, path)
	if err != nil {
		r.mountFailed(ctx, c, over, path, from, level, err)
		return
	}
	r.ok("mount", "MOUNT of %s over %s from %v", path, over, from)
	i, err := c.Info(ctx, root)
	if err != nil {
		do := "rstorectl log-level debug, on the server, and look at its log"
		var denied *rpc.DeniedError
		if errors.As(err, &denied) && denied.Auth == rpc.AuthTooWeak {
			do = "the export wants Kerberos: name its flavor with --sec, here and as sec= when mounting"
		}
		r.add(level, "fsinfo", do, "FSINFO of %s over %s: %v", path, over, err)
		return
	}
	r.ok("fsinfo", "FSINFO of %s over %s: reads up to %d bytes, writes up to %d", path, over, i.ReadMax, i.WriteMax)
}

func (r *Report) mountFailed(
	ctx context.Context, c *client.Client, over, path string, from netip.Addr, level Level, err error,
) {
	var elsewhere *rpc.AcceptError
	var s nfs.Status
	do := "rstorectl doctor, on the server"
	switch {
	case errors.As(err, &elsewhere):
		r.add(Warn, "mount", "mount with mountproto=tcp", "MOUNT is not served over %s: %v", over, err)
		return
	case !errors.As(err, &s):
	case s == nfs.ErrAcces || s == nfs.ErrPerm:
		do = fmt.Sprintf("on the server: 'rstorectl doctor' names the rule that has denied %v (the Linux server: "+
			"'exportfs -v')", from)
		if over == "TCP" && os.Geteuid() != 0 {
			do = "run it as root, as a mount does: a rule with the option secure, the default of the Linux server, wants a " +
				"port below 1024; else " + do
		}
	case s == nfs.ErrNoEnt || s == nfs.ErrNotDir:
		do = "rstorectl export list, on the server"
		if list, err := c.Exports(ctx); err == nil && len(list) > 0 {
			do = "the server exports " + strings.Join(list, " ")
		}
	}
	r.add(level, "mount", do, "MOUNT of %s over %s from %v: %v", path, over, from, err)
}

// probeTCP is probeRDMA over TCP. level is that of failures: a server may be without TCP on
// purpose.
func (r *Report) probeTCP(ctx context.Context, host, path string, level Level, sec *dial.Secure) {
	connecting, cancel := context.WithTimeout(ctx, connectTime)
	conn, err := new(net.Dialer).DialContext(connecting, "tcp", host)
	cancel()
	if err != nil {
		do := "rstorectl port list, on the server"
		if !errors.Is(err, syscall.ECONNREFUSED) {
			do = "let TCP port 2049 through, or see that the server runs"
		}
		r.add(level, "tcp", do, "TCP connect to %s: %v", host, err)
		return
	}
	from := netip.Addr{}
	if a, ok := conn.LocalAddr().(*net.TCPAddr); ok {
		from = a.AddrPort().Addr().Unmap()
	}
	_ = conn.Close()
	r.ok("tcp", "TCP connect to %s from %v", host, from)
	plain, secure := &dial.Dialer{GiveUp: callTime}, &dial.Dialer{GiveUp: callTime, Secure: sec}
	defer func() { _, _ = plain.Close(), secure.Close() }()
	u := client.URL{Transport: rpc.TransportTCP, Host: host, Path: path}
	const other = "something other than NFS version 3 may serve that port: 'rstorectl port list' on the server"
	if r.null(ctx, plain.Client(u).RPC(), "TCP", 0, other) {
		r.mount(ctx, secure.Client(u), "TCP", path, from, level)
		r.portmapper(ctx, host)
	}
}

// portmapper tries the port mapper of a server that speaks version 3.
func (r *Report) portmapper(ctx context.Context, host string) {
	ctx, cancel := context.WithTimeout(ctx, callTime)
	defer cancel()
	server, port, err := net.SplitHostPort(host)
	if err != nil {
		return
	}
	at := net.JoinHostPort(server, strconv.Itoa(portmapPort))
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", at)
	if err != nil {
		r.add(OK, "portmap", "mount version 3 with "+withoutPortmap(port), "no port mapper answers at %s", at)
		return
	}
	_ = conn.Close()
	r.ok("portmap", "a port mapper answers at %s", at)
}
