package ops

import (
	"bytes"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// domain is a domain controller of Active Directory, by Samba, in namespaces of its own: nobody else
// sees its ports, its files in /etc and /var, and its processes. The server has the names dc, server,
// fs and fs2 there.
type domain struct {
	t   *testing.T
	dir string
	pid string // of its first process, here
}

const (
	adPassword = "Secret.1word"
	adAdmin    = "Passw0rd.admin"
)

// startDomain makes the domain AD.TEST and starts its controller.
func startDomain(t *testing.T) *domain {
	t.Helper()
	need(t, "samba", "samba-tool", "adcli", "msktutil", "ldbmodify", "kinit", "unshare", "nsenter")
	d := &domain{t: t, dir: t.TempDir()}
	for name, text := range map[string]string{
		"resolv.conf": "nameserver 127.0.0.1\n",
		"hosts": "127.0.0.1 localhost\n127.0.0.1 dc.ad.test dc\n127.0.0.2 server.ad.test server\n" +
			"127.0.0.2 fs.ad.test fs\n127.0.0.2 fs2.ad.test fs2\n",
		"krb5.conf": "[libdefaults]\n default_realm = AD.TEST\n rdns = false\n[realms]\n AD.TEST = {\n" +
			"  kdc = dc.ad.test\n }\n",
		"start": `set -e
mount --make-rprivate /
for f in resolv.conf hosts krb5.conf; do touch /etc/$f; mount --bind ` + d.dir + `/$f /etc/$f; done
for d in /etc/samba /var/lib/samba /var/cache/samba /var/log/samba /run/samba; do
	mkdir -p $d ` + d.dir + `/own$d
	mount --bind ` + d.dir + `/own$d $d
done
mkdir -p /var/lib/samba/private
ip link set lo up
hostname dc
samba-tool domain provision --realm=AD.TEST --domain=ADTEST --server-role=dc --dns-backend=SAMBA_INTERNAL \
	--adminpass=` + adAdmin + ` --host-name=dc --host-ip=127.0.0.1 \
	--option="interfaces=lo" --option="bind interfaces only=yes"
exec samba -i
`,
	} {
		if err := os.WriteFile(filepath.Join(d.dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	var out bytes.Buffer
	cmd := exec.Command("unshare", "--fork", "--kill-child", "--pid", "--mount-proc", "--net", "--mount", "--uts",
		"sh", filepath.Join(d.dir, "start"))
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	t.Cleanup(func() {
		_ = cmd.Process.Kill() // and with it all processes of the namespace
		<-ended
	})
	for deadline := time.Now().Add(5 * time.Minute); ; time.Sleep(200 * time.Millisecond) {
		if d.pid == "" {
			b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/task/%[1]d/children", cmd.Process.Pid))
			d.pid = strings.TrimSpace(string(b))
		} else if _, err := d.try("echo " + adAdmin + " | kinit -c cc.none Administrator"); err == nil {
			return d
		}
		select {
		case err := <-ended:
			ended <- err
			t.Fatalf("the domain controller: %v\n%s", err, out.String())
		default:
		}
		if time.Now().After(deadline) {
			t.Fatalf("the KDC of the domain gives no ticket\n%s", out.String())
		}
	}
}

// try runs a script beside the domain controller, in a directory of its own.
func (d *domain) try(script string) (string, error) {
	cmd := exec.Command("nsenter", "-t", d.pid, "-p", "-n", "-m", "-u", "sh", "-c", "cd "+d.dir+" && "+script)
	cmd.Env = append(os.Environ(), "LC_ALL=C", "KRB5_CONFIG=/etc/krb5.conf", "ADPASS="+adPassword)
	out, err := cmd.CombinedOutput()
	return strings.TrimSpace(string(out)), err
}

// run is try for what has to work.
func (d *domain) run(script string) string {
	d.t.Helper()
	out, err := d.try(script)
	if err != nil {
		d.t.Fatalf("%s: %v\n%s", script, err, out)
	}
	return out
}

// login gets a ticket by kinit, and names the cache.
func (d *domain) login(cache, name string) string {
	d.t.Helper()
	d.run("echo $ADPASS | kinit -c " + cache + " " + name)
	return cache
}

// server starts rstored with a keytab; stop ends it. The log is in the file log.
func (d *domain) server(keytab, more string) (stop func()) {
	d.t.Helper()
	text := fmt.Sprintf(`state_dir: %[1]s/state
control: %[1]s/c.sock
tcp_listen: ["127.0.0.2:2049"]
rdma_listen: ["127.0.0.2:20049"]
kerberos:
  keytab: %[1]s/%[2]s
  users: ["alice@AD.TEST=games", "host/client.ad.test@AD.TEST=games"]
%[3]sexports:
  - path: %[1]s/data
    pseudo: /data
    clients: [{cidr: "*", sec: [krb5p, krb5i, krb5]}]
`, d.dir, keytab, more)
	if err := os.WriteFile(filepath.Join(d.dir, "rstored.yaml"), []byte(text), 0o600); err != nil {
		d.t.Fatal(err)
	}
	cmd := exec.Command("nsenter", "-t", d.pid, "-p", "-n", "-m", "-u", "sh", "-c",
		"cd "+d.dir+" && echo $$ >pid && exec bin/rstored --config rstored.yaml")
	log, err := os.Create(filepath.Join(d.dir, "log"))
	if err != nil {
		d.t.Fatal(err)
	}
	defer log.Close()
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		d.t.Fatal(err)
	}
	for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(50 * time.Millisecond) {
		if strings.Contains(d.log(), "rstored is running") {
			break
		}
		if time.Now().After(deadline) {
			d.t.Fatalf("rstored does not start:\n%s", d.log())
		}
	}
	return func() {
		d.run("kill $(cat pid)")
		if err := cmd.Wait(); err != nil {
			d.t.Errorf("rstored: %v\n%s", err, d.log())
		}
	}
}

func (d *domain) log() string {
	b, _ := os.ReadFile(filepath.Join(d.dir, "log"))
	return string(b)
}

// TestActiveDirectory: the ways of docs/kerberos.md to a keytab of a domain, and clients with tickets
// of its users, by each flavor and transport.
func TestActiveDirectory(t *testing.T) {
	d := startDomain(t)
	bin := binaries(t)
	const games = 5
	data := make([]byte, 2<<20+77)
	_, _ = rand.Read(data)
	err := errors.Join(os.Symlink(bin, filepath.Join(d.dir, "bin")), os.Mkdir(filepath.Join(d.dir, "data"), 0o777),
		os.Chmod(filepath.Join(d.dir, "data"), 0o777), os.WriteFile(filepath.Join(d.dir, "data", "file"), data, 0o644))
	if err != nil {
		t.Fatal(err)
	}
	d.run(`samba-tool user create alice $ADPASS && samba-tool computer create mail &&
		samba-tool user setpassword 'mail$' --newpassword=$ADPASS`)
	// owner writes a file by a cache, and returns who owns it then.
	owner := func(cache, url string) string {
		t.Helper()
		_, _ = d.try("rm -f data/new")
		out, err := d.try("KRB5CCNAME=" + cache + " bin/rstorectl put --sec krb5p hosts " + url + "/data/new")
		if err != nil {
			return out
		}
		return d.run("stat -c %u data/new")
	}
	const (
		tcp       = "nfs+tcp://server.ad.test"
		rdma      = "nfs+rdma://server.ad.test"
		anonymous = "65534"
	)

	t.Run("RC4", func(t *testing.T) {
		// A new account has no encryption types, and the export of a service then only the key of RC4.
		d.run(`samba-tool user create nfs-server --random-password &&
			samba-tool spn add nfs/server.ad.test nfs-server &&
			samba-tool domain exportkeytab rc4.keytab --principal=nfs/server.ad.test`)
		if out := d.run("klist -ek rc4.keytab"); !strings.Contains(out, "arcfour") || strings.Contains(out, "aes") {
			t.Errorf("the keytab:\n%s", out)
		}
		stop := d.server("rc4.keytab", "")
		got := owner(d.login("cc.first", "alice"), tcp)
		stop()
		if !strings.Contains(got, "permission denied") || !strings.Contains(d.log(), "arcfour-hmac") {
			t.Errorf("%s\nlog:\n%s", got, d.log())
		}
		stop = d.server("rc4.keytab", "  rc4: true\n")
		got = owner("cc.first", tcp)
		stop()
		if got != fmt.Sprint(games) {
			t.Errorf("with kerberos.rc4: %s\nlog:\n%s", got, d.log())
		}
	})

	d.run("net ads enctypes set nfs-server 24 -U Administrator%" + adAdmin +
		" && samba-tool domain exportkeytab server.keytab --principal=nfs/server.ad.test")
	d.login("cc.alice", "alice")
	stop := d.server("server.keytab", "  require_pac: true\n")
	running := true
	defer func() {
		if running {
			stop()
		}
	}()
	flavors := func(t *testing.T, urls ...string) {
		t.Helper()
		for _, url := range urls {
			for _, sec := range []string{"krb5", "krb5i", "krb5p"} {
				out, err := d.try(fmt.Sprintf("export KRB5CCNAME=cc.alice && rm -f got data/put && "+
					"bin/rstorectl get --sec %[1]s %[2]s/data/file got && cmp got data/file && "+
					"bin/rstorectl put --sec %[1]s got %[2]s/data/put && cmp data/put data/file && stat -c owner=%%u data/put",
					sec, url))
				if err != nil || !strings.Contains(out, fmt.Sprint("owner=", games)) {
					t.Errorf("%s, %s: %v\n%s\nlog:\n%s", url, sec, err, out, d.log())
				}
			}
		}
	}
	t.Run("flavors", func(t *testing.T) { flavors(t, tcp, rdma) })

	t.Run("names", func(t *testing.T) {
		// The names of users and of hosts have no case in a domain, and a user has a second name (UPN).
		for what, cache := range map[string]string{
			"another case":  d.login("cc.case", "Alice"),
			"the UPN":       d.login("cc.upn", "-E alice@ad.test"),
			"the same name": "cc.alice",
		} {
			if got := owner(cache, tcp); got != fmt.Sprint(games) {
				t.Errorf("%s: %s\nlog:\n%s", what, got, d.log())
			}
		}
		if got := owner("cc.alice", "nfs+tcp://SERVER.ad.test"); got != fmt.Sprint(games) {
			t.Errorf("the server in another case: %s\nlog:\n%s", got, d.log())
		}
	})

	t.Run("another user's name", func(t *testing.T) {
		// A computer mail$ gets tickets as mail, which is a user of the host of the server.
		if got := owner(d.login("cc.mail", "mail"), tcp); got != anonymous {
			t.Errorf("the computer mail$ writes as user %s", got)
		}
		got := owner(d.login("cc.nopac", "--no-request-pac mail"), tcp)
		if !strings.Contains(got, "permission denied") || !strings.Contains(d.log(), "kerberos.require_pac") {
			t.Errorf("the computer mail$ without a PAC: %s", got)
		}
	})

	t.Run("a machine's name", func(t *testing.T) {
		// The second name of an account can be that of a machine.
		ldif := "dn: CN=ops,CN=Users,DC=ad,DC=test\nchangetype: modify\nreplace: userPrincipalName\n" +
			"userPrincipalName: host/client.ad.test@ad.test\n"
		if err := os.WriteFile(filepath.Join(d.dir, "upn"), []byte(ldif), 0o600); err != nil {
			t.Fatal(err)
		}
		d.run("samba-tool user create ops $ADPASS && ldbmodify -H /var/lib/samba/private/sam.ldb upn >/dev/null")
		cache := d.login("cc.ops", "host/client.ad.test")
		if out := d.run("klist -c " + cache); !strings.Contains(out, "principal: host/client.ad.test@AD.TEST") {
			t.Fatalf("the ticket is of another name:\n%s", out)
		}
		if got := owner(cache, tcp); got != anonymous {
			t.Errorf("the user ops writes as user %s\nlog:\n%s", got, d.log())
		}
	})

	t.Run("many groups", func(t *testing.T) {
		var ldif strings.Builder
		const groups = 400
		for i := range groups {
			fmt.Fprintf(&ldif, "dn: CN=group%d,CN=Users,DC=ad,DC=test\nchangetype: add\nobjectClass: group\n"+
				"sAMAccountName: group%[1]d\nmember: CN=alice,CN=Users,DC=ad,DC=test\n\n", i)
		}
		if err := os.WriteFile(filepath.Join(d.dir, "groups"), []byte(ldif.String()), 0o600); err != nil {
			t.Fatal(err)
		}
		d.run("ldbmodify -H /var/lib/samba/private/sam.ldb groups >/dev/null")
		d.login("cc.alice", "alice")
		d.run("KRB5CCNAME=cc.alice kvno -q nfs/server.ad.test")
		if info, err := os.Stat(filepath.Join(d.dir, "cc.alice")); err != nil || info.Size() < 2*4*groups {
			t.Errorf("the tickets have no PAC with all groups: %v, %v", info.Size(), err)
		}
		flavors(t, tcp, rdma)
	})

	t.Run("changed key", func(t *testing.T) {
		d.run("samba-tool user setpassword nfs-server --newpassword=Another.1word")
		d.login("cc.alice", "alice")
		const why = "has key version 3, and the keytab has 2"
		got := owner("cc.alice", tcp)
		// The log has one refusal of a ticket in ten seconds.
		for deadline := time.Now().Add(15 * time.Second); !strings.Contains(d.log(), why) && time.Now().Before(deadline); {
			time.Sleep(time.Second)
			got = owner("cc.alice", tcp)
		}
		if !strings.Contains(got, "permission denied") || !strings.Contains(d.log(), why) {
			t.Errorf("%s\nlog:\n%s", got, d.log())
		}
		d.run("samba-tool domain exportkeytab server.keytab --principal=nfs/server.ad.test")
		if got := owner("cc.alice", rdma); got != fmt.Sprint(games) {
			t.Errorf("with the new key: %s\nlog:\n%s", got, d.log())
		}
	})
	running = false
	stop()

	for name, c := range map[string]struct{ join, host string }{
		"adcli": {"echo " + adAdmin + " | adcli join --domain=ad.test --domain-controller=dc.ad.test " +
			"--host-fqdn=fs.ad.test --computer-name=FS --service-name=nfs --host-keytab=adcli.keytab " +
			"-U Administrator --stdin-password", "fs.ad.test"},
		"msktutil": {"echo " + adAdmin + " | kinit -c cc.admin Administrator && KRB5CCNAME=cc.admin msktutil create " +
			"--server dc.ad.test --computer-name fs2 --hostname fs2.ad.test --service nfs --keytab msktutil.keytab " +
			"--enctypes 0x18 --no-reverse-lookups", "fs2.ad.test"},
	} {
		t.Run(name, func(t *testing.T) {
			d.run(c.join)
			stop := d.server(name+".keytab", "")
			defer stop()
			flavors(t, "nfs+tcp://"+c.host, "nfs+rdma://"+c.host)
		})
	}
}
