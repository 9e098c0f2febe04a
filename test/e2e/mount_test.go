package e2e

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// mount mounts the export by FUSE with the program, and returns where. The test ends with an
// unmount.
func (d *daemon) mount(transport, options string) string {
	d.t.Helper()
	if f, err := os.OpenFile("/dev/fuse", os.O_RDWR, 0); err != nil {
		d.t.Skipf("there is no FUSE here: %v", err)
	} else {
		_ = f.Close()
	}
	dir := d.t.TempDir()
	d.ctl("mount", d.url(transport, ""), dir, "-o", options)
	d.t.Cleanup(func() {
		if _, e, err := d.try(30*time.Second, "umount", dir); err != nil && !strings.Contains(e, "not a mount") {
			d.t.Errorf("umount: %v\n%s", err, e)
			_, _, _ = d.try(30*time.Second, "umount", "--force", dir)
		}
	})
	return dir
}

// mountState is what rstorectl mounts says of a mount.
type mountState struct {
	State  string
	PID    int
	Client struct {
		Connections, Sessions, Reclaimed, Relocked          int
		Delegations, Recalled, Redelegated, LostDelegations int
	}
}

func (d *daemon) mountState(dir string) mountState {
	d.t.Helper()
	var list []mountState
	if err := json.Unmarshal([]byte(d.ctl("mounts", dir, "-o", "json")), &list); err != nil || len(list) != 1 {
		d.t.Fatal(list, err)
	}
	return list[0]
}

