package daemon

import (
	"context"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/jcmturner/gokrb5/v8/keytab"

	"github.com/rstored/rstored/cmd/internal/control"
	"github.com/rstored/rstored/nfs/krb5"
	"github.com/rstored/rstored/nfs/krb5/creds"
	"github.com/rstored/rstored/nfs/krb5/krbtest"
	"github.com/rstored/rstored/rpcrdma/gss"
	"github.com/rstored/rstored/rpcrdma/rpc"
	"github.com/rstored/rstored/rpcrdma/tcp"
)

// TestKerberosCalls40: a client of version 4.0 that has named itself by Kerberos is called by
// Kerberos: by the principal that it knows the server by, with the service of its SETCLIENTID. A
// client whose principal has no key of a service is not called, nor by another flavor.
func TestKerberosCalls40(t *testing.T) {
	const machine = "host/client.rstored.test"
	k := newKerberized(t, t.TempDir()+"=/a(sec=krb5i)")
	keys := k.kdc.Keytab("", machine)
	of, err := creds.FromKeytab(keys, machine)
	if err != nil {
		t.Fatal(err)
	}
	k.who["machine"] = of
	d, ctl := startDaemon(t, k.cfg)
	defer func() { stopDaemon(t, d) }()

	type call struct {
		flavor              rpc.AuthFlavor
		principal, acceptor string
	}
	called := make(chan call, 16)
	srv := rpc.NewServer(rpc.ServerConfig{
		Workers: 1,
		GSS: gss.NewServer(gss.ServerConfig{Acceptor: &krb5.Acceptor{
			Service: "host", Keytab: func() (*keytab.Keytab, error) { return keytab.Load(keys) },
		}}),
		Programs: []rpc.Program{{Name: "callback", Prog: 0x40000000, Vers: 1, Procs: []rpc.Proc{
			{Name: "CB_NULL", Serve: func(c *rpc.Call, _ bool) rpc.Status {
				called <- call{c.Cred.Flavor, c.Cred.Principal, c.Cred.Acceptor}
				return rpc.Done
			}},
		}}},
	})
	defer srv.Close()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	callbacks := tcp.Serve(l, srv)
	defer callbacks.Close()
	at := uaddr(netip.MustParseAddrPort(l.Addr().String()))

	// as is a connection of a user with integrity.
	as := func(user string) *peer40 {
		raw, err := net.Dial("tcp", k.cfg.TCPListen[0])
		if err != nil {
			t.Fatal(err)
		}
		conn := tcp.NewClient(raw)
		t.Cleanup(func() { _ = conn.Close() })
		initiate := func(ctx context.Context, _ uint32) (rpc.Initiation, error) {
			return k.who[user].Initiate(ctx, kerberosHost)
		}
		return &peer40{t: t, conn: rpc.NewSecured(conn, gss.Integrity, initiate)}
	}
	state := func(want string, n int) {
		t.Helper()
		for end := time.Now().Add(30 * time.Second); ; time.Sleep(10 * time.Millisecond) {
			list, err := ctl.NFS4Clients(t.Context())
			if err != nil || len(list) != n {
				t.Fatal(list, err)
			}
			if list[n-1].Callbacks == want {
				return
			}
			if time.Now().After(end) {
				t.Fatalf("%+v", list[n-1])
			}
		}
	}
	as("machine").join("machine", "tcp", at)
	state(control.CallbacksAnswered, 1)
	want := call{rpc.AuthKrb5i, "nfs/" + kerberosHost + "@" + krbtest.Realm, machine + "@" + krbtest.Realm}
	if got := <-called; got != want {
		t.Errorf("%+v instead of %+v", got, want)
	}
	as("alice").join("user", "tcp", at)
	state(control.CallbacksNone, 2)

	if n := len(called); n != 0 {
		t.Errorf("%d more calls: %+v", n, <-called)
	}
}
