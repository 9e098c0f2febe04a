package service

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/rstored/rstored/cmd/internal/state"
	"github.com/rstored/rstored/nfs/portmap"
	"github.com/rstored/rstored/rpcrdma/rpc"
	"github.com/rstored/rstored/rpcrdma/udp"
	"github.com/rstored/rstored/rpcrdma/xdr"
)

// TestCallHost: a client whose lock manager is known by UDP only is called by UDP. A client that
// does not answer costs no more than the time that there is.
func TestCallHost(t *testing.T) {
	host := netip.MustParseAddr("127.91.7.3")
	c, err := new(net.ListenConfig).ListenPacket(t.Context(), "udp4", netip.AddrPortFrom(host, portmap.Port).String())
	if err != nil {
		t.Skip(err) // not root
	}
	const prog, vers, proc = 100021, 4, 10
	at := netip.AddrPortFrom(host, portmap.Port)
	called := 0
	granted := rpc.Proc{Name: "GRANTED", Serve: func(c *rpc.Call, _ bool) rpc.Status {
		called++
		c.Res.Uint32(c.Args.Uint32() + 1)
		return rpc.Done
	}}
	srv := rpc.NewServer(rpc.ServerConfig{Programs: append(portmap.Programs(func() []portmap.Service {
		return []portmap.Service{{Program: prog, Version: vers, Transport: rpc.TransportUDP, Addr: at}}
	}), rpc.Program{Name: "nlm4", Prog: prog, Vers: vers, Procs: []rpc.Proc{proc: granted}})})
	defer srv.Close()
	l, err := udp.Config{
		Route: func(_, _, _ uint32) *rpc.Server { return srv }, Admits: func(netip.Addr) bool { return true },
	}.Serve(c.(*net.UDPConn))
	if err != nil {
		t.Fatal(err)
	}
	s := &Service{Config: Config{State: new(state.Store)}}
	call := func(limit time.Duration) (got uint32, err error) {
		ctx, cancel := context.WithTimeout(t.Context(), limit)
		defer cancel()
		err = s.callHost(ctx, host, prog, vers, proc, func(e *xdr.Encoder) { e.Uint32(41) },
			func(d *xdr.Decoder) error { got = d.Uint32(); return d.Err() })
		return got, err
	}
	if got, err := call(time.Minute); err != nil || got != 42 || called != 1 {
		t.Errorf("%d, called %d times: %v", got, called, err)
	}
	// Nothing answers any more; the socket of the port mapper is silent.
	if err := l.Shutdown(t.Context()); err != nil {
		t.Fatal(err)
	}
	silent, err := new(net.ListenConfig).ListenPacket(t.Context(), "udp4", at.String())
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	if _, err := call(50 * time.Millisecond); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("of a silent host: %v", err)
	}
}
