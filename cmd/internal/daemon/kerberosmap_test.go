package daemon

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rstored/rstored/nfs/client"
	"github.com/rstored/rstored/nfs/krb5/creds"
	"github.com/rstored/rstored/nfs/krb5/krbtest"
)

// TestKerberosMapping: the user who creates a file is the one that the principal is mapped to: by
// the realm, by rules of krb5.conf, by the table. Machines are the anonymous user, unless a rule
// says otherwise; root is squashed.
func TestKerberosMapping(t *testing.T) {
	dir := t.TempDir()
	k := newKerberized(t, dir+"=/e(rw,sec=krb5,insecure,anonuid=33)")
	if err := os.Chmod(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	k.kdc.User("root", "secret")
	var err error
	if k.who["root"], err = creds.FromCache("FILE:" + k.kdc.Login("root", "secret")); err != nil {
		t.Fatal(err)
	}
	for _, p := range []string{
		"host/client.rstored.test", "nfs/client.rstored.test", "root/client.rstored.test", "mail/admin",
	} {
		if k.who[p], err = creds.FromKeytab(k.kdc.Keytab("", p), p); err != nil {
			t.Fatal(err)
		}
	}
	const games, mail, uucp, anon = 5, 8, 10, 33
	conf := filepath.Join(t.TempDir(), "krb5.conf")
	rules := func(text string) {
		t.Helper()
		const realm = krbtest.Realm
		text = "[libdefaults]\n default_realm = " + realm + "\n[realms]\n " + realm + " = {\n" + text + "\n }\n"
		if err := os.WriteFile(conf, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	check := func(phase string, want map[string]uint32) {
		t.Helper()
		for user, uid := range want {
			name := strings.ReplaceAll(user, "/", "-") + phase
			u, err := client.ParseURL(k.url("tcp") + "/e/" + name)
			if err != nil {
				t.Fatal(err)
			}
			f, err := k.dialer(user, "krb5", "4.2").Client(u).CreateFile(t.Context(), u.Path, 0o600)
			if err == nil {
				err = f.Close()
			}
			info, serr := os.Stat(filepath.Join(dir, name))
			if err := errors.Join(err, serr); err != nil {
				t.Errorf("%s: %s: %v", phase, user, err)
			} else if got := ownerOf(info); got != uid {
				t.Errorf("%s: %s is user %d instead of %d", phase, user, got, uid)
			}
		}
	}
	machines := map[string]uint32{
		"host/client.rstored.test": anon, "nfs/client.rstored.test": anon, "root/client.rstored.test": anon, "root": anon,
		"carol": anon, "alice": games,
	}
	d, _ := startDaemon(t, k.cfg)
	check("realm", machines)
	check("realm2", map[string]uint32{"mail": mail, "mail/admin": anon})
	stopDaemon(t, d)

	k.cfg.Kerberos.AuthToLocal = conf
	rules("")
	d, _ = startDaemon(t, k.cfg)
	t.Cleanup(func() { stopDaemon(t, d) })
	check("default", machines)
	check("default2", map[string]uint32{"mail": mail, "mail/admin": anon})
	rules("auth_to_local_names = {\n carol = mail\n}\nauth_to_local = RULE:[2:$1;$2](mail;admin)s/.*/uucp/\n" +
		"auth_to_local = RULE:[2:$1;$2](host;client.*)s/;.*//s/host/games/")
	check("rules", map[string]uint32{
		"carol": mail, "mail/admin": uucp, "host/client.rstored.test": games, "nfs/client.rstored.test": anon, "mail": anon,
		"alice": games, // by the table
	})
	rules("auth_to_local = RULE:[1:$1](\nauth_to_local = DEFAULT")
	check("malformed", map[string]uint32{"mail": anon, "alice": games})
}
