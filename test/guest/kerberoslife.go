package guest

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// kerberosLife is the kernel's client while tickets expire, a clock is wrong, keys change and the
// server restarts.
func kerberosLife(version, carrier, sec string) Case {
	c := kerberosCase(version, carrier)
	c.Name = strings.Replace(c.Name, "krb-", "krb-life-", 1)
	c.Script, c.Env["SEC"], c.Host, c.Timeout = script("krb-life"), sec, kerberosLifeHost, 10*time.Minute
	return c
}

// kadmin runs a command of the KDC's database.
func (r *Run) kadmin(ctx context.Context, query string) error {
	env := krbEnv(filepath.Join(filepath.Dir(r.Exports), "krb"))
	return r.Command(ctx, "env", append(env, "/usr/sbin/kadmin.local", "-r", krbRealm, "-q", query)...)
}

// logged waits until the log of the daemon has a text.
func (r *Run) logged(ctx context.Context, text string) error {
	return r.until(ctx, r.daemon, "the log to say "+text, func() bool {
		b, err := os.ReadFile(r.log.Name())
		return err == nil && strings.Contains(string(b), text)
	})
}

// kerberosLifeHost changes the keys of the server, and waits until its log says what is wrong.
func kerberosLifeHost(ctx context.Context, r *Run) error {
	dir := filepath.Join(filepath.Dir(r.Exports), "krb")
	kdc, err := r.startKDC(dir)
	if err != nil {
		return err
	}
	defer func() { _ = kdc.stop(syscall.SIGKILL) }()
	if err := r.Tell("kdc"); err != nil {
		return err
	}
	const principal = "nfs/" + krbServer
	keytab := filepath.Join(dir, "server.keytab")
	steps := []struct {
		await string
		do    func() error
		tell  string
	}{
		{"skewed", func() error {
			return r.logged(ctx, "the clock of the client of games@"+krbRealm+" is 20m")
		}, "skew-seen"},
		{"renew", func() error { return r.kadmin(ctx, "ktadd -k "+keytab+" "+principal) }, "renewed"},
		{"change", func() error { return r.kadmin(ctx, "cpw -randkey "+principal) }, "changed"},
		{"changed", func() error { return r.logged(ctx, "has key version 4, and the keytab has 2, 3") }, "kvno-seen"},
		{"bring", func() error {
			return r.kadmin(ctx, "ktadd -norandkey -k "+keytab+" "+principal)
		}, "brought"},
		{"restart", func() error { return errors.Join(r.StopDaemon(syscall.SIGKILL), r.StartDaemon(ctx)) }, "restarted"},
	}
	for _, s := range steps {
		if err := r.Await(ctx, s.await); err != nil {
			return err
		}
		if err := errors.Join(s.do(), r.Tell(s.tell)); err != nil {
			return err
		}
	}
	return r.Await(ctx, "done")
}
