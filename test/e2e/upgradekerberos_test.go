package e2e

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rstored/rstored/nfs/client"
	"github.com/rstored/rstored/nfs/dial"
	"github.com/rstored/rstored/nfs/krb5/creds"
	"github.com/rstored/rstored/nfs/krb5/krbtest"
	"github.com/rstored/rstored/rpcrdma/gss"
	"github.com/rstored/rstored/rpcrdma/rpc"
)

// TestUpgradeKerberos: an upgrade keeps security contexts.
func TestUpgradeKerberos(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("files of another user need root")
	}
	const host = "server.rstored.test"
	kdc := krbtest.Start(t)
	t.Setenv("KRB5_CONFIG", kdc.Config)
	kdc.User("games", "secret")
	c, err := creds.FromCache(kdc.Login("games", "secret"))
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	want := bytes.Repeat([]byte("secret"), 100_000)
	file := filepath.Join(dir, "f")
	if err := os.WriteFile(file, want, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Chown(file, 5, 5); err != nil { // games
		t.Fatal(err)
	}
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	d := newDaemon(t, "--kerberos-keytab", kdc.Keytab("", "nfs/"+host), "--export", dir+"=/k(rw,insecure,sec=krb5:krb5p)")
	for transport, service := range map[string]gss.Service{"tcp": gss.Privacy, "rdma": gss.None} {
		var begun atomic.Uint32
		dialer := &dial.Dialer{
			GiveUp: time.Minute, Secure: &dial.Secure{Service: service, Initiate: func(
				ctx context.Context, _ string, _ uint32,
			) (rpc.Initiation, error) {
				begun.Add(1)
				return c.Initiate(ctx, host)
			}},
		}
		u, err := client.ParseURL(strings.Replace(d.url(transport, "f"), "/data/", "/k/", 1))
		if err != nil {
			t.Fatal(err)
		}
		f, err := dialer.Client(u).Open(t.Context(), u.Path)
		if err != nil {
			t.Fatal(err)
		}
		for i := range 3 {
			got := make([]byte, len(want))
			if _, err := f.ReadAt(got, 0); err != nil || !bytes.Equal(got, want) {
				t.Fatalf("%s, after %d upgrades: %v", transport, i, err)
			}
			if n := begun.Load(); n != 1 {
				t.Errorf("%s, after %d upgrades: %d contexts", transport, i, n)
			}
			if i < 2 {
				d.takeOver("upgrade")
				_, d.successor = d.serving()
			}
		}
		if err := f.Close(); err != nil {
			t.Error(err)
		}
		if err := dialer.Close(); err != nil {
			t.Error(err)
		}
	}
}
