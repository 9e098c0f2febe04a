package e2e

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// writing appends parts of $1 to $2/f, each with an fsync, until the file $4 exists, and prints how
// many. $2/lock is open meanwhile, and locked where $3 is set.
const writing = `
exec 9>"$2/lock"
[ -z "$3" ] || flock 9
i=0
while [ ! -e "$4" ]; do
	dd if="$1" of="$2/f" bs=50000 count=1 skip=$((i % 60)) seek=$i conv=notrunc,fsync status=none
	i=$((i + 1))
done
echo $i
`

// TestMountServerKilled: the server is killed while a program writes, opens and locks held. All
// that fsync acknowledged is there at the end, and the mount goes on with its opens and locks. The
// program is a process of its own: a child of this test that shares an open file of the mount
// closes it before it becomes the server, and would wait for itself.
func TestMountServerKilled(t *testing.T) {
	const part, parts = 50_000, 60
	want := bytes.Repeat([]byte("0123456789abcdefg"), parts*part/17+1)[:parts*part]
	source := filepath.Join(t.TempDir(), "source")
	if err := os.WriteFile(source, want, 0o644); err != nil {
		t.Fatal(err)
	}
	for _, version := range []string{"3", "4.2"} {
		for _, transport := range []string{"rdma", "tcp"} {
			t.Run(transport+" "+version, func(t *testing.T) {
				d := newDaemon(t)
				dir := d.mount(transport, "vers="+version)
				lock := ""
				if version == "4.2" {
					lock = "lock"
				}
				stop := filepath.Join(t.TempDir(), "stop")
				c := exec.Command("sh", "-ec", writing, "sh", source, dir, lock, stop)
				var said bytes.Buffer
				c.Stdout, c.Stderr = &said, &said
				if err := c.Start(); err != nil {
					t.Fatal(err)
				}
				ended := make(chan error, 1)
				go func() { ended <- c.Wait() }()
				t.Cleanup(func() { _ = c.Process.Kill() })
				size := func() int64 {
					if info, err := os.Stat(d.export + "/f"); err == nil {
						return info.Size()
					}
					return 0
				}
				// grows waits until the server's disk has more parts than in a file of a size.
				grows := func(from int64) {
					t.Helper()
					for end := time.Now().Add(time.Minute); size() < from+4*part; time.Sleep(5 * time.Millisecond) {
						select {
						case err := <-ended:
							t.Fatalf("the program ended: %v: %s", err, &said)
						default:
						}
						if time.Now().After(end) {
							t.Fatalf("the file stays at %d bytes", size())
						}
					}
				}
				grows(0)
				for range 2 {
					d.stop(syscall.SIGKILL)
					at := size()
					d.start()
					grows(at)
				}
				if err := os.WriteFile(stop, nil, 0o600); err != nil {
					t.Fatal(err)
				}
				if err := <-ended; err != nil {
					t.Fatalf("%v: %s", err, &said)
				}
				n, err := strconv.Atoi(strings.TrimSpace(said.String()))
				if err != nil {
					t.Fatal(err)
				}
				want := bytes.Repeat(want, n/parts+1)[:n*part]
				for _, name := range []string{dir + "/f", d.export + "/f"} {
					if got, err := os.ReadFile(name); err != nil || !bytes.Equal(got, want) {
						t.Errorf("%s: %d bytes, want %d, %v", name, len(got), len(want), err)
					}
				}
				s := d.mountState(dir)
				if s.State != "ok" || s.Client.Connections < 3 {
					t.Errorf("%+v", s)
				}
				if lock != "" && (s.Client.Reclaimed == 0 || s.Client.Relocked == 0) {
					t.Errorf("opens and locks were not reclaimed: %+v", s.Client)
				}
			})
		}
	}
}

// TestMountServerAway: with a server that is away a signal ends a call, soft ends it with EIO, and
// umount does not wait.
func TestMountServerAway(t *testing.T) {
	d := newDaemon(t)
	hard, soft := d.mount("rdma", ""), d.mount("tcp", "soft,timeo=10,retrans=0")
	for _, dir := range []string{hard, soft} {
		if _, err := os.ReadDir(dir); err != nil {
			t.Fatal(err)
		}
	}
	d.stop(syscall.SIGKILL)
	if _, err := os.Stat(soft + "/absent"); !errors.Is(err, syscall.EIO) {
		t.Errorf("soft: %v", err)
	}
	c := exec.Command("cat", hard+"/absent")
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	time.Sleep(300 * time.Millisecond)
	begin := time.Now()
	_ = c.Process.Signal(syscall.SIGTERM)
	if err := c.Wait(); err == nil || time.Since(begin) > time.Minute {
		t.Errorf("a signal ended the call after %v: %v", time.Since(begin), err)
	}
	if s := d.mountState(hard); s.State != "waiting" {
		t.Error(s.State)
	}
	begin = time.Now()
	d.ctl("umount", hard)
	d.ctl("umount", "--force", soft)
	if took := time.Since(begin); took > time.Minute {
		t.Errorf("umount took %v", took)
	}
	d.start()
}
