package e2e

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"
)

// shell is a program of a test that prints lines and waits for lines.
type shell struct {
	t   *testing.T
	in  io.WriteCloser
	out *bufio.Scanner
}

func newShell(t *testing.T, script string, args ...string) *shell {
	t.Helper()
	c := exec.Command("sh", append([]string{"-c", script, "sh"}, args...)...)
	c.Stderr = os.Stderr
	in, err := c.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := c.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = in.Close()
		_ = c.Process.Kill()
		_ = c.Wait()
	})
	return &shell{t, in, bufio.NewScanner(out)}
}

// next returns the next line that the program prints.
func (s *shell) next() string {
	s.t.Helper()
	got := make(chan string, 1)
	go func() {
		s.out.Scan()
		got <- s.out.Text()
	}()
	select {
	case line := <-got:
		return line
	case <-time.After(time.Minute):
		s.t.Fatal("the program prints nothing")
		return ""
	}
}

// wants ends the test if the program prints another line next.
func (s *shell) wants(line string) {
	s.t.Helper()
	if got := s.next(); got != line {
		s.t.Fatalf("the program says %q, not %q", got, line)
	}
}

// proceed gives the program a line.
func (s *shell) proceed(line ...string) {
	s.t.Helper()
	if _, err := io.WriteString(s.in, strings.Join(line, " ")+"\n"); err != nil {
		s.t.Fatal(err)
	}
}

// TestMountLeaseExpired: the process of a mount stands still for longer than a lease, as on a
// laptop that sleeps, and another mount gets its lock. What the first program then writes does not
// reach the server, and its calls fail until it has closed the file.
func TestMountLeaseExpired(t *testing.T) {
	d := newDaemon(t, "--lease-time", "10s")
	a, b := d.mount("rdma", "vers=4.2"), d.mount("tcp", "vers=4.2")
	first := newShell(t, `exec 9>>"$1"; flock 9; echo locked; read x
		echo first >&9; flock 9 2>/dev/null || echo refused; read x
		exec 9>&-; exec 9>>"$1"; flock 9; echo third >&9; exec 9>&-; echo done`, a+"/f")
	first.wants("locked")
	pid := d.mountState(a).PID
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = syscall.Kill(pid, syscall.SIGCONT) })
	second := newShell(t, `exec 9>>"$1"; flock 9; echo locked; read x; echo second >&9; exec 9>&-; echo done`, b+"/f")
	second.wants("locked")
	if err := syscall.Kill(pid, syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	first.proceed()
	first.wants("refused")
	second.proceed()
	second.wants("done")
	first.proceed()
	first.wants("done")
	for _, dir := range []string{d.export, a, b} {
		if got, err := os.ReadFile(dir + "/f"); err != nil || string(got) != "second\nthird\n" {
			t.Errorf("%q, %v", got, err)
		}
	}
	if s := d.mountState(a); s.State != "ok" || s.Client.Sessions < 2 {
		t.Errorf("%+v", s)
	}
}

// TestMountUpgrade: a program that writes under a lock in a mount does not notice that another
// process of the server takes over. Nothing is reclaimed, and no connection made again.
func TestMountUpgrade(t *testing.T) {
	for _, transport := range []string{"rdma", "tcp"} {
		t.Run(transport, func(t *testing.T) {
			d := newDaemon(t)
			t.Cleanup(func() { _, d.successor = d.serving() })
			dir := d.mount(transport, "vers=4.2")
			p := newShell(t, `exec 9>"$1/lock"; flock 9; echo locked
				while read i; do echo $i >>"$1/f"; sync "$1/f"; echo $i; done`, dir)
			p.wants("locked")
			want := ""
			for i := range 4 {
				p.proceed(fmt.Sprint(i))
				p.wants(fmt.Sprint(i))
				want += fmt.Sprintln(i)
				_, before := d.serving()
				d.takeOver("upgrade")
				if _, after := d.serving(); before == after {
					t.Fatal("nothing took over")
				}
			}
			for _, name := range []string{d.export + "/f", dir + "/f"} {
				if got, err := os.ReadFile(name); err != nil || string(got) != want {
					t.Errorf("%q, %v", got, err)
				}
			}
			if s := d.mountState(dir); s.State != "ok" || s.Client.Connections != 1 || s.Client.Sessions != 1 ||
				s.Client.Reclaimed != 0 {
				t.Errorf("%+v", s)
			}
		})
	}
}

// inSQLite is a program that adds rows to a database in WAL mode, which maps a file of the mount.
const inSQLite = `
import sqlite3, sys
name, who, n = sys.argv[1], sys.argv[2], int(sys.argv[3])
db = sqlite3.connect(name, timeout=120, isolation_level=None)
for i in range(n):
    db.execute("begin immediate")
    last = db.execute("select coalesce(max(i), -1) from t where who = ?", (who,)).fetchone()[0]
    assert last == i - 1, (last, i)
    db.execute("insert into t values (?, ?, ?)", (who, i, bytes(5000)))
    db.execute("commit")
db.close()
`

// TestMountSQLite: three programs write to one database in WAL mode, and the server is killed
// meanwhile. The database is whole and has all rows.
func TestMountSQLite(t *testing.T) {
	python := "/usr/bin/python3"
	if exec.Command(python, "-c", "import sqlite3").Run() != nil {
		t.Skipf("%s has no sqlite3", python)
	}
	const rows = 100
	d := newDaemon(t)
	dir := d.mount("rdma", "vers=4.2")
	// A change of the journal mode does not wait for other programs, whatever the timeout.
	const create = `import sqlite3, sys
db = sqlite3.connect(sys.argv[1], isolation_level=None)
assert db.execute("pragma journal_mode=wal").fetchone()[0] == "wal"
db.execute("create table t (who text, i int, data blob)")`
	if out, err := exec.Command(python, "-c", create, dir+"/db").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	ended := make(chan error, 3)
	for i := range 3 {
		c := exec.Command(python, "-c", inSQLite, dir+"/db", fmt.Sprint(i), fmt.Sprint(rows))
		t.Cleanup(func() {
			if c.Process != nil {
				_ = c.Process.Kill()
			}
		})
		go func() {
			out, err := c.CombinedOutput()
			if err != nil {
				err = fmt.Errorf("%w: %s", err, out)
			}
			ended <- err
		}()
	}
	for end := time.Now().Add(time.Minute); ; time.Sleep(5 * time.Millisecond) {
		if info, err := os.Stat(d.export + "/db-wal"); err == nil && info.Size() > 100_000 {
			break
		}
		if time.Now().After(end) {
			t.Fatal("no rows are written")
		}
	}
	d.stop(syscall.SIGKILL)
	d.start()
	for range 3 {
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
	const check = `import sqlite3, sys
db = sqlite3.connect(sys.argv[1])
print(db.execute("pragma integrity_check").fetchone()[0], db.execute("select count(*) from t").fetchone()[0])`
	out, err := exec.Command(python, "-c", check, d.export+"/db").CombinedOutput()
	if err != nil || string(out) != fmt.Sprintf("ok %d\n", 3*rows) {
		t.Errorf("%v: %s", err, out)
	}
}
