package ops

import (
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestImage builds both images by make, and runs them as docs/install.md and docs/kubernetes.md
// say: without a capability, and with those of the unit. The first has the programs for RDMA
// devices too, which find none here.
func TestImage(t *testing.T) {
	need(t, "podman", "unshare", "setpriv")
	dir, host := t.TempDir(), fmt.Sprintf("127.%d.%d.%d", 77+rand.IntN(100), rand.IntN(256), 1+rand.IntN(254))
	bin := binaries(t)
	// What is here of images and containers stays as it is.
	podman := fmt.Sprintf("podman --root %s/images --runroot %s/run --storage-driver vfs --cgroup-manager cgroupfs", dir,
		dir)
	t.Cleanup(func() {
		_, _ = exec.Command("sh", "-c", podman+" rm -fa; chmod -R u+w "+dir+"/images").CombinedOutput()
	})
	for _, args := range [][]string{
		{"image", "IMAGE=rstored-static", "RDMA=no"},
		{"image", "IMAGE=rstored-test", "RDMA=yes", "LIBRARIES=" + libraries(t)},
		{"image-csi", "IMAGECSI=rstored-csi-test"},
	} {
		cmd := exec.Command("make", append(args, "ENGINE="+podman)...)
		cmd.Dir = root
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("make %q: %v\n%s", args, err, out)
		}
	}
	for _, d := range []string{"one", "many"} {
		if err := os.Mkdir(filepath.Join(dir, d), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(filepath.Join(dir, d), 0o777); err != nil {
			t.Fatal(err)
		}
	}
	for _, d := range []string{dir, filepath.Dir(dir)} { // a user that is not root reads what is there
		if err := os.Chmod(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	script := `
D=$1 A=$2 BIN=$3; shift 3
P="$*"
run() { # NAME DIRECTORY EXPORT [OPTION]...: a service that is ready
	name=$1 data=$2 export=$3; shift 3
	# The defaults are more than this host may allow, and health checks by timer need systemd.
	$P run -d --name $name --network host --cgroups=disabled --ulimit nofile=4096:4096 --ulimit nproc=1024:1024 \
		--no-healthcheck --cap-drop all "$@" \
		-v $data:/srv/data -v state:/var/lib/rstored rstored-test \
		--export "$export" --rdma-listen $A:20049 --tcp-listen $A:2049
	for i in $(seq 300); do ! $P exec $name rstorectl status >/dev/null 2>&1 || break; sleep 0.1; done
	$P exec $name rstorectl status
}
end() { # NAME: ends well when it is asked to
	$P stop -t 20 $1
	[ "$($P inspect --format '{{.State.ExitCode}}' $1)" = 0 ] || { $P logs $1; echo "exit status"; exit 1; }
	$P rm $1
}
copy() { # as a user: to and from both carriers
	for c in rdma tcp; do
		$U $BIN/rstorectl put $D/file nfs+$c://$A/data/$c
		$U $BIN/rstorectl cat nfs+$c://$A/data/$c | cmp - $D/file
	done
}
head -c 300000 /dev/urandom >$D/file
chmod 644 $D/file
$P inspect --format '{{.HealthCheck.Test}} {{.Config.StopSignal}}' rstored-test |
	grep -F '[CMD /usr/bin/rstorectl status] SIGTERM'

U="setpriv --reuid 1000 --regid 1001 --clear-groups"
run one $D/one '/srv/data(rw,all_squash,anonuid=0,anongid=0)'
copy
$P cp one:/var/lib/rstored/handle.key $D/key
end one
[ "$(stat -c %u $D/one/rdma)" = 0 ] && cmp $D/file $D/one/rdma

run many $D/many '/srv/data(rw,no_root_squash)' \
	--cap-add dac_read_search,dac_override,setuid,setgid,chown,fowner,fsetid,lease,mknod,net_admin --read-only
copy
$P cp many:/var/lib/rstored/handle.key - | tar -xO | cmp - $D/key
end many
[ "$(stat -c %u:%g $D/many/rdma)" = 1000:1001 ]

once() { # IMAGE [ARGUMENT]...: what a program prints
	$P run --rm --cgroups=disabled --ulimit nofile=4096:4096 --ulimit nproc=1024:1024 --network none "$@"
}
case "$(once rstored-static version)" in *rdma-core) echo "more than the static programs"; exit 1 ;; esac
once rstored-test version | grep 'rdma-core$'
case "$(once --env RSTORED_PROGRAM=static rstored-test version)" in
*rdma-core) echo "not the static program"; exit 1 ;;
esac
[ "$(once --entrypoint /usr/bin/rstorectl rstored-test device list)" = "the kernel has no RDMA device" ] ||
	[ -e /sys/class/infiniband ]
# The libraries that the programs open are there, with what they need.
case $(uname -m) in x86_64) ld=/lib64/ld-linux-x86-64.so.2 ;; aarch64) ld=/lib/ld-linux-aarch64.so.1 ;; esac
once --entrypoint $ld rstored-test --list /usr/lib/$(uname -m)-linux-gnu/librdmacm.so.1 | grep libibverbs.so.1

once --entrypoint /usr/bin/rstorectl rstored-csi-test version
once rstored-csi-test --version
$P volume rm state
`
	// In a mount namespace that has one hierarchy of control groups: what has both is not for crun.
	cmd := exec.Command("unshare", "-m", "--propagation", "private", "sh", "-ec",
		`umount -R /sys/fs/cgroup 2>/dev/null || :; mount -t cgroup2 cgroup2 /sys/fs/cgroup; exec bash -eo pipefail -c `+
			`"$0" bash "$@"`,
		script, dir, host, bin, podman)
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "rstored-csi ") {
		t.Errorf("%v\n%s", err, out)
	}
}
