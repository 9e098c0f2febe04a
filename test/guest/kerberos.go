package guest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

const (
	krbRealm  = "RSTORED.TEST"
	krbServer = "server.rstored.test"
	krbGuest  = "guest.rstored.test"
)

// kerberosCase is the kernel's client with rpc.gssd and a KDC, by a version and a transport.
func kerberosCase(version, carrier string) Case {
	name := "krb-v" + strings.ReplaceAll(version, ".", "") + "-tcp"
	if carrier == rdma {
		name = "krb-v" + strings.ReplaceAll(version, ".", "") + "-rdma"
	}
	daemon := []string{"--kerberos-keytab", "%s/../krb/server.keytab"}
	if version == "3" {
		daemon = append(daemon, "--portmap-listen", HostAddr+":111") // lockd asks it
	}
	return Case{
		Name: name, Script: script("kerberos"), Env: env("VERS", version, "CARRIER", carrier), NotRPC: true,
		Exports: []string{
			"%s/krb5=/krb5(rw,sec=krb5)", "%s/krb5i=/krb5i(rw,sec=krb5i)", "%s/krb5p=/krb5p(rw,sec=krb5p)",
			"%s/locks=/locks(rw,sec=krb5,insecure_locks)",
		},
		Setenv:  []string{"KRB5_CONFIG=%s/../krb/krb5.conf"},
		Daemon:  daemon,
		Prepare: kerberosFiles, Host: kerberosHost, Timeout: 5 * time.Minute,
	}
}

// krbEnv is the environment of MIT's programs on the host.
func krbEnv(dir string) []string {
	return []string{"KRB5_CONFIG=" + filepath.Join(dir, "krb5.conf"), "KRB5_KDC_PROFILE=" + filepath.Join(dir, "kdc.conf")}
}

// kerberosFiles makes the exports and a realm.
func kerberosFiles(exports string) error {
	for _, flavor := range []string{"krb5", "krb5i", "krb5p", "locks"} {
		d := filepath.Join(exports, flavor)
		// The guest's root is a machine, and so anonymous.
		if err := errors.Join(os.MkdirAll(d, 0o755), os.Chmod(d, 0o1777)); err != nil {
			return err
		}
	}
	return MakeRealm(exports)
}

// MakeRealm makes the database of a KDC beside the directory exports, and the keytab of the daemon
// (../krb/server.keytab from there). What guests need is in the directory krb of their share:
// krb5.conf, guest.keytab for the client, and HOST.keytab for each service nfs/HOST of more.
func MakeRealm(exports string, more ...string) error {
	dir := filepath.Join(filepath.Dir(exports), "krb")
	share := filepath.Join(filepath.Dir(exports), "share", "krb")
	for _, d := range []string{dir, share} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			return err
		}
	}
	conf := fmt.Sprintf(`[libdefaults]
 default_realm = %[1]s
 dns_lookup_kdc = false
 dns_lookup_realm = false
 rdns = false
 dns_canonicalize_hostname = false
[realms]
 %[1]s = {
  kdc = %[2]s:88
 }
[domain_realm]
 .rstored.test = %[1]s
`, krbRealm, HostAddr)
	kdc := fmt.Sprintf(`[kdcdefaults]
 kdc_listen = %[2]s:88
 kdc_tcp_listen = %[2]s:88
[realms]
 %[1]s = {
  database_name = %[3]s/principal
  key_stash_file = %[3]s/stash
  acl_file = %[3]s/acl
 }
`, krbRealm, HostAddr, dir)
	err := errors.Join(os.WriteFile(filepath.Join(dir, "krb5.conf"), []byte(conf), 0o644),
		os.WriteFile(filepath.Join(share, "krb5.conf"), []byte(conf), 0o644),
		os.WriteFile(filepath.Join(dir, "kdc.conf"), []byte(kdc), 0o644))
	if err != nil {
		return err
	}
	run := func(name string, args ...string) error {
		cmd := exec.Command("/usr/sbin/"+name, args...)
		cmd.Env = append(os.Environ(), krbEnv(dir)...)
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("%s: %w\n%s", name, err, out)
		}
		return nil
	}
	if err := run("kdb5_util", "create", "-s", "-r", krbRealm, "-P", "master"); err != nil {
		return err
	}
	queries := []string{
		"addprinc -pw secret games", "addprinc -pw secret mail", "addprinc -randkey nfs/" + krbServer,
		"addprinc -randkey host/" + krbGuest, "ktadd -k " + dir + "/server.keytab nfs/" + krbServer,
		"ktadd -k " + share + "/guest.keytab host/" + krbGuest,
	}
	for _, host := range more {
		queries = append(queries, "addprinc -randkey nfs/"+host, "ktadd -k "+share+"/"+host+".keytab nfs/"+host)
	}
	for _, q := range queries {
		if err := run("kadmin.local", "-r", krbRealm, "-q", q); err != nil {
			return err
		}
	}
	return nil
}

