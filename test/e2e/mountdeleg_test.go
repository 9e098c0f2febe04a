package e2e

import (
	"errors"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"
)

// TestMountDelegations: a program writes to a file that its mount has the delegation of, while the
// server is upgraded and killed. What fsync made stable is on the server's disk at every moment,
// nothing else is lost, and the delegation goes on until another mount reads the file.
func TestMountDelegations(t *testing.T) {
	for _, transport := range []string{"rdma", "tcp"} {
		t.Run(transport, func(t *testing.T) {
			d := newDaemon(t)
			t.Cleanup(func() { _, d.successor = d.serving() })
			a, b := d.mount(transport, "vers=4.2,deleg"), d.mount("tcp", "vers=4.2,deleg")
			p := newShell(t, `: >"$1"
				while read what x; do
					case $what in
					open) exec 9>&-; exec 9<>"$1" ;;
					write) echo $x >&9 ;;
					sync) sync "$1" ;;
					esac || exit 1
					echo $what $x
				done`, a+"/f")
			do := func(line string) {
				t.Helper()
				p.proceed(line)
				p.wants(line)
			}
			// A server grants no delegation before it knows that the client answers callbacks.
			for end := time.Now().Add(time.Minute); d.mountState(a).Client.Delegations == 0; {
				do("open it")
				if time.Now().After(end) {
					t.Fatal("the server grants no delegation")
				}
			}
			want := ""
			write := func(x string) {
				t.Helper()
				do("write " + x)
				want += x + "\n"
			}
			write("stable")
			do("sync it")
			write("before-the-upgrade")
			d.takeOver("upgrade")
			if s := d.mountState(a); s.Client.Delegations != 1 || s.Client.Redelegated != 0 || s.Client.Connections != 1 {
				t.Errorf("after the upgrade: %+v", s)
			}
			write("after-the-upgrade")
			do("sync it")
			write("before-the-kill")
			_, d.successor = d.serving()
			d.stop(syscall.SIGKILL)
			stable, err := os.ReadFile(d.export + "/f") // nobody has a lease of the host now
			if err != nil || !strings.HasPrefix(string(stable), strings.TrimSuffix(want, "before-the-kill\n")) {
				t.Errorf("what fsync made stable is not there: %q, %v", stable, err)
			}
			d.start()
			write("after-the-kill")
			do("sync it")
			if s := d.mountState(a); s.Client.Redelegated != 1 || s.Client.LostDelegations != 0 || s.Client.Delegations != 1 {
				t.Errorf("after the kill: %+v", s)
			}
			write("before-the-recall")
			for _, name := range []string{b + "/f", d.export + "/f", a + "/f"} {
				if got, err := os.ReadFile(name); err != nil || string(got) != want {
					t.Errorf("%s: %q instead of %q, %v", name, got, want, err)
				}
			}
			if s := d.mountState(a); s.Client.Recalled == 0 || s.State != "ok" {
				t.Errorf("after the recall: %+v", s)
			}
		})
	}
}

// TestMountSuspended: the process of a mount that has a delegation and data which is not sent
// stands still for longer than a lease. Another mount that wants the file waits until the server
// has revoked the delegation, and changes the file. The data of the first mount is lost: it says so
// by EIO and in its log, and leaves the file as the other mount wrote it. Its programs go on.
func TestMountSuspended(t *testing.T) {
	d := newDaemon(t, "--lease-time", "10s")
	a, b := d.mount("rdma", "vers=4.2,deleg"), d.mount("tcp", "vers=4.2,deleg")
	if err := os.WriteFile(b+"/f", nil, 0o644); err != nil {
		t.Fatal(err)
	}
	f := d.delegatedFile(a, "f")
	pid := d.mountState(a).PID
	if _, err := f.WriteString("dirty\n"); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = syscall.Kill(pid, syscall.SIGCONT) })
	err := os.WriteFile(b+"/f", []byte("another's\n"), 0o644)
	if err := errors.Join(err, syscall.Kill(pid, syscall.SIGCONT)); err != nil {
		t.Fatal(err)
	}
	if err := f.Sync(); !errors.Is(err, syscall.EIO) {
		t.Errorf("fsync of data that is lost: %v", err)
	}
	if got, err := os.ReadFile(b + "/f"); err != nil || string(got) != "another's\n" {
		t.Errorf("%q, %v", got, err)
	}
	_, err = f.WriteAt([]byte("more"), 0)
	if err := errors.Join(err, f.Sync(), f.Close()); err != nil {
		t.Errorf("the file does not work any more: %v", err)
	}
	if got, err := os.ReadFile(b + "/f"); err != nil || string(got) != "moreher's\n" {
		t.Errorf("%q, %v", got, err)
	}
	if s := d.mountState(a); s.State != "ok" || s.Client.LostDelegations != 1 {
		t.Errorf("%+v", s)
	}
}

// delegatedFile opens a file of a mount for reading and writing until the mount has its delegation.
func (d *daemon) delegatedFile(dir, name string) *os.File {
	d.t.Helper()
	for end := time.Now().Add(time.Minute); ; {
		f, err := os.OpenFile(dir+"/"+name, os.O_RDWR|os.O_CREATE, 0o644)
		if err != nil || time.Now().After(end) {
			d.t.Fatalf("the server grants no delegation: %v", err)
		}
		if d.mountState(dir).Client.Delegations > 0 {
			d.t.Cleanup(func() { _ = f.Close() })
			return f
		}
		if err := f.Close(); err != nil {
			d.t.Fatal(err)
		}
	}
}
