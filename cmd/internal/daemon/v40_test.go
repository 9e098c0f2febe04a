package daemon

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/rstored/rstored/cmd/internal/control"
	"github.com/rstored/rstored/nfs"
	"github.com/rstored/rstored/nfs/nfs4"
	"github.com/rstored/rstored/rpcrdma/rpc"
	"github.com/rstored/rstored/rpcrdma/tcp"
	"github.com/rstored/rstored/rpcrdma/xdr"
)

// peer40 is a client of version 4.0 on a connection, with the program that it is called by.
type peer40 struct {
	t      *testing.T
	conn   rpc.Client
	called chan uint32 // procedures
}

// uaddr is a universal address.
func uaddr(a netip.AddrPort) string {
	return fmt.Sprintf("%v.%d.%d", a.Addr(), a.Port()>>8, a.Port()&255)
}

// compound sends operations of version 4.0 and returns their results, from where the first
// begins.
func (p *peer40) compound(n uint32, ops func(e *xdr.Encoder)) (st nfs.Status, res xdr.Decoder) {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(p.t.Context(), 20*time.Second)
	defer cancel()
	err := p.conn.Call(ctx, &rpc.Request{
		Prog: nfs4.Program, Vers: nfs4.Version, Proc: nfs4.ProcCompound,
		Cred: &rpc.Cred{Flavor: rpc.AuthSys, Machine: "client"},
		Args: func(e *xdr.Encoder) {
			e.String("")
			e.Uint32(0)
			e.Uint32(n)
			ops(e)
		},
		Res: func(d *xdr.Decoder) error {
			st = nfs.Status(d.Uint32())
			d.String(10)
			d.Uint32()
			res = xdr.NewDecoder(slices.Clone(d.Fixed(d.Remaining())))
			return d.Err()
		},
	})
	if err != nil {
		p.t.Fatal(err)
	}
	return st, res
}

// join is SETCLIENTID and its confirmation, with this address for callbacks.
func (p *peer40) join(owner, netid, addr string) uint64 {
	p.t.Helper()
	st, d := p.compound(1, func(e *xdr.Encoder) {
		e.Uint32(nfs4.OpSetClientID)
		e.Fixed(make([]byte, 8))
		e.String(owner)
		e.Uint32(0x40000000)
		e.String(netid)
		e.String(addr)
		e.Uint32(5)
	})
	if st != nfs.OK {
		p.t.Fatal(st)
	}
	d.Skip(8)
	id := d.Uint64()
	confirm := slices.Clone(d.Fixed(8))
	if st, _ = p.compound(1, func(e *xdr.Encoder) {
		e.Uint32(nfs4.OpSetClientIDConfirm)
		e.Uint64(id)
		e.Fixed(confirm)
	}); st != nfs.OK {
		p.t.Fatal(st)
	}
	return id
}

// TestCallsClients40: a client of version 4.0 is called at its own address, on a
// connection that the daemon makes, and nobody is anywhere else.
func TestCallsClients40(t *testing.T) {
	d, ctl := startDaemon(t, testConfig(t, t.TempDir()+"=/a"))
	defer func() { stopDaemon(t, d) }()
	ports := d.Ports()
	i := slices.IndexFunc(ports, func(p control.Port) bool { return p.Transport == "tcp" })
	raw, err := net.Dial("tcp", ports[i].Addresses[0])
	if err != nil {
		t.Fatal(err)
	}
	conn := tcp.NewClient(raw)
	defer conn.Close()
	p := &peer40{t: t, conn: conn, called: make(chan uint32, 16)}
	from := netip.MustParseAddrPort(raw.LocalAddr().String()).Addr()
	srv := rpc.NewServer(rpc.ServerConfig{
		Workers: 1,
		Programs: []rpc.Program{{Name: "callback", Prog: 0x40000000, Vers: 1, Procs: []rpc.Proc{
			{Name: "CB_NULL", Serve: func(*rpc.Call, bool) rpc.Status {
				p.called <- 0
				return rpc.Done
			}},
		}}},
	})
	defer srv.Close()
	listen := func(at netip.Addr) (netip.AddrPort, func()) {
		l, err := net.Listen("tcp", netip.AddrPortFrom(at, 0).String())
		if err != nil {
			t.Fatal(err)
		}
		s := tcp.Serve(l, srv)
		return netip.MustParseAddrPort(l.Addr().String()), func() { _ = s.Close() }
	}
	own, end := listen(from)
	defer end()
	other, end := listen(netip.MustParseAddr("127.0.0.9"))
	defer end()

	p.join("scan", "tcp", uaddr(other))
	p.join("own", "tcp", uaddr(own))
	select {
	case <-p.called:
	case <-time.After(20 * time.Second):
		t.Fatal("not called")
	}
	deadline := time.Now().Add(20 * time.Second)
	for {
		list, err := ctl.NFS4Clients(t.Context())
		if err != nil || len(list) != 2 {
			t.Fatal(list, err)
		}
		if list[0].Callbacks != control.CallbacksNone || list[0].Version != "4.0" || list[0].Sessions != 0 ||
			!list[0].Confirmed {
			t.Fatalf("%+v", list[0])
		}
		if list[1].Callbacks == control.CallbacksAnswered {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("%+v", list[1])
		}
	}
	if n := len(p.called); n != 0 || d.CallbackDialer.Conns() != 1 {
		t.Errorf("%d more calls, %d connections", n, d.CallbackDialer.Conns())
	}
}