// sums are the checksums of the files of a tree, and the targets of its links.
func sums(t *testing.T, dir string) map[string]string {
	t.Helper()
	all := make(map[string]string)
	err := filepath.WalkDir(dir, func(name string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, _ := filepath.Rel(dir, name)
		switch {
		case e.Type()&fs.ModeSymlink != 0:
			all[rel], err = os.Readlink(name)
		case e.Type().IsRegular():
			var f *os.File
			if f, err = os.Open(name); err != nil {
				return err
			}
			h := sha256.New()
			_, err = io.Copy(h, f)
			all[rel] = fmt.Sprintf("%x", h.Sum(nil))
			_ = f.Close()
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func same(t *testing.T, what string, a, b map[string]string) {
	t.Helper()
	if len(a) != len(b) || len(a) == 0 {
		t.Errorf("%s: %d and %d files", what, len(a), len(b))
	}
	for name, sum := range a {
		if b[name] != sum {
			t.Errorf("%s: %s differs", what, name)
		}
	}
}

// TestMountTree: a source tree through a mount has the same content on the server's disk and in
// another mount. git works in it.
func TestMountTree(t *testing.T) {
	d := newDaemon(t)
	a, b := d.mount("rdma", "vers=4.2"), d.mount("tcp", "vers=3")
	source := "../../nfs"
	if out, err := exec.Command("cp", "-a", source, a+"/tree").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	want := sums(t, source)
	same(t, "the server", want, sums(t, d.export+"/tree"))
	same(t, "the mount", want, sums(t, a+"/tree"))
	same(t, "the other mount", want, sums(t, b+"/tree"))
	if _, err := exec.LookPath("git"); err != nil {
		t.Skip("git is missing")
	}
	for _, script := range []string{
		"git init -q -b main && git add . && git -c user.name=a -c user.email=a@b.example commit -q -m one",
		"git clone -q . ../clone && cd ../clone && git fsck --strict && test -z \"$(git status --porcelain)\"",
		"cd ../clone && git gc -q && git checkout -q -b two && git rm -q -r client && git reset -q --hard",
	} {
		c := exec.Command("sh", "-ec", script)
		c.Dir = a + "/tree"
		if out, err := c.CombinedOutput(); err != nil {
			t.Fatalf("%s: %v: %s", script, err, out)
		}
	}
	clone := sums(t, a+"/clone")
	for name, sum := range want {
		if clone[name] != sum {
			t.Errorf("the clone: %s differs", name)
		}
	}
	same(t, "the clone in the other mount", clone, sums(t, b+"/clone"))
	if out := d.ctl("mounts"); !strings.Contains(out, a) || !strings.Contains(out, b) {
		t.Error(out)
	}
}

// TestMountTop: top shows what a program reads in a mount, beside the server and without one.
func TestMountTop(t *testing.T) {
	d := newDaemon(t)
	dir := d.mount("tcp", "")
	if err := os.WriteFile(d.export+"/f", make([]byte, 8<<20), 0o644); err != nil {
		t.Fatal(err)
	}
	read, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		for read.Err() == nil {
			if _, err := exec.Command("dd", "if="+dir+"/f", "of=/dev/null", "bs=1M", "iflag=direct").Output(); err != nil {
				ended <- err
				return
			}
		}
		ended <- nil
	}()
	t.Cleanup(func() { // before the unmount
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	// On a busy machine a sample can find the mount without an answer of its server.
	shown := func(control string) (found, server bool) {
		t.Helper()
		out, e, err := d.try(time.Minute, "--control", control, "top", "--json", "--count", "1")
		if err != nil {
			t.Fatalf("%v\n%s", err, e)
		}
		var v struct {
			State  string
			Mounts []struct {
				Directory, State string
				Read             float64 `json:"read_bytes_per_second"`
			}
		}
		if err := json.Unmarshal([]byte(out), &v); err != nil {
			t.Fatal(err)
		}
		for _, m := range v.Mounts {
			found = found || m.Directory == dir && m.State == "ok" && m.Read > 0
		}
		return found, v.State != "no server"
	}
	for _, control := range []string{d.control, filepath.Join(t.TempDir(), "none")} {
		found, server := shown(control)
		for end := time.Now().Add(time.Minute); !found && time.Now().Before(end); {
			found, server = shown(control)
		}
		if !found || server != (control == d.control) {
			t.Errorf("%s: the mount is shown: %v, the server: %v", control, found, server)
		}
	}
}

// TestMountBusy: a directory in use stays mounted, and its users are named. A mount whose process
// was killed is cleaned up.
func TestMountBusy(t *testing.T) {
	d := newDaemon(t)
	dir := d.mount("rdma", "")
	f, err := os.Create(dir + "/f")
	if err != nil {
		t.Fatal(err)
	}
	_, said, err := d.try(20*time.Second, "umount", dir)
	if err == nil || !strings.Contains(said, fmt.Sprint(os.Getpid())) {
		t.Errorf("%v: %s", err, said)
	}
	_ = f.Close()
	if _, said, err := d.try(20*time.Second, "mount", d.url("rdma", ""), dir); err == nil ||
		!strings.Contains(said, "already mounted") {
		t.Errorf("%v: %s", err, said)
	}
	if err := syscall.Kill(d.mountState(dir).PID, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(time.Minute); d.mountState(dir).State != "dead"; time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the mount is not dead")
		}
	}
	d.ctl("umount", dir)
	d.ctl("mount", d.url("tcp", ""), dir)
	if b, err := os.ReadFile(dir + "/f"); err != nil || len(b) > 0 {
		t.Error(b, err)
	}
}

// asNobody mounts $2 at $3 as an ordinary user, by fusermount3, with the program $1, and uses the
// mount. /dev/fuse is one that everybody may open, as most hosts have it.
const asNobody = `
mount --make-rprivate /
mount -t tmpfs -o dev,mode=755 none "$4"
mknod -m 666 "$4/fuse" c 10 229
chmod 666 "$4/fuse"
mount --bind "$4/fuse" /dev/fuse
exec setpriv --reuid 65534 --regid 65534 --clear-groups env XDG_RUNTIME_DIR= sh -ec '
"$1" mount "$2" "$3"
cat "$3/from"
echo back >"$3/to"
"$1" mounts "$3" | grep -q "NFS 4.2"
"$1" umount "$3"
test ! -e "$3/from"' sh "$@"
`

// TestMountOrdinaryUser: a user without privileges mounts by fusermount3, over RDMA without a
// device.
func TestMountOrdinaryUser(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("only root makes the namespace of this test")
	}
	for _, program := range []string{"fusermount3", "setpriv", "unshare"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Skip(err)
		}
	}
	if f, err := os.OpenFile("/dev/fuse", os.O_RDWR, 0); err != nil {
		t.Skipf("there is no FUSE here: %v", err)
	} else {
		_ = f.Close()
	}
	d := newDaemon(t)
	dir := t.TempDir()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(os.Chmod(filepath.Dir(dir), 0o755))
	program, mnt, dev := dir+"/rstorectl", dir+"/mnt", dir+"/dev"
	b, err := os.ReadFile(filepath.Join(binDir, "rstorectl"))
	must(err)
	must(os.WriteFile(program, b, 0o755))
	must(os.Mkdir(dev, 0o755))
	must(os.Mkdir(mnt, 0o755))
	must(os.Chown(mnt, 65534, 65534))
	must(os.Chmod(d.export, 0o777))
	must(os.WriteFile(d.export+"/from", []byte("content"), 0o644))
	out, err := exec.Command("unshare", "-m", "sh", "-ec", asNobody, "sh", program, d.url("rdma", ""), mnt, dev).
		CombinedOutput()
	if err != nil || string(out) != "content" {
		t.Fatalf("%v: %s", err, out)
	}
	if b, err := os.ReadFile(d.export + "/to"); err != nil || string(b) != "back\n" {
		t.Errorf("%q, %v", b, err)
	}
	info, err := os.Stat(d.export + "/to")
	must(err)
	if uid := info.Sys().(*syscall.Stat_t).Uid; uid != 65534 {
		t.Errorf("the file belongs to %d", uid)
	}
}

// TestMountErrors: what cannot be mounted is explained.
func TestMountErrors(t *testing.T) {
	d := newDaemon(t)
	dir := t.TempDir()
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{d.url("tcp", "absent"), dir}, "No such file or directory"},
		{[]string{"nfs+tcp://" + d.addr.String() + ":9/data", dir}, "Connection refused"},
		{[]string{d.url("tcp", ""), dir + "/absent"}, "no such file"},
		{[]string{d.url("tcp", ""), dir, "-o", "nonsense"}, "unknown mount option"},
	} {
		if _, said, err := d.try(time.Minute, append([]string{"mount"}, c.args...)...); err == nil ||
			!strings.Contains(said, c.want) {
			t.Errorf("%v: %v: %s", c.args, err, said)
		}
	}
}