// StartKDC runs the KDC whose files MakeRealm has made, until stop.
func (r *Run) StartKDC() (stop func(), err error) {
	p, err := r.startKDC(filepath.Join(filepath.Dir(r.Exports), "krb"))
	if err != nil {
		return nil, err
	}
	return func() { _ = p.stop(syscall.SIGKILL) }, nil
}

// startKDC runs the KDC whose files MakeRealm has made.
func (r *Run) startKDC(dir string) (*process, error) {
	return r.start("krb5kdc", r.log, append(append([]string{"env"}, krbEnv(dir)...), "/usr/sbin/krb5kdc", "-n",
		"-r", krbRealm, "-P", filepath.Join(dir, "pid"))...)
}

// kerberosHost runs the KDC, restarts the daemon, and compares what the guest has written.
func kerberosHost(ctx context.Context, r *Run) error {
	dir := filepath.Join(filepath.Dir(r.Exports), "krb")
	kdc, err := r.startKDC(dir)
	if err != nil {
		return err
	}
	defer func() { _ = kdc.stop(syscall.SIGKILL) }()
	if err := r.Tell("kdc"); err != nil {
		return err
	}
	for _, flavor := range []string{"krb5", "krb5i", "krb5p"} {
		if err := r.Await(ctx, flavor); err != nil {
			return err
		}
		file := filepath.Join(r.Exports, flavor, "games")
		info, err := os.Stat(file)
		if err != nil {
			return err
		}
		const games = 5
		if uid := info.Sys().(*syscall.Stat_t).Uid; uid != games || info.Mode().Perm() != 0o600 {
			return fmt.Errorf("%s is of user %d, mode %v", file, uid, info.Mode())
		}
	}
	if err := r.Await(ctx, "written"); err != nil {
		return err
	}
	if err := errors.Join(r.StopDaemon(syscall.SIGKILL), r.StartDaemon(ctx), r.Tell("restarted")); err != nil {
		return err
	}
	switch r.Case.Env["VERS"] {
	case "3":
		err = r.kerberosLocked(ctx)
	case "4.0":
		err = r.kerberosRecall(ctx)
	}
	return errors.Join(err, r.Await(ctx, "done"))
}

// kerberosLocked looks whether the lock of the guest is one of the server.
func (r *Run) kerberosLocked(ctx context.Context) error {
	if err := r.Await(ctx, "locked"); err != nil {
		return err
	}
	out, err := r.CtlOutput("locks", "-o", "json")
	if err == nil && !strings.Contains(out, krbGuest) && !strings.Contains(out, guestAddr(0)) {
		err = fmt.Errorf("no lock of the guest: %s", out)
	}
	return errors.Join(err, r.Tell("lock-seen"))
}

// kerberosRecall changes a file that is delegated to the guest by version 4.0.
func (r *Run) kerberosRecall(ctx context.Context) error {
	if err := r.Await(ctx, "recallable"); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(r.Exports, "krb5i", "delegated"), []byte("two\n"), 0o644); err != nil {
		return err
	}
	n, err := r.counts()
	if err == nil && (n.Events["nfs4_recalls"] == 0 || n.Errors["nfs4_delegations_revoked"] > 0) {
		err = fmt.Errorf("%d recalls, %d delegations taken away", n.Events["nfs4_recalls"],
			n.Errors["nfs4_delegations_revoked"])
	}
	return errors.Join(err, r.Tell("recalled"))
}

