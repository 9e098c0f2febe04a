package krbtest

import (
	"bytes"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// Realm is the realm of every KDC.
const Realm = "RSTORED.TEST"

// KDC is a running KDC. It ends with its test.
type KDC struct {
	Addr   string // host and port
	Config string // path of krb5.conf
	dir    string
	tb     testing.TB
	env    []string
}

// Start starts a KDC, or skips the test where MIT's programs are missing.
func Start(tb testing.TB) *KDC {
	tb.Helper()
	for _, p := range []string{"krb5kdc", "kdb5_util", "kadmin.local", "kinit"} {
		if _, err := find(p); err != nil {
			tb.Skipf("%s is missing (Debian: krb5-kdc krb5-admin-server krb5-user)", p)
		}
	}
	k := &KDC{dir: tb.TempDir(), tb: tb, Addr: freePort(tb)}
	k.Config = filepath.Join(k.dir, "krb5.conf")
	profile := filepath.Join(k.dir, "kdc.conf")
	k.write("krb5.conf", fmt.Sprintf(`[libdefaults]
 default_realm = %[1]s
 dns_lookup_kdc = false
 dns_lookup_realm = false
 rdns = false
 dns_canonicalize_hostname = false
 ticket_lifetime = 1h
 permitted_enctypes = aes256-cts-hmac-sha1-96 aes128-cts-hmac-sha1-96 aes128-sha2 aes256-sha2 arcfour-hmac
[realms]
 %[1]s = {
  kdc = %[2]s
 }
[domain_realm]
 localhost = %[1]s
`, Realm, k.Addr))
	k.write("kdc.conf", fmt.Sprintf(`[kdcdefaults]
 kdc_listen = %[2]s
 kdc_tcp_listen = %[2]s
[realms]
 %[1]s = {
  database_name = %[3]s/principal
  key_stash_file = %[3]s/stash
  acl_file = %[3]s/acl
  max_renewable_life = 1h
  supported_enctypes = aes256-cts:normal aes128-cts:normal aes128-sha2:normal aes256-sha2:normal
 }
[logging]
 kdc = FILE:%[3]s/kdc.log
`, Realm, k.Addr, k.dir))
	k.env = append(os.Environ(), "KRB5_CONFIG="+k.Config, "KRB5_KDC_PROFILE="+profile)
	k.Run("kdb5_util", "create", "-s", "-r", Realm, "-P", "master")
	path, _ := find("krb5kdc")
	cmd := exec.Command(path, "-n", "-r", Realm, "-P", filepath.Join(k.dir, "pid"))
	var out bytes.Buffer
	cmd.Env, cmd.Stdout, cmd.Stderr = k.env, &out, &out
	if err := cmd.Start(); err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	for end := time.Now().Add(10 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		c, err := net.Dial("tcp", k.Addr)
		if err == nil {
			c.Close()
			return k
		}
		if time.Now().After(end) {
			tb.Fatalf("krb5kdc does not listen on %s: %v\n%s", k.Addr, err, out.String())
		}
	}
}

// find also looks where Debian has programs for root.
func find(name string) (string, error) {
	if p, err := exec.LookPath(name); err == nil {
		return p, nil
	}
	return exec.LookPath("/usr/sbin/" + name)
}

func freePort(tb testing.TB) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

func (k *KDC) write(name, text string) {
	if err := os.WriteFile(filepath.Join(k.dir, name), []byte(text), 0o600); err != nil {
		k.tb.Fatal(err)
	}
}

// Env is the environment for MIT's programs that use this KDC, and more variables.
func (k *KDC) Env(more ...string) []string { return append(k.env[:len(k.env):len(k.env)], more...) }

// Run runs one of MIT's programs, which must succeed.
func (k *KDC) Run(name string, args ...string) string {
	k.tb.Helper()
	return k.run("", k.env, name, args...)
}

func (k *KDC) run(in string, env []string, name string, args ...string) string {
	k.tb.Helper()
	path, err := find(name)
	if err != nil {
		k.tb.Fatal(err)
	}
	cmd := exec.Command(path, args...)
	cmd.Env, cmd.Stdin = env, strings.NewReader(in)
	out, err := cmd.CombinedOutput()
	if err != nil {
		k.tb.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
	}
	return string(out)
}

// User adds a principal with a password.
func (k *KDC) User(name, password string) {
	k.tb.Helper()
	k.Run("kadmin.local", "-r", Realm, "-q", "addprinc -pw "+password+" "+name)
}

// Keytab adds principals with random keys, and returns the path of a keytab with these. kinds, such
// as "aes256-cts:normal", restricts their encryption types; empty is all.
func (k *KDC) Keytab(kinds string, principals ...string) string {
	k.tb.Helper()
	path := filepath.Join(k.tb.TempDir(), "keytab")
	option := ""
	if kinds != "" {
		option = "-e " + kinds + " "
	}
	for _, p := range principals {
		k.Run("kadmin.local", "-r", Realm, "-q", "addprinc -randkey "+option+p)
		k.Run("kadmin.local", "-r", Realm, "-q", "ktadd -k "+path+" "+option+p)
	}
	return path
}

// Login gets a ticket by a password, and returns the path of a credential cache with it.
func (k *KDC) Login(name, password string) string {
	k.tb.Helper()
	path := filepath.Join(k.tb.TempDir(), "cc")
	k.run(password+"\n", k.env, "kinit", "-c", "FILE:"+path, name)
	return path
}
