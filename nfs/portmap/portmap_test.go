package portmap

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/rstored/rstored/rpcrdma/rpc"
	"github.com/rstored/rstored/rpcrdma/xdr"
)

func ask(t *testing.T, s *rpc.Server, local string, vers, proc uint32, args func(*xdr.Encoder)) (xdr.Decoder,
	rpc.AcceptStat,
) {
	t.Helper()
	var e xdr.Encoder
	rpc.EncodeCall(&e, 1, Program, vers, proc, nil)
	if args != nil {
		args(&e)
	}
	c := &rpc.Call{Peer: rpc.Peer{Local: netip.MustParseAddrPort(local), Transport: rpc.TransportTCP}}
	var out []byte
	c.Reply = func(c *rpc.Call, _ bool) { out = c.Res.AppendFlat(nil) }
	s.Dispatch(c, xdr.NewDecoder(e.B), true)
	d := xdr.NewDecoder(out)
	d.Skip(20)
	st := rpc.AcceptStat(d.Uint32())
	return d, st
}

func TestAnswers(t *testing.T) {
	services := []Service{
		{100003, 3, rpc.TransportTCP, netip.MustParseAddrPort("0.0.0.0:2049")},
		{100003, 3, rpc.TransportRDMA, netip.MustParseAddrPort("192.0.2.7:20049")},
		{100005, 3, rpc.TransportTCP, netip.MustParseAddrPort("[::]:635")},
		{100005, 3, rpc.TransportUDP, netip.MustParseAddrPort("0.0.0.0:636")},
	}
	s := rpc.NewServer(rpc.ServerConfig{Programs: Programs(func() []Service { return services }), Workers: 1})
	defer s.Close()
	const v4, v6 = "192.0.2.1:111", "[2001:db8::1]:111"

	for _, c := range []struct {
		prog, vers, proto, want uint32
	}{
		{100003, 3, 6, 2049},
		{100003, 4, 6, 2049},
		{100005, 3, 6, 635},
		{100003, 3, 17, 0},
		{100021, 4, 6, 0},
		{100005, 3, 17, 636},
		{100005, 0, 17, 636},
		{100005, 3, 33, 0},
	} {
		d, st := ask(t, s, v4, 2, ProcGetAddr, func(e *xdr.Encoder) {
			for _, w := range []uint32{c.prog, c.vers, c.proto, 0} {
				e.Uint32(w)
			}
		})
		if got := d.Uint32(); st != rpc.RPCSuccess || got != c.want || d.Remaining() != 0 {
			t.Errorf("GETPORT %+v: %d", c, got)
		}
	}
	for _, c := range []struct {
		local       string
		vers, proc  uint32
		prog, pvers uint32
		netid, want string
	}{
		{v4, 3, ProcGetAddr, 100003, 3, "tcp", "192.0.2.1.8.1"},
		{v4, 4, ProcGetAddr, 100003, 3, "", "192.0.2.1.8.1"},
		{v4, 4, ProcGetAddr, 100003, 4, "tcp", "192.0.2.1.8.1"},
		{v4, 4, ProcGetVersAddr, 100003, 4, "tcp", ""},
		{v4, 4, ProcGetAddr, 100003, 3, "rdma", "192.0.2.7.78.81"},
		{v6, 4, ProcGetAddr, 100005, 3, "tcp6", "2001:db8::1.2.123"},
		{v4, 4, ProcGetAddr, 100003, 3, "udp", ""},
		{v4, 4, ProcGetAddr, 100005, 3, "udp", "192.0.2.1.2.124"},
		{v6, 3, ProcGetAddr, 100005, 3, "udp6", "2001:db8::1.2.124"},
	} {
		d, st := ask(t, s, c.local, c.vers, c.proc, func(e *xdr.Encoder) {
			e.Uint32(c.prog)
			e.Uint32(c.pvers)
			e.String(c.netid)
			e.String("")
			e.String("")
		})
		if got := d.String(stringMax); st != rpc.RPCSuccess || got != c.want || d.Remaining() != 0 {
			t.Errorf("GETADDR %+v: %q (%d)", c, got, st)
		}
	}

	d, _ := ask(t, s, v4, 2, ProcDump, nil)
	var got []string
	for d.Bool() {
		got = append(got, fmt.Sprint(d.Uint32(), d.Uint32(), d.Uint32(), d.Uint32()))
	}
	if fmt.Sprint(got) != "[100003 3 6 2049 100005 3 6 635 100005 3 17 636]" || d.Remaining() != 0 || d.Err() != nil {
		t.Errorf("DUMP 2: %v", got)
	}
	d, _ = ask(t, s, v4, 4, ProcDump, nil)
	got = nil
	for d.Bool() {
		got = append(got, fmt.Sprint(d.Uint32(), " ", d.Uint32(), " ", d.String(stringMax), " ", d.String(stringMax), " ",
			d.String(stringMax)))
	}
	want := "[100003 3 tcp 192.0.2.1.8.1 superuser 100003 3 rdma 192.0.2.7.78.81 superuser 100005 3 tcp " +
		"192.0.2.1.2.123 superuser 100005 3 udp 192.0.2.1.2.124 superuser]"
	if fmt.Sprint(got) != want || d.Remaining() != 0 || d.Err() != nil {
		t.Errorf("DUMP 4: %v", got)
	}
	for _, v := range []uint32{2, 3, 4} {
		for _, p := range []uint32{ProcSet, ProcUnset} {
			d, st := ask(t, s, v4, v, p, func(e *xdr.Encoder) { e.B = append(e.B, make([]byte, 20)...) })
			if st != rpc.RPCSuccess || d.Bool() {
				t.Errorf("version %d let procedure %d pass", v, p)
			}
			if _, st := ask(t, s, v4, v, p, nil); st != rpc.GarbageArgs {
				t.Errorf("version %d procedure %d without arguments: %d", v, p, st)
			}
		}
		if _, st := ask(t, s, v4, v, ProcNull, nil); st != rpc.RPCSuccess {
			t.Errorf("NULL: %d", st)
		}
		if _, st := ask(t, s, v4, v, ProcCallIt, nil); st != rpc.ProcUnavail {
			t.Errorf("CALLIT: %d", st)
		}
		if _, st := ask(t, s, v4, v, ProcGetAddr, nil); st != rpc.GarbageArgs {
			t.Errorf("GETADDR without arguments: %d", st)
		}
	}
	d, _ = ask(t, s, v4, 3, ProcGetTime, nil)
	if d.Uint32() == 0 {
		t.Error("GETTIME")
	}
}
