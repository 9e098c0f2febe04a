package daemon

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rstored/rstored/nfs/dial"
	"github.com/rstored/rstored/nfs/krb5/krbtest"
	"github.com/rstored/rstored/rpcrdma/gss"
	"github.com/rstored/rstored/rpcrdma/rpc"
	"github.com/rstored/rstored/rpcrdma/tcp"
	"github.com/rstored/rstored/rpcrdma/xdr"
)

// TestKerberosNames: a keytab may have several principals, for each name of the server. A client
// that names the server otherwise is refused. Each refused context is an event of the audit log,
// with the principal if the ticket decrypts, and counts.
func TestKerberosNames(t *testing.T) {
	dir := t.TempDir()
	k := newKerberized(t, dir+"=/e(rw,sec=krb5i,insecure)")
	names := []string{"a.rstored.test", "b.rstored.test", "alias"}
	k.cfg.Kerberos.Keytab = k.kdc.Keytab("", "nfs/"+names[0], "nfs/"+names[1], "nfs/"+names[2])
	k.cfg.OpsListen = []string{testAddr() + ":9049"}
	k.cfg.Audit = "file " + filepath.Join(t.TempDir(), "audit.log")
	const games = 5
	file := filepath.Join(dir, "f")
	err := errors.Join(os.WriteFile(file, k.data, 0o600), os.Chown(file, games, games), os.Chmod(dir, 0o755))
	if err != nil {
		t.Fatal(err)
	}
	d, _ := startDaemon(t, k.cfg)
	running := true
	t.Cleanup(func() {
		if running {
			stopDaemon(t, d)
		}
	})
	as := func(host string) *dial.Dialer {
		c := k.dialer("alice", "krb5i", "4.2")
		c.Secure.Initiate = func(ctx context.Context, _ string, _ uint32) (rpc.Initiation, error) {
			return k.who["alice"].Initiate(ctx, host)
		}
		return c
	}
	for _, name := range names {
		if err := k.read(as(name), k.url("tcp")+"/e/f", k.data); err != nil {
			t.Errorf("nfs/%s: %v", name, err)
		}
	}
	const errorsTotal = "rstored_errors_total" // without errors there is no such line
	refused := func() float64 { return value(t, scrape(t, d), errorsTotal, "kind", "gss_refused") }
	if all := scrape(t, d); all[errorsTotal] != nil && value(t, all, errorsTotal, "kind", "gss_refused") != 0 {
		t.Fatal("contexts are refused that should not be")
	}
	// The KDC knows kerberosHost, and the keytab of this server does not have it.
	err = k.read(as(kerberosHost), k.url("tcp")+"/e/f", k.data)
	const lacks = "the ticket is for another service, or its keytab lacks the principal"
	if !errors.Is(err, fs.ErrPermission) || !strings.Contains(err.Error(), lacks) {
		t.Errorf("nfs/%s: %v", kerberosHost, err)
	}
	if n := refused(); n != 1 {
		t.Errorf("%v contexts are refused, instead of one", n)
	}

	half, err := k.who["alice"].Initiate(t.Context(), names[0])
	if err != nil {
		t.Fatal(err)
	}
	garbage := half
	garbage.Token = []byte("no token")
	const times = 20 // the log has one line of them, the audit log all
	for i := range times + 2 {
		token := half
		if i == times+1 {
			token = garbage
		}
		raw, err := net.Dial("tcp", k.cfg.TCPListen[0])
		if err != nil {
			t.Fatal(err)
		}
		conn := rpc.NewSecured(tcp.NewClient(raw), gss.Integrity, func(context.Context, uint32) (rpc.Initiation, error) {
			return token, nil
		})
		err = conn.Call(t.Context(), &rpc.Request{Prog: 100003, Vers: 4, Args: func(*xdr.Encoder) {}})
		if ok := i == 0; ok != (err == nil) || !ok && !errors.Is(err, fs.ErrPermission) {
			t.Errorf("token %d: %v", i, err)
		}
		_ = conn.Close()
	}
	if n := refused(); n != times+2 {
		t.Errorf("%v contexts are refused, instead of %d", n, times+2)
	}
	d.audit.Flush()
	stopDaemon(t, d)
	running = false
	text, err := os.ReadFile(strings.TrimPrefix(k.cfg.Audit, "file "))
	if err != nil {
		t.Fatal(err)
	}
	type event struct{ Event, Client, Principal, Result string }
	const alice = "alice@" + krbtest.Realm
	const host = "127.0.0.1" // where the kernel begins connections within the loopback interface
	want := map[event]int{
		{"kerberos", host, alice, "OK"}:                                         len(names) + 1,
		{"kerberos", host, alice, "the token of " + alice + " was used before"}: times,
		{"kerberos", host, "", "a client has a ticket for nfs/" + kerberosHost + "@" + krbtest.Realm +
			", and the keytab has only nfs/a.rstored.test@" + krbtest.Realm + ", nfs/alias@" + krbtest.Realm +
			", nfs/b.rstored.test@" + krbtest.Realm}: 1,
	}
	malformed := 0
	for line := range strings.Lines(string(text)) {
		var e event
		if err := json.Unmarshal([]byte(line), &e); err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		switch {
		case e.Event != "kerberos":
		case strings.Contains(e.Result, "malformed token") && e.Principal == "":
			malformed++
		default:
			if want[e]--; want[e] < 0 {
				t.Errorf("unexpected: %+v", e)
			}
		}
	}
	for e, n := range want {
		if n > 0 {
			t.Errorf("%d events are missing: %+v", n, e)
		}
	}
	if malformed != 1 {
		t.Errorf("%d events of a malformed token", malformed)
	}
}
