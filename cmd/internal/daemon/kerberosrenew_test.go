package daemon

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rstored/rstored/nfs/client"
	"github.com/rstored/rstored/nfs/krb5/creds"
	"github.com/rstored/rstored/nfs/krb5/krbtest"
	"github.com/rstored/rstored/rpcrdma/rpc"
)

// TestKerberosRenewal: a copy that takes longer than the ticket is valid goes on: with a keytab and
// a password the client gets another ticket, with a cache it renews the ticket or uses what kinit
// has put there. Without any of these the copy ends with an error that says so.
func TestKerberosRenewal(t *testing.T) {
	dir := t.TempDir()
	k := newKerberized(t, dir+"=/e(rw,sec=krb5:krb5i:krb5p,insecure)")
	if err := os.Chmod(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	const life = 6 * time.Second
	kadmin := func(query string) { k.kdc.Run("kadmin.local", "-r", krbtest.Realm, "-q", query) }
	keys := k.kdc.Keytab("", "host/client.rstored.test")
	// The KDC makes a ticket renewable that is shorter than kinit has asked for (RENEWABLE-OK).
	for p, renewable := range map[string]string{
		"alice": "1h", "mail": "0", "carol": "0", "host/client.rstored.test": "0",
	} {
		kadmin("modprinc -maxlife " + life.String() + " -maxrenewlife " + renewable + " " + p)
	}
	for _, p := range []string{"krbtgt/" + krbtest.Realm, "nfs/" + kerberosHost} {
		kadmin("modprinc -maxrenewlife 1h " + p)
	}
	d, _ := startDaemon(t, k.cfg)
	t.Cleanup(func() { stopDaemon(t, d) })

	replaced := k.kdc.Login("mail", "secret")
	renewable, ends := k.kdc.Login("alice", "secret"), k.kdc.Login("carol", "secret")
	login := func() error { // puts another ticket into a cache, as a second kinit does
		b, err := os.ReadFile(k.kdc.Login("mail", "secret"))
		if err == nil {
			err = os.WriteFile(replaced+".new", b, 0o600)
		}
		return errors.Join(err, os.Rename(replaced+".new", replaced))
	}
	type copied struct {
		of                      func() (*creds.Creds, error)
		sec, version, transport string
		err                     string // empty: the copy succeeds
		made                    atomic.Int32
	}
	copies := map[string]*copied{
		"keytab": {
			of:  func() (*creds.Creds, error) { return creds.FromKeytab(keys, "") },
			sec: "krb5p", version: "4.2", transport: "tcp",
		},
		"password": {
			of:  func() (*creds.Creds, error) { return creds.FromPassword("alice", "secret") },
			sec: "krb5", version: "4.1", transport: "rdma",
		},
		"renewable": {
			of:  func() (*creds.Creds, error) { return creds.FromCache(renewable) },
			sec: "krb5i", version: "4.2", transport: "rdma",
		},
		"replaced": {
			of:  func() (*creds.Creds, error) { return creds.FromCache(replaced) },
			sec: "krb5p", version: "3", transport: "tcp",
		},
		"ends": {
			of:  func() (*creds.Creds, error) { return creds.FromCache(ends) },
			sec: "krb5", version: "4.2", transport: "tcp", err: "expired",
		},
	}
	const contexts = 3 // a copy ends in its third context, which is of the third ticket
	run := func(name string, c *copied) error {
		of, err := c.of()
		if err != nil {
			return err
		}
		dialer := k.dialer("alice", c.sec, c.version)
		dialer.Secure.Initiate = func(ctx context.Context, _ string, _ uint32) (rpc.Initiation, error) {
			half, err := of.Initiate(ctx, kerberosHost)
			if err == nil {
				c.made.Add(1)
			}
			return half, err
		}
		u, err := client.ParseURL(k.url(c.transport) + "/e/" + name)
		if err != nil {
			return err
		}
		f, err := dialer.Client(u).CreateFile(t.Context(), u.Path, 0o600)
		if err != nil {
			return err
		}
		const part = 100_000
		buf := make([]byte, part)
		var n int64
		for end := time.Now().Add(time.Minute); c.made.Load() < contexts; n++ {
			if time.Now().After(end) {
				return errors.New("the ticket does not expire")
			}
			copy(buf, k.data[n%1000:])
			if _, err := f.WriteAt(buf, n*part); err != nil {
				_ = f.Close()
				return err
			}
			time.Sleep(50 * time.Millisecond)
		}
		if err := f.Close(); err != nil {
			return err
		}
		got, err := os.ReadFile(filepath.Join(dir, name))
		for i := range n {
			if err == nil && !bytes.Equal(got[i*part:(i+1)*part], k.data[i%1000:][:part]) {
				err = errors.New("other bytes are in the file")
			}
		}
		return err
	}
	begin := time.Now()
	results := make(map[string]chan error)
	for name, c := range copies {
		result := make(chan error, 1)
		results[name] = result
		go func() { result <- run(name, c) }()
	}
	again := time.NewTicker(life / 3)
	defer again.Stop()
	for name, c := range copies {
		var err error
		for waiting := true; waiting; {
			select {
			case err = <-results[name]:
				waiting = false
			case <-again.C:
				if err := login(); err != nil {
					t.Fatal(err)
				}
			}
		}
		t.Logf("%s: %d contexts in %v: %v", name, c.made.Load(), time.Since(begin), err)
		if ok := c.err == ""; ok && err != nil || !ok && (err == nil || !strings.Contains(err.Error(), c.err)) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