// kerberosKnfsd is the Go client on the kernel's NFS server with rpc.svcgssd.
func kerberosKnfsd(version, transport string) Case {
	return Case{
		Name: "krb-knfsd-v" + strings.ReplaceAll(version, ".", "") + "-" + transport, Script: script("krb-knfsd"),
		NotRPC: true, Timeout: 5 * time.Minute,
		Prepare: func(exports string) error {
			if err := kerberosFiles(exports); err != nil {
				return err
			}
			dir := filepath.Dir(exports)
			b, err := os.ReadFile(filepath.Join(dir, "krb", "server.keytab"))
			if err != nil {
				return err
			}
			hosts := guestAddr(0) + " " + krbServer + "\n127.0.0.1 localhost\n"
			return errors.Join(os.WriteFile(filepath.Join(dir, "share", "krb", "server.keytab"), b, 0o600),
				os.WriteFile(filepath.Join(dir, "krb", "hosts"), []byte(hosts), 0o644))
		},
		Host: func(ctx context.Context, r *Run) error { return kerberosCalls(ctx, r, version, transport) },
	}
}

// kerberosCalls has rstorectl store, read and remove files by each flavor, refused where the export
// wants another one.
func kerberosCalls(ctx context.Context, r *Run, version, transport string) error {
	dir := filepath.Join(filepath.Dir(r.Exports), "krb")
	kdc, err := r.startKDC(dir)
	if err != nil {
		return err
	}
	defer func() { _ = kdc.stop(syscall.SIGKILL) }()
	if err := errors.Join(r.Tell("kdc"), r.Await(ctx, "serving")); err != nil {
		return err
	}
	cache := filepath.Join(dir, "cc")
	with := append(krbEnv(dir), "KRB5CCNAME=FILE:"+cache)
	sh := func(line string) error {
		return r.Command(ctx, "env", append(with[:len(with):len(with)], "unshare", "-m", "sh", "-ec",
			"mount --bind "+filepath.Join(dir, "hosts")+" /etc/hosts; "+line)...)
	}
	if err := sh("echo secret | kinit games"); err != nil {
		return err
	}
	src, back := r.path("big"), r.path("back")
	if err := sh("head -c 8388613 /dev/urandom >" + src); err != nil {
		return err
	}
	want, err := sumOf(src)
	if err != nil {
		return err
	}
	ctl := filepath.Join(r.runner.Bin, "rstorectl")
	at := "nfs+" + transport + "://" + krbServer
	root := ""
	if version == "3" {
		root = "/srv"
	}
	for _, flavor := range []string{"krb5", "krb5i"} {
		how := " --nfs-version " + version + " --give-up 20s --sec " + flavor + " "
		file := at + root + "/" + flavor + "/big"
		if err := errors.Join(sh(ctl+" put"+how+src+" "+file), r.Tell(flavor+".stored")); err != nil {
			return err
		}
		if err := r.Await(ctx, flavor+".summed"); err != nil {
			return err
		}
		there, err := os.ReadFile(filepath.Join(r.Share, "sum."+flavor))
		if err != nil || strings.TrimSpace(string(there)) != want {
			return fmt.Errorf("%s: the server has %s instead of %s: %w", flavor, there, want, err)
		}
		if err := sh(ctl + " get" + how + file + " " + back); err != nil {
			return err
		}
		if got, err := sumOf(back); err != nil || got != want {
			return fmt.Errorf("%s: %s instead of %s came back: %w", flavor, got, want, err)
		}
		for _, other := range []string{"sys", "krb5", "krb5i"} {
			how := " --nfs-version " + version + " --give-up 20s --sec " + other + " "
			if other != flavor && sh(ctl+" get"+how+file+" "+back+".no") == nil {
				return fmt.Errorf("an export of %s can be read by %s", flavor, other)
			}
		}
		if err := errors.Join(sh(ctl+" rm"+how+file), os.Remove(back)); err != nil {
			return err
		}
	}
	return r.Tell("done")
}
