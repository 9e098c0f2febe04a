package e2e

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// TestMountAutofs: automount mounts with a copy of the program as mount.rstored, by both spellings of
// a location, and unmounts when it ends. Processes and mounts are in namespaces of their own.
func TestMountAutofs(t *testing.T) {
	if _, err := exec.LookPath("automount"); err != nil {
		t.Skip("automount is missing")
	}
	d := newDaemon(t)
	d.mount("tcp", "") // it skips the test where there is no FUSE
	dir := t.TempDir()
	program, err := os.ReadFile(filepath.Join(binDir, "rstorectl"))
	err = errors.Join(err, os.Mkdir(dir+"/sbin", 0o755), os.WriteFile(dir+"/sbin/mount.rstored", program, 0o755),
		os.WriteFile(dir+"/master", []byte(dir+"/auto file:"+dir+"/map --timeout=600\n"), 0o644),
		os.WriteFile(dir+"/map", []byte("url -fstype=rstored :nfs+rdma://"+d.addr.String()+"/data\n"+
			"option -fstype=rstored,proto=tcp,vers=4.2 "+d.addr.String()+":/data\n"), 0o644),
		os.WriteFile(d.export+"/f", []byte("text\n"), 0o644))
	if err != nil {
		t.Fatal(err)
	}
	const script = `
		cd "$1"
		mount -t overlay -o "lowerdir=$1/sbin:/usr/sbin" overlay /usr/sbin
		setsid automount --foreground --verbose --dont-check-daemon --pid-file "$1/pid" "$1/master" 2>"$1/log" &
		until mountpoint -q auto; do sleep 0.1; done
		cat auto/url/f auto/option/f
		grep -c " $1/auto/.* fuse.rstored " /proc/self/mountinfo
		kill $!
		wait $! || true
		! mountpoint -q auto`
	out, err := exec.Command("timeout", "--kill-after=5", "60", "unshare", "--mount", "--propagation=slave", "--pid",
		"--fork", "--kill-child", "--mount-proc", "sh", "-ec", script, "sh", dir).CombinedOutput()
	if err != nil || string(out) != "text\ntext\n2\n" {
		log, _ := os.ReadFile(dir + "/log")
		t.Errorf("%v: %s\n%s", err, out, log)
	}
}
