package creds

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jcmturner/gokrb5/v8/keytab"

	"github.com/rstored/rstored/nfs/krb5"
	"github.com/rstored/rstored/nfs/krb5/krbtest"
)

// startKCM starts Heimdal's kcm, and returns a krb5.conf with its socket that all users can read.
func startKCM(t *testing.T, kdc *krbtest.KDC) (conf string) {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("caches of several users need root")
	}
	const path = "/usr/sbin/kcm"
	if _, err := os.Stat(path); err != nil {
		t.Skip("kcm is missing (Debian: heimdal-kcm)")
	}
	dir := t.TempDir()
	conf = filepath.Join(dir, "krb5.conf")
	run := filepath.Join(dir, "run")
	socket := filepath.Join(run, filepath.Base(kcmSocket))
	b, err := os.ReadFile(kdc.Config)
	if err != nil {
		t.Fatal(err)
	}
	const section = "[libdefaults]\n"
	b = bytes.Replace(b, []byte(section), []byte(section+" default_ccache_name = KCM:\n kcm_socket = "+socket+"\n"), 1)
	if err := errors.Join(
		os.Mkdir(run, 0o755), os.WriteFile(conf, b, 0o644), os.Chmod(dir, 0o755), os.Chmod(filepath.Dir(dir), 0o755),
	); err != nil {
		t.Fatal(err)
	}
	// Its socket is always in /run, so the daemon has another one.
	cmd := exec.Command("sh", "-c", `mount --bind "$1" /run && exec "$2" -c "$3"`, "sh", run, path, conf)
	cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS, Setpgid: true}
	if err := cmd.Start(); err != nil {
		t.Skipf("no mount namespace: %v", err)
	}
	t.Cleanup(func() {
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
		_ = cmd.Wait()
	})
	for end := time.Now().Add(time.Minute); ; time.Sleep(20 * time.Millisecond) {
		if info, err := os.Stat(socket); err == nil && info.Mode().Perm() == 0o666 {
			return conf
		}
		if time.Now().After(end) {
			t.Fatalf("kcm has no socket %s", socket)
		}
	}
}

// TestKCM: tickets that MIT's kinit stored with Heimdal's kcm, of several users.
func TestKCM(t *testing.T) {
	kdc := krbtest.Start(t)
	conf := startKCM(t, kdc)
	t.Setenv("KRB5_CONFIG", conf)
	t.Setenv("KRB5CCNAME", "")
	keys, err := keytab.Load(kdc.Keytab("", "nfs/"+host))
	if err != nil {
		t.Fatal(err)
	}
	server := &krb5.Acceptor{Service: "nfs", Keytab: func() (*keytab.Keytab, error) { return keys, nil }}
	const alice, bob, nobody = 4711, 4712, 4714
	for uid, name := range map[uint32]string{alice: "alice", bob: "bob", 0: "carol"} {
		kdc.User(name, "secret")
		cmd := exec.Command("kinit", "-c", fmt.Sprintf("KCM:%d", uid), name)
		cmd.Env, cmd.Stdin = append(os.Environ(), "KRB5CCNAME="), strings.NewReader("secret\n")
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("kinit %s: %v, %s", name, err, out)
		}
	}
	users := &Users{Keytab: "/nonexistent"}
	as := func(uid uint32) (string, error) {
		half, err := users.Initiate(t.Context(), host, uid)
		if err != nil {
			return "", err
		}
		est, err := server.Accept(half.Token, time.Now())
		return strings.TrimSuffix(est.Principal, "@"+krbtest.Realm), err
	}
	for range 3 {
		for uid, want := range map[uint32]string{alice: "alice", bob: "bob"} {
			if got, err := as(uid); got != want {
				t.Errorf("user %d is %q, %v", uid, got, err)
			}
		}
	}
	if got, err := as(nobody); err == nil || !strings.Contains(err.Error(), "there are no Kerberos tickets; kinit") {
		t.Errorf("without a ticket: %q, %v", got, err)
	}
	for _, name := range []string{"KCM:", "KCM:4711", ""} {
		want := "carol"
		if name == "KCM:4711" {
			want = "alice" // root may read it by its name
		}
		c, err := FromCache(name)
		if err != nil {
			t.Fatal(err)
		}
		half, err := c.Initiate(t.Context(), host)
		if err != nil {
			t.Errorf("%q: %v", name, err)
			continue
		}
		if est, err := server.Accept(half.Token, time.Now()); err != nil || est.Principal != want+"@"+krbtest.Realm {
			t.Errorf("%q: %s, %v", name, est.Principal, err)
		}
	}
	if _, err := readCache("KCM:none", anybody); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a cache that there is not: %v", err)
	}
	if got := os.Geteuid(); got != 0 {
		t.Errorf("the process is user %d", got)
	}
}

// TestWithoutKCM: no daemon, and a configuration without one.
func TestWithoutKCM(t *testing.T) {
	for socket, want := range map[string]string{
		"/nonexistent/kcm": "no KCM listens on /nonexistent/kcm", "-": "there is no KCM",
	} {
		conf := filepath.Join(t.TempDir(), "krb5.conf")
		text := "[libdefaults]\n default_realm = R\n kcm_socket = " + socket + "\n"
		if err := os.WriteFile(conf, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		t.Setenv("KRB5_CONFIG", conf)
		c, err := FromCache("KCM:")
		if err == nil {
			_, err = c.Initiate(t.Context(), host)
		}
		if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "kinit") {
			t.Errorf("%s: %v", socket, err)
		}
	}
}

// pipe is a daemon that answers what it likes.
type pipe struct{ bytes.Reader }

func (*pipe) Write(b []byte) (int, error) { return len(b), nil }

func FuzzKCM(f *testing.F) {
	reply := func(code int32, results string) string {
		b := binary.BigEndian.AppendUint32(nil, uint32(4+len(results)))
		b = binary.BigEndian.AppendUint32(append(b, 0, 0, 0, 0), uint32(code))
		return string(b) + results
	}
	const principal = "\x00\x00\x00\x01\x00\x00\x00\x01\x00\x00\x00\x01R\x00\x00\x00\x01a"
	f.Add([]byte(reply(0, "4711\x00")+reply(0, principal)+reply(0, "")), "")
	f.Add([]byte(reply(0, principal)+reply(0, "0123456789abcdef")+reply(0, "ticket")), "4711")
	f.Add([]byte(reply(kcmNoFile, "")), "4711")
	f.Fuzz(func(t *testing.T, b []byte, name string) {
		var p pipe
		p.Reset(b)
		if cc, err := cacheOfKCM(&p, name); err == nil && len(cc.Credentials) > len(b) {
			t.Errorf("%d tickets in %d bytes", len(cc.Credentials), len(b))
		}
	})
}
