package daemon

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/rstored/rstored/nfs/client"
	"github.com/rstored/rstored/nfs/dial"
	"github.com/rstored/rstored/nfs/fusefs"
	"github.com/rstored/rstored/nfs/krb5/creds"
	"github.com/rstored/rstored/rpcrdma/gss"
	"github.com/rstored/rstored/rpcrdma/rpc"
)

// TestKerberosMount: in one mount by FUSE each user acts with the user's own tickets, and who has
// none is refused, also what another user has read.
func TestKerberosMount(t *testing.T) {
	if f, err := os.OpenFile("/dev/fuse", os.O_RDWR, 0); err != nil {
		t.Skipf("there is no FUSE here: %v", err)
	} else {
		_ = f.Close()
	}
	dir := t.TempDir()
	k := newKerberized(t, dir+"=/e(rw,sec=krb5p:krb5,insecure)")
	if err := os.Chmod(dir, 0o1777); err != nil {
		t.Fatal(err)
	}
	const games, mail, news = 5, 8, 9
	caches := t.TempDir()
	conf, err := os.ReadFile(k.kdc.Config)
	if err != nil {
		t.Fatal(err)
	}
	conf = bytes.Replace(conf, []byte("[libdefaults]\n"),
		[]byte("[libdefaults]\n default_ccache_name = "+caches+"/%{uid}\n"), 1)
	if err := os.WriteFile(filepath.Join(caches, "krb5.conf"), conf, 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("KRB5_CONFIG", filepath.Join(caches, "krb5.conf"))
	t.Setenv("KRB5CCNAME", "")
	login := func(name string, uid int) string {
		b, err := os.ReadFile(k.kdc.Login(name, "secret"))
		cache := filepath.Join(caches, fmt.Sprint(uid))
		if err := errors.Join(err, os.WriteFile(cache, b, 0o600), os.Chown(cache, uid, uid)); err != nil {
			t.Fatal(err)
		}
		return cache
	}
	ticket := login("alice", games) // by the table of users
	login("mail", mail)
	d, _ := startDaemon(t, k.cfg)
	t.Cleanup(func() { stopDaemon(t, d) })
	users := &creds.Users{Keytab: k.kdc.Keytab("", "host/client.rstored.test")}
	for _, c := range []struct {
		version, transport string
		service            gss.Service
	}{{"3", "tcp", gss.Privacy}, {"4.2", "tcp", gss.Privacy}, {"4.2", "rdma", gss.None}} {
		t.Run(c.version+" "+c.transport, func(t *testing.T) {
			dialer := k.dialer("", "sys", c.version)
			dialer.Cred = &rpc.Cred{Flavor: rpc.AuthSys}
			dialer.Secure = &dial.Secure{Service: c.service, Initiate: func(
				ctx context.Context, _ string, uid uint32,
			) (rpc.Initiation, error) {
				return users.Initiate(ctx, kerberosHost, uid)
			}}
			u, err := client.ParseURL(k.url(c.transport) + "/e")
			if err != nil {
				t.Fatal(err)
			}
			cl := dialer.Client(u)
			root, err := cl.Follow(t.Context(), u.Path, true)
			if err != nil {
				t.Fatal(err)
			}
			at := filepath.Join(t.TempDir(), "mnt")
			for p := filepath.Dir(at); p != "/tmp" && p != "/"; p = filepath.Dir(p) {
				_ = os.Chmod(p, 0o755)
			}
			if err := os.Mkdir(at, 0o755); err != nil {
				t.Fatal(err)
			}
			m, err := fusefs.Mount(at, fusefs.Config{
				Client: cl, Root: root, AllowOther: true, Times: fusefs.DefaultCacheTimes, Log: slog.New(slog.DiscardHandler),
			})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() {
				if err := m.Unmount(); err != nil {
					t.Error(err)
					_ = syscall.Unmount(at, syscall.MNT_FORCE|syscall.MNT_DETACH)
				}
			})
			as := func(uid uint32, line string) (string, error) {
				// Not Dir: the directory is served by this process, which may stand still until the program
				// begins.
				cmd := exec.Command("sh", "-c", line)
				cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}
				out, err := cmd.CombinedOutput()
				return string(out), err
			}
			file := "of-alice-" + c.version + c.transport
			mounted := filepath.Join(at, file)
			write := "umask 077; echo secret >" + mounted + "; chmod 644 " + mounted + "; cat " + mounted
			if out, err := as(games, write); out != "secret\n" {
				t.Fatalf("%q, %v", out, err)
			}
			if info, err := os.Stat(filepath.Join(dir, file)); err != nil || ownerOf(info) != games {
				t.Fatalf("%v, %v", info, err)
			}
			if out, err := as(mail, "cat "+mounted); out != "secret\n" {
				t.Errorf("another user with a ticket: %q, %v", out, err)
			}
			if out, err := as(mail, "echo mine >>"+mounted); err == nil {
				t.Errorf("a user writes into another user's file: %q", out)
			}
			// Without a ticket even the directory cannot be entered.
			if out, err := as(news, "cat "+mounted); err == nil || !strings.Contains(out+err.Error(), "ermission denied") {
				t.Errorf("a user without a ticket: %q, %v", out, err)
			}
			if out, err := as(games, "chmod 600 "+mounted); err != nil {
				t.Fatal(out, err)
			}
			if out, err := as(mail, "cat "+mounted); err == nil {
				t.Errorf("a user reads another user's file: %q", out)
			}
		})
	}
	if err := os.Remove(ticket); err != nil {
		t.Fatal(err)
	}
}
