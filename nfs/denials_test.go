package nfs

import (
	"bytes"
	"fmt"
	"log/slog"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/rstored/rstored/rpcrdma/rpc"
)

// TestWhy: a denial names the option of the rule, and what Admits, Protects and the flavors accept
// has no reason.
func TestWhy(t *testing.T) {
	net := netip.MustParsePrefix("10.0.0.0/8")
	x := func(r ClientRule, pkeys ...uint16) *Export {
		r.CIDR = net
		return &Export{Pseudo: "/data", Clients: []ClientRule{r}, PKeys: pkeys}
	}
	peer := func(a string, tr rpc.Transport) *rpc.Peer {
		return &rpc.Peer{Addr: netip.MustParseAddrPort(a), Transport: tr}
	}
	high, low := peer("10.1.1.1:40000", rpc.TransportTCP), peer("10.1.1.1:700", rpc.TransportTCP)
	rdma := peer("10.1.1.1:40000", rpc.TransportRDMA)
	inPartition := peer("10.1.1.1:40000", rpc.TransportRDMA)
	inPartition.PKey = 0x8005
	for _, tc := range []struct {
		x    *Export
		p    *rpc.Peer
		want string
	}{
		{x(ClientRule{}), high, ""},
		{x(ClientRule{Secure: true}), low, ""},
		{x(ClientRule{Secure: true}), rdma, ""},
		{x(ClientRule{Secure: true}), high, "secure, of the rule for 10.0.0.0/8: "},
		{x(ClientRule{}), peer("192.0.2.1:700", rpc.TransportTCP), "no rule is for this client"},
		{x(ClientRule{Transports: ByRDMA}), low, "transport, of the rule for 10.0.0.0/8: it is not for tcp"},
		{x(ClientRule{Securities: ByTLS}), low, "xprtsec, of the rule for 10.0.0.0/8: "},
		{x(ClientRule{Flavors: FlavorNone}), low, "sec, of the rule for 10.0.0.0/8: "},
		{x(ClientRule{}, 0x8005), inPartition, ""},
		{x(ClientRule{}, 0x8006), inPartition, "pkey: the connection is in partition 0x8005"},
		{x(ClientRule{}, 0x8006), low, "pkey: the export is for partitions of RDMA"},
	} {
		got := tc.x.Why(tc.p, rpc.AuthSys)
		if !strings.HasPrefix(got, tc.want) || (got == "") != (tc.want == "") {
			t.Errorf("%v: %q, want %q", tc.p.Addr, got, tc.want)
		}
		r, st := tc.x.Admits(tc.p)
		if admitted := st == OK && r.Protects(tc.p) && r.Flavors.Has(rpc.AuthSys); admitted != (got == "") {
			t.Errorf("%v is admitted: %v, but the reason is %q", tc.p.Addr, admitted, got)
		}
	}
}

// TestDenials: equal denials are one entry and one line a minute; clients without end fill neither
// the memory nor the log.
func TestDenials(t *testing.T) {
	var out bytes.Buffer
	log := slog.New(slog.NewTextHandler(&out, nil))
	var d Denials
	x := &Export{Pseudo: "/data", Clients: []ClientRule{{CIDR: netip.MustParsePrefix("10.0.0.0/8")}}}
	now := time.Unix(1e9, 0)
	add := func(a string) {
		d.Add(x, &rpc.Peer{Addr: netip.MustParseAddrPort(a), Transport: rpc.TransportTCP}, rpc.AuthSys, now, log)
	}
	add("10.0.0.1:1")
	if len(d.List()) != 0 {
		t.Error("a client that is admitted was denied")
	}
	for i := range 10 {
		add(fmt.Sprintf("192.0.2.1:%d", 1000+i))
	}
	if l := d.List(); len(l) != 1 || l[0].Count != 10 || strings.Count(out.String(), "\n") != 1 ||
		!strings.Contains(out.String(), "no rule is for this client") {
		t.Errorf("%+v\n%s", l, &out)
	}
	for i := range 1000 {
		add(fmt.Sprintf("192.0.%d.%d:9", 100+i/250, i%250))
	}
	if l := d.List(); len(l) != denialsMax || l[0].Client.String() != "192.0.103.249" ||
		strings.Count(out.String(), "\n") != denialLogBurst {
		t.Errorf("%d entries, %d lines", len(l), strings.Count(out.String(), "\n"))
	}
	now = now.Add(denialLogEvery)
	add("192.0.2.1:5")
	if n := strings.Count(out.String(), "\n"); n != denialLogBurst+1 {
		t.Errorf("%d lines: the next minute has none of its own", n)
	}
}
