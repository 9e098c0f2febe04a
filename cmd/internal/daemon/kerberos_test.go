package daemon

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rstored/rstored/cmd/internal/config"
	"github.com/rstored/rstored/nfs"
	"github.com/rstored/rstored/nfs/client"
	"github.com/rstored/rstored/nfs/dial"
	"github.com/rstored/rstored/nfs/krb5/creds"
	"github.com/rstored/rstored/nfs/krb5/krbtest"
	"github.com/rstored/rstored/rpcrdma/gss"
	"github.com/rstored/rstored/rpcrdma/rpc"
)

const kerberosHost = "server.rstored.test"

// kerberized is a daemon with a keytab, and users with tickets of a KDC.
type kerberized struct {
	t    *testing.T
	kdc  *krbtest.KDC
	cfg  *config.Config
	who  map[string]*creds.Creds
	data []byte
}

func newKerberized(t *testing.T, specs ...string) *kerberized {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("files of several users need root")
	}
	k := &kerberized{t: t, kdc: krbtest.Start(t), cfg: testConfig(t, specs...), who: make(map[string]*creds.Creds)}
	t.Setenv("KRB5_CONFIG", k.kdc.Config)
	k.cfg.LeaseTime, k.cfg.GraceTime = 5*time.Second, 5*time.Second
	k.cfg.Kerberos.Keytab = k.kdc.Keytab("", "nfs/"+kerberosHost)
	k.cfg.Kerberos.Users = []string{"alice@" + krbtest.Realm + "=games"}
	for _, name := range []string{"alice", "mail", "carol"} {
		k.kdc.User(name, "secret")
		c, err := creds.FromCache("FILE:" + k.kdc.Login(name, "secret"))
		if err != nil {
			t.Fatal(err)
		}
		k.who[name] = c
	}
	k.data = make([]byte, 3<<20+777)
	rnd := rand.NewChaCha8([32]byte{1})
	_, _ = rnd.Read(k.data)
	return k
}

// dialer is a client of a user, with a flavor and a version.
func (k *kerberized) dialer(user, sec, version string) *dial.Dialer {
	k.t.Helper()
	v, err := client.ParseVersion(version)
	if err != nil {
		k.t.Fatal(err)
	}
	d := &dial.Dialer{Cred: &rpc.Cred{Flavor: rpc.AuthSys}, Version: v, GiveUp: 20 * time.Second}
	for _, s := range []gss.Service{gss.None, gss.Integrity, gss.Privacy} {
		if s.String() == sec {
			d.Secure = &dial.Secure{Service: s, Initiate: func(ctx context.Context, _ string, _ uint32) (rpc.Initiation, error) {
				return k.who[user].Initiate(ctx, kerberosHost)
			}}
		}
	}
	k.t.Cleanup(func() { _ = d.Close() })
	return d
}

func (k *kerberized) url(transport string) string {
	if transport == "rdma" {
		return "nfs+rdma://" + k.cfg.RDMAListen[0]
	}
	return "nfs+tcp://" + k.cfg.TCPListen[0]
}

// read reads a file and compares it.
func (k *kerberized) read(d *dial.Dialer, at string, want []byte) error {
	k.t.Helper()
	u, err := client.ParseURL(at)
	if err != nil {
		k.t.Fatal(err)
	}
	f, err := d.Client(u).Open(k.t.Context(), u.Path)
	if err != nil {
		return err
	}
	b := make([]byte, len(want))
	if _, err := f.ReadAt(b, 0); err != nil {
		return err
	}
	if !bytes.Equal(b, want) {
		k.t.Errorf("%s: other bytes", at)
	}
	return f.Close()
}

func ownerOf(info fs.FileInfo) uint32 { return info.Sys().(*syscall.Stat_t).Uid }

