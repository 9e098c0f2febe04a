package creds

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/jcmturner/gokrb5/v8/config"
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
	type kind struct {
		of   func() (*Creds, error)
		want string
	}
	kinds := map[string]kind{
		"path":   {func() (*Creds, error) { return FromCache(cache) }, "alice"},
		"FILE":   {func() (*Creds, error) { return FromCache("FILE:" + cache) }, "alice"},
		"DIR":    {func() (*Creds, error) { return FromCache("DIR:" + dir) }, "alice"},
		"keytab": {func() (*Creds, error) { return FromKeytab(machine, "") }, "host/client.rstored.test"},
		"principal": {
			func() (*Creds, error) { return FromKeytab(machine, "host/client.rstored.test") }, "host/client.rstored.test",
		},
		"password": {func() (*Creds, error) { return FromPassword("alice", "secret") }, "alice"},
	}
	if name := keyring(t, kdc); name != "" {
		kinds["KEYRING"] = kind{func() (*Creds, error) { return FromCache(name) }, "alice"}
	}
	for name, c := range kinds {
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
		"another kind":    {fromCache("MEMORY:0"), host, "KRB5CCNAME=FILE:PATH"},
		"keyring":         {fromCache("KEYRING:thread:x"), host, "use persistent, user or session"},
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

// keyring gets a ticket into a keyring of the kernel, or returns "" where the kernel refuses.
func keyring(t *testing.T, kdc *krbtest.KDC) string {
	t.Helper()
	const name = "KEYRING:user:rstored-test"
	cmd := exec.Command("kinit", "-c", name, "alice")
	cmd.Env, cmd.Stdin = kdc.Env(), strings.NewReader("secret\n")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Logf("without a keyring: %v, %s", err, out)
		return ""
	}
	t.Cleanup(func() { kdc.Run("kdestroy", "-c", name) })
	return name
}

// TestUsers: each user has the tickets of a cache that is the user's own, root those of the host.
func TestUsers(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("files of several users need root")
	}
	kdc := krbtest.Start(t)
	dir := t.TempDir()
	b, err := os.ReadFile(kdc.Config)
	if err != nil {
		t.Fatal(err)
	}
	conf := filepath.Join(dir, "krb5.conf")
	const section = "[libdefaults]\n"
	b = bytes.Replace(b, []byte(section), []byte(section+" default_ccache_name = FILE:"+dir+"/%{uid}\n"), 1)
	if err := os.WriteFile(conf, b, 0o644); err != nil {
		t.Fatal(err)
	}
	t.Setenv("KRB5_CONFIG", conf)
	t.Setenv("KRB5CCNAME", "")
	keys, err := keytab.Load(kdc.Keytab("", "nfs/"+host))
	if err != nil {
		t.Fatal(err)
	}
	server := &krb5.Acceptor{Service: "nfs", Keytab: func() (*keytab.Keytab, error) { return keys, nil }}
	const alice, bob, thief, nobody = 4711, 4712, 4713, 4714
	for uid, name := range map[int]string{alice: "alice", bob: "bob", thief: "carol"} {
		kdc.User(name, "secret")
		b, err := os.ReadFile(kdc.Login(name, "secret"))
		if err != nil {
			t.Fatal(err)
		}
		file := filepath.Join(dir, fmt.Sprint(uid))
		if err := errors.Join(os.WriteFile(file, b, 0o600), os.Chown(file, uid, uid)); err != nil {
			t.Fatal(err)
		}
	}
	users := &Users{Keytab: kdc.Keytab("", "other/x", "host/client.rstored.test", "nfs/client.rstored.test")}
	as := func(uid uint32) (string, error) {
		half, err := users.Initiate(t.Context(), host, uid)
		if err != nil {
			return "", err
		}
		est, err := server.Accept(half.Token, time.Now())
		return strings.TrimSuffix(est.Principal, "@"+krbtest.Realm), err
	}
	for uid, want := range map[uint32]string{alice: "alice", bob: "bob", 0: "nfs/client.rstored.test"} {
		if got, err := as(uid); got != want {
			t.Errorf("user %d is %q, %v", uid, got, err)
		}
	}
	const none = "user 4714: there are no Kerberos tickets; kinit"
	if _, err := as(nobody); err == nil || !strings.Contains(err.Error(), none) {
		t.Errorf("without a ticket: %v", err)
	}
	// Another user's file under the name of the user's cache, and a link to another user's cache.
	file := filepath.Join(dir, fmt.Sprint(alice))
	if err := os.Chown(file, thief, thief); err != nil {
		t.Fatal(err)
	}
	if got, err := as(alice); err == nil || !strings.Contains(err.Error(), "not of user 4711") {
		t.Errorf("a cache of another user: %q, %v", got, err)
	}
	if err := errors.Join(os.Remove(file), os.Symlink(filepath.Join(dir, fmt.Sprint(bob)), file)); err != nil {
		t.Fatal(err)
	}
	if got, err := as(alice); err == nil {
		t.Errorf("a link to another user's cache: %q", got)
	}
	if got := defaultCache(5); got != "FILE:"+dir+"/5" {
		t.Error(got)
	}
}

// names is a resolver that knows one host.
type names struct{}

func (names) LookupCNAME(context.Context, string) (string, error) { return "server.rstored.test.", nil }

func (names) LookupHost(context.Context, string) ([]string, error) { return []string{"192.0.2.1"}, nil }

func (names) LookupAddr(context.Context, string) ([]string, error) {
	return []string{"server.rstored.test.", "rack7.rstored.test."}, nil
}

// TestNames: where the KDC does not know the server by its name in the URL, the error has the names
// that the DNS knows.
func TestNames(t *testing.T) {
	kdc := krbtest.Start(t)
	t.Setenv("KRB5_CONFIG", kdc.Config)
	kdc.User("alice", "secret")
	c, err := FromCache(kdc.Login("alice", "secret"))
	if err != nil {
		t.Fatal(err)
	}
	c.dns = names{}
	_, err = c.Initiate(t.Context(), "server")
	want := "no principal nfs/server: the DNS also calls this host server.rstored.test and rack7.rstored.test"
	if err == nil || !strings.Contains(err.Error(), want) {
		t.Error(err)
	}
}

func FuzzCache(f *testing.F) {
	f.Add([]byte{5, 4, 0, 0})
	f.Add([]byte{
		5, 4, 0, 12, 0, 1, 0, 8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 1, 'R', 0, 0, 0, 1, 'a',
	})
	f.Fuzz(func(t *testing.T, b []byte) {
		cc, err := parseCache(b)
		if err != nil {
			return
		}
		if len(cc.Credentials) > len(b) {
			t.Errorf("%d tickets in %d bytes", len(cc.Credentials), len(b))
		}
		_ = expiry(cc)
		_, _ = loginByCache(cc, "", config.New())
	})
}
