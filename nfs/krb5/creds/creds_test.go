package creds

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/jcmturner/gokrb5/v8/keytab"

	"github.com/rstored/rstored/nfs/krb5"
	"github.com/rstored/rstored/nfs/krb5/krbtest"
)

const host = "server.rstored.test"

// TestCreds: each kind of credentials establishes a context.
func TestCreds(t *testing.T) {
	kdc := krbtest.Start(t)
	t.Setenv("KRB5_CONFIG", kdc.Config)
	kdc.User("alice", "secret")
	keys, err := keytab.Load(kdc.Keytab("", "nfs/"+host))
	if err != nil {
		t.Fatal(err)
	}
	server := &krb5.Acceptor{Service: "nfs", Keytab: func() (*keytab.Keytab, error) { return keys, nil }}
	cache := kdc.Login("alice", "secret")
	dir := t.TempDir()
	b, err := os.ReadFile(cache)
	if err == nil {
		err = errors.Join(os.WriteFile(filepath.Join(dir, "tkt"), b, 0o600),
			os.WriteFile(filepath.Join(dir, "primary"), []byte("tkt\n"), 0o600))
	}
	if err != nil {
		t.Fatal(err)
	}
	machine := kdc.Keytab("", "host/client.rstored.test")
	for name, c := range map[string]struct {
		of   func() (*Creds, error)
		want string
	}{
		"path":   {func() (*Creds, error) { return FromCache(cache) }, "alice"},
		"FILE":   {func() (*Creds, error) { return FromCache("FILE:" + cache) }, "alice"},
		"DIR":    {func() (*Creds, error) { return FromCache("DIR:" + dir) }, "alice"},
		"keytab": {func() (*Creds, error) { return FromKeytab(machine, "") }, "host/client.rstored.test"},
		"principal": {
			func() (*Creds, error) { return FromKeytab(machine, "host/client.rstored.test") }, "host/client.rstored.test",
		},
		"password": {func() (*Creds, error) { return FromPassword("alice", "secret") }, "alice"},
	} {
		cr, err := c.of()
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		half, err := cr.Initiate(t.Context(), host)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		est, err := server.Accept(half.Token, time.Now())
		if err != nil || est.Principal != c.want+"@"+krbtest.Realm {
			t.Errorf("%s: %q, %v", name, est.Principal, err)
			continue
		}
		mine, err := half.Finish(est.Token)
		if err != nil || est.Context.VerifyMIC(mine.AppendMIC(nil, []byte("m")), []byte("m")) != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestErrors: what is wrong is said with what to do.
func TestErrors(t *testing.T) {
	kdc := krbtest.Start(t)
	t.Setenv("KRB5_CONFIG", kdc.Config)
	kdc.User("alice", "secret")
	good, err := FromCache(kdc.Login("alice", "secret"))
	if err != nil {
		t.Fatal(err)
	}
	fromCache := func(name string) func() (*Creds, error) { return func() (*Creds, error) { return FromCache(name) } }
	password := func(user, secret string) func() (*Creds, error) {
		return func() (*Creds, error) { return FromPassword(user, secret) }
	}
	alice := func() (*Creds, error) { return good, nil }
	for name, c := range map[string]struct {
		of   func() (*Creds, error)
		host string
		want string
	}{
		"no such service": {alice, "other.rstored.test", "no principal nfs/other"},
		"an address":      {alice, "192.0.2.1", "use the name of 192.0.2.1"},
		"no cache":        {fromCache("/nonexistent/cc"), host, "kinit"},
		"keyring":         {fromCache("KEYRING:persistent:0"), host, "KRB5CCNAME=FILE:PATH"},
		"wrong password":  {password("alice", "wrong"), host, "the password is wrong"},
		"no such user":    {password("nobody", "x"), host, "does not know this principal"},
		"no keytab": {
			func() (*Creds, error) { return FromKeytab("/nonexistent/kt", "") }, host, "/nonexistent/kt",
		},
	} {
		cr, err := c.of()
		if err == nil {
			_, err = cr.Initiate(t.Context(), c.host)
		}
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