// TestKerberos: exports by flavor, versions and transports, with data of several READs and WRITEs.
func TestKerberos(t *testing.T) {
	dirs := map[string]string{}
	var specs []string
	for name, sec := range map[string]string{
		"sys": "sys", "any": "sys:krb5:krb5i:krb5p", "k": "krb5", "i": "krb5i:krb5p", "p": "krb5p",
	} {
		dirs[name] = t.TempDir()
		specs = append(specs, dirs[name]+"=/"+name+"(sec="+sec+",insecure)")
	}
	k := newKerberized(t, specs...)
	for _, dir := range dirs {
		if err := errors.Join(os.Chmod(dir, 0o777), os.WriteFile(filepath.Join(dir, "f"), k.data, 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	d, _ := startDaemon(t, k.cfg)
	t.Cleanup(func() { stopDaemon(t, d) })
	admitted := map[string]string{
		"sys": "sys", "any": "sys krb5 krb5i krb5p", "k": "krb5", "i": "krb5i krb5p", "p": "krb5p",
	}
	for _, transport := range []string{"tcp", "rdma"} {
		for _, version := range []string{"3", "4.1", "4.2"} {
			for _, sec := range []string{"sys", "krb5", "krb5i", "krb5p"} {
				c := k.dialer("alice", sec, version)
				for export, list := range admitted {
					at := k.url(transport) + "/" + export
					err := k.read(c, at+"/f", k.data)
					var denied *rpc.DeniedError
					wrong := errors.Is(err, nfs.ErrWrongSec) || errors.As(err, &denied) && denied.Auth == rpc.AuthTooWeak
					switch ok := strings.Contains(" "+list+" ", " "+sec+" "); {
					case ok && err != nil, !ok && !wrong:
						t.Errorf("version %s, %s, %s by %s: %v", version, transport, export, sec, err)
						continue
					case !ok:
						continue
					}
					u, err := client.ParseURL(at + "/new-" + transport + version + sec)
					if err != nil {
						t.Fatal(err)
					}
					f, err := c.Client(u).CreateFile(t.Context(), u.Path, 0o600)
					if err != nil {
						t.Errorf("creating %s: %v", u.Path, err)
						continue
					}
					if _, err = f.WriteAt(k.data, 0); err == nil {
						err = f.Close()
					}
					file := filepath.Join(dirs[export], filepath.Base(u.Path))
					got, _ := os.ReadFile(file)
					if err != nil || !bytes.Equal(got, k.data) {
						t.Errorf("%s has %d other bytes: %v", u.Path, len(got), err)
					}
					if info, err := os.Stat(file); err == nil && sec != "sys" && ownerOf(info) != 5 {
						t.Errorf("%s is of user %d", u.Path, ownerOf(info))
					}
				}
			}
		}
	}
}

// TestKerberosUsers: principals are users, who cannot read each other's files.
func TestKerberosUsers(t *testing.T) {
	dir := t.TempDir()
	k := newKerberized(t, dir+"=/e(rw,sec=krb5p,insecure,anonuid=33)")
	const games, mail, anon = 5, 8, 33
	for name, uid := range map[string]int{"alice": games, "mail": mail, "carol": anon} {
		file := filepath.Join(dir, name)
		if err := errors.Join(os.WriteFile(file, []byte(name), 0o600), os.Chown(file, uid, uid)); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	d, _ := startDaemon(t, k.cfg)
	users := []string{"alice", "mail", "carol"} // by the table, by the keytab's realm, no user of the host
	for _, version := range []string{"3", "4.2"} {
		for _, user := range users {
			c := k.dialer(user, "krb5p", version)
			for _, of := range users {
				err := k.read(c, k.url("tcp")+"/e/"+of, []byte(of))
				if ok := user == of; ok && err != nil || !ok && !errors.Is(err, fs.ErrPermission) {
					t.Errorf("version %s: %s reads the file of %s: %v", version, user, of, err)
				}
			}
		}
	}
	// A restart forgets contexts; clients make others.
	c := k.dialer("mail", "krb5p", "4.2")
	if err := k.read(c, k.url("rdma")+"/e/mail", []byte("mail")); err != nil {
		t.Fatal(err)
	}
	stopDaemon(t, d)
	d, _ = startDaemon(t, k.cfg)
	t.Cleanup(func() { stopDaemon(t, d) })
	if err := k.read(c, k.url("rdma")+"/e/mail", []byte("mail")); err != nil {
		t.Errorf("after a restart: %v", err)
	}
	// A renewed keytab: tickets of the new key are accepted at once, those of the old one no more.
	old := k.who["alice"]
	if _, err := old.Initiate(t.Context(), kerberosHost); err != nil {
		t.Fatal(err)
	}
	keys, err := os.ReadFile(k.kdc.Keytab("", "nfs/"+kerberosHost))
	if err == nil {
		err = os.WriteFile(k.cfg.Kerberos.Keytab, keys, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	if k.who["alice"], err = creds.FromCache("FILE:" + k.kdc.Login("alice", "secret")); err != nil {
		t.Fatal(err)
	}
	if err := k.read(k.dialer("alice", "krb5p", "4.2"), k.url("tcp")+"/e/alice", []byte("alice")); err != nil {
		t.Errorf("with a renewed keytab: %v", err)
	}
}
