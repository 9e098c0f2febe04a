package ops

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	tools "github.com/rstored/rstored/test/csi"
)

// program starts a program that ends with the test, well.
func program(t *testing.T, name string, args ...string) {
	t.Helper()
	cmd := exec.Command(name, args...)
	var log bytes.Buffer
	cmd.Stdout, cmd.Stderr = &log, &log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		if err := cmd.Wait(); err != nil || t.Failed() {
			t.Errorf("%s: %v\n%s", filepath.Base(name), err, log.String())
		}
	})
}

// until waits for something that becomes true soon.
func until(t *testing.T, what string, f func() bool) {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); !f(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("waited in vain for %s", what)
		}
	}
}

// TestCSI: what Kubernetes asks of the driver, by csi-sanity, with the controller's own NFS over
// TCP and over RDMA, and what it must not do. Mounting needs a kernel with NFS: the case csi of
// test/guest does that.
func TestCSI(t *testing.T) {
	need(t, "go")
	dir, host := t.TempDir(), fmt.Sprintf("127.%d.%d.%d", 77+rand.IntN(100), rand.IntN(256), 1+rand.IntN(254))
	bin := binaries(t)
	if err := tools.Tools(t.Context(), root, dir); err != nil {
		t.Fatal(err)
	}
	export, control := filepath.Join(dir, "export"), filepath.Join(dir, "c.sock")
	for _, d := range []string{"export", "export/v", "ro", "squashed"} {
		if err := os.Mkdir(filepath.Join(dir, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	program(t, filepath.Join(bin, "rstored"), "--state-dir", filepath.Join(dir, "state"), "--control", control,
		"--log-level", "error",
		"--export", export+"=/data(rw,no_root_squash)", "--export", filepath.Join(dir, "ro")+"=/ro(ro,no_root_squash)",
		"--export", filepath.Join(dir, "squashed")+"=/squashed(rw,root_squash)",
		"--rdma-listen", host+":20049", "--tcp-listen", host+":2049")
	until(t, "rstored", func() bool {
		return exec.Command(filepath.Join(bin, "rstorectl"), "--control", control, "status").Run() == nil
	})
	socket := filepath.Join(dir, "csi.sock")
	program(t, filepath.Join(dir, "rstored-csi"), "--endpoint", "unix://"+socket, "--controller", "--node", "--node-id",
		"here", "--address", "127.0.0.1")
	until(t, "rstored-csi", func() bool { _, err := os.Stat(socket); return err == nil })

	for _, transport := range []string{"tcp", "rdma"} {
		t.Run("sanity/"+transport, func(t *testing.T) {
			class := filepath.Join(t.TempDir(), "class")
			if err := os.WriteFile(class, []byte("server: "+host+"\nshare: /data/v\ncontrollerTransport: "+transport+"\n"),
				0o600); err != nil {
				t.Fatal(err)
			}
			// Those that mount are left out.
			out := run(t, dir, nil, filepath.Join(dir, "csi-sanity"), "--csi.endpoint", "unix://"+socket,
				"--csi.testvolumeparameters", class,
				"--csi.mountdir", filepath.Join(dir, "mount"), "--csi.stagingdir", filepath.Join(dir, "stage"), "--ginkgo.no-color",
				"--ginkgo.skip", `Node Service (should work|should be idempotent|NodeUnpublishVolume should remove target `+
					`path|NodeGetVolumeStats should fail when volume does not exist on the specified path)`)
			if !strings.Contains(out, " Passed | 0 Failed") {
				t.Error(out)
			}
			if left, err := filepath.Glob(filepath.Join(export, "v", "[^.]*")); err != nil || len(left) > 0 {
				t.Errorf("volumes are left: %q, %v", left, err)
			}
		})
	}

	conn, err := grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	c := csi.NewControllerClient(conn)
	create := func(t *testing.T, name string, kv ...string) (*csi.Volume, error) {
		t.Helper()
		p := map[string]string{"server": host, "share": "/data/v"}
		for i := 0; i < len(kv); i += 2 {
			p[kv[i]] = kv[i+1]
		}
		r, err := c.CreateVolume(t.Context(),
			&csi.CreateVolumeRequest{Name: name, Parameters: p, VolumeCapabilities: []*csi.VolumeCapability{{
				AccessMode: &csi.VolumeCapability_AccessMode{Mode: csi.VolumeCapability_AccessMode_MULTI_NODE_MULTI_WRITER},
				AccessType: &csi.VolumeCapability_Mount{Mount: &csi.VolumeCapability_MountVolume{}},
			}}})
		return r.GetVolume(), err
	}
	made := func(t *testing.T, name string, kv ...string) *csi.Volume {
		t.Helper()
		v, err := create(t, name, kv...)
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
	remove := func(t *testing.T, id string) error {
		t.Helper()
		_, err := c.DeleteVolume(t.Context(), &csi.DeleteVolumeRequest{VolumeId: id})
		return err
	}
	volumes := filepath.Join(export, "v")
	there := func(name string) bool { _, err := os.Lstat(filepath.Join(volumes, name)); return err == nil }

	t.Run("volume", func(t *testing.T) {
		v := made(t, "one", "mode", "2750", "uid", "1000", "gid", "1001")
		if got := command(t, "stat", "-c", "%u %g %a", filepath.Join(volumes, "one")); got != "1000 1001 2750" {
			t.Error(got)
		}
		if v.GetCapacityBytes() != 0 {
			t.Errorf("a capacity of %d, which nothing enforces", v.GetCapacityBytes())
		}
		if again := made(t, "one", "mode", "2750"); again.GetVolumeId() != v.GetVolumeId() {
			t.Errorf("%s and %s", v.GetVolumeId(), again.GetVolumeId())
		}
		// Everything that can be in a directory, deep and wide, and a way out of it.
		command(t, "sh", "-ec", `cd "$0/one"
			d=.; for i in $(seq 150); do d=$d/directory$i; done; mkdir -p $d; touch $d/file
			mkdir many; cd many; seq 3000 | xargs touch; cd ..
			mkfifo fifo; ln -s / root; ln -s ../../keep way; mkdir locked; touch locked/f; chmod 0 locked
			mkdir ../../keep; touch ../../keep/file`, volumes)
		if err := remove(t, v.GetVolumeId()); err != nil {
			t.Fatal(err)
		}
		if there("one") || there(".rstored-csi/one.json") {
			t.Error("it is still there")
		}
		if _, err := os.Stat(filepath.Join(export, "keep", "file")); err != nil {
			t.Error(err)
		}
		if err := remove(t, v.GetVolumeId()); err != nil {
			t.Errorf("again: %v", err)
		}
	})

	t.Run("publish", func(t *testing.T) {
		v := made(t, "published")
		for node, want := range map[string]codes.Code{
			"here@127.0.0.1": codes.OK, "addressless@": codes.OK, "unknown": codes.NotFound, "bad@1.2": codes.NotFound,
		} {
			_, err := c.ControllerPublishVolume(t.Context(), &csi.ControllerPublishVolumeRequest{
				VolumeId: v.GetVolumeId(), NodeId: node, VolumeCapability: &csi.VolumeCapability{
					AccessMode: &csi.VolumeCapability_AccessMode{Mode: csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER},
					AccessType: &csi.VolumeCapability_Mount{Mount: &csi.VolumeCapability_MountVolume{}},
				},
			})
			if status.Code(err) != want {
				t.Errorf("node %q: %v, want %v", node, err, want)
			}
		}
		if err := remove(t, v.GetVolumeId()); err != nil {
			t.Error(err)
		}
	})

	t.Run("retain", func(t *testing.T) {
		v := made(t, "kept", "onDelete", "retain")
		if err := remove(t, v.GetVolumeId()); err != nil || !there("kept") {
			t.Errorf("%v, there: %t", err, there("kept"))
		}
	})

	t.Run("copies", func(t *testing.T) {
		one := made(t, "origin")
		command(t, "sh", "-ec", `cd "$0/origin"; mkdir -p a/b; head -c 3M /dev/urandom >a/b/f; ln a/b/f a/g; ln -s ../x a/l
			mkfifo p; touch -d 2001-02-03 a/b; chmod 2711 a; chown 12:34 a/b/f; chmod 4755 a/b/f`, volumes)
		same := func(a, b string) {
			t.Helper()
			const list = `cd "$0"; find . -mindepth 1 -printf '%P %y %m %U:%G %n %l %Ts\n' | sort; ` +
				`find . -type f -exec sha256sum {} + | sort`
			if x, y := command(t, "sh", "-ec", list, a), command(t, "sh", "-ec", list, b); x != y {
				t.Errorf("%s\n%s\n%s\n%s", a, x, b, y)
			}
		}
		snap := func(name, of string) (*csi.Snapshot, error) {
			r, err := c.CreateSnapshot(t.Context(), &csi.CreateSnapshotRequest{Name: name, SourceVolumeId: of})
			return r.GetSnapshot(), err
		}
		s, err := snap("s", one.GetVolumeId())
		if err != nil || !s.GetReadyToUse() {
			t.Fatalf("%v, %v", s, err)
		}
		command(t, "cp", "-a", filepath.Join(volumes, "origin"), filepath.Join(dir, "before"))
		command(t, "sh", "-ec", `cd "$0/origin"; echo changed >a/b/f; rm a/l; touch new`, volumes)
		from := func(name string, source *csi.VolumeContentSource) *csi.Volume {
			t.Helper()
			r, err := c.CreateVolume(t.Context(), &csi.CreateVolumeRequest{
				Name: name, Parameters: map[string]string{"server": host, "share": "/data/v"}, VolumeContentSource: source,
				VolumeCapabilities: []*csi.VolumeCapability{{
					AccessMode: &csi.VolumeCapability_AccessMode{Mode: csi.VolumeCapability_AccessMode_MULTI_NODE_MULTI_WRITER},
					AccessType: &csi.VolumeCapability_Mount{Mount: &csi.VolumeCapability_MountVolume{}},
				}},
			})
			if err != nil {
				t.Fatal(err)
			}
			return r.GetVolume()
		}
		restored := from("restored", &csi.VolumeContentSource{Type: &csi.VolumeContentSource_Snapshot{
			Snapshot: &csi.VolumeContentSource_SnapshotSource{SnapshotId: s.GetSnapshotId()},
		}})
		clone := from("clone", &csi.VolumeContentSource{Type: &csi.VolumeContentSource_Volume{
			Volume: &csi.VolumeContentSource_VolumeSource{VolumeId: one.GetVolumeId()},
		}})
		same(filepath.Join(dir, "before"), filepath.Join(volumes, "restored"))
		same(filepath.Join(volumes, "origin"), filepath.Join(volumes, "clone"))
		// A copy that was cut off begins anew.
		command(t, "sh", "-ec", `cd "$0/.rstored-csi"; sed -i 's/"source"/"copying":true,"source"/' clone.json
			rm -r ../clone/a; touch ../clone/left`, volumes)
		if _, err := snap("t", clone.GetVolumeId()); status.Code(err) != codes.FailedPrecondition {
			t.Errorf("a snapshot of half a copy: %v", err)
		}
		from("clone", clone.GetContentSource())
		same(filepath.Join(volumes, "origin"), filepath.Join(volumes, "clone"))
		if _, err := snap("s", restored.GetVolumeId()); status.Code(err) != codes.AlreadyExists {
			t.Errorf("a snapshot of two volumes: %v", err)
		}
		e, err := c.ControllerExpandVolume(t.Context(), &csi.ControllerExpandVolumeRequest{
			VolumeId: one.GetVolumeId(), CapacityRange: &csi.CapacityRange{RequiredBytes: 1 << 20},
		})
		if err != nil || e.GetCapacityBytes() != 1<<20 || e.GetNodeExpansionRequired() {
			t.Errorf("%v, %v", e, err)
		}
		for range 2 {
			if _, err := c.DeleteSnapshot(t.Context(), &csi.DeleteSnapshotRequest{SnapshotId: s.GetSnapshotId()}); err != nil {
				t.Error(err)
			}
		}
		if there(".rstored-csi/snapshots/s") || there(".rstored-csi/snapshots/.rstored-csi/s.json") {
			t.Error("the snapshot is still there")
		}
		for _, v := range []*csi.Volume{one, restored, clone} {
			if err := remove(t, v.GetVolumeId()); err != nil {
				t.Error(err)
			}
		}
	})

	t.Run("of others", func(t *testing.T) {
		// What the driver has not made is not handed out, and not removed, whatever the identifier says.
		command(t, "sh", "-ec", `cd "$0"; mkdir mine; touch mine/file; ln -s mine link; touch plain`, volumes)
		for _, name := range []string{"mine", "link", "plain"} {
			if _, err := create(t, name); err == nil {
				t.Errorf("%s was handed out", name)
			}
			_ = remove(t, "nfs+tcp://"+host+":2049/data/v#"+name)
			if !there(name) {
				t.Errorf("%s is gone", name)
			}
		}
		for _, id := range []string{"/data/v#..", "/data#v", "/data/v#.rstored-csi", "/data/v/../#v", "/#data"} {
			_ = remove(t, "nfs+tcp://"+host+":2049"+id)
		}
		if !there("mine/file") || !there(".rstored-csi") {
			t.Error("the share is gone")
		}
		// A link in the place of a volume is removed by nobody.
		v := made(t, "swapped")
		command(t, "sh", "-ec", `cd "$0"; rmdir swapped; ln -s mine swapped`, volumes)
		if err := remove(t, v.GetVolumeId()); err == nil || !there("swapped") || !there("mine/file") {
			t.Errorf("%v", err)
		}
		// A name that cannot be a directory's is a volume all the same.
		made(t, "../../etc")
		if _, err := os.Stat(filepath.Join(dir, "etc")); err == nil {
			t.Error("a directory beyond the export")
		}
	})

	t.Run("errors", func(t *testing.T) {
		for _, tt := range []struct {
			kv   []string
			code codes.Code
			text string
		}{
			{[]string{"share", "/none"}, codes.InvalidArgument, "is this path exported to the controller?"},
			{[]string{"share", "/ro"}, codes.PermissionDenied, "read-only"},
			{[]string{"share", "/squashed"}, codes.PermissionDenied, "no_root_squash"},
			{[]string{"uid", "x"}, codes.InvalidArgument, "use a number"},
			{[]string{"sahre", "/x"}, codes.InvalidArgument, "there are server, share"},
		} {
			_, err := create(t, "wrong", tt.kv...)
			if status.Code(err) != tt.code || !strings.Contains(status.Convert(err).Message(), tt.text) {
				t.Errorf("%q: %v; want %v with %q", tt.kv, err, tt.code, tt.text)
			}
		}
		r := &csi.CreateVolumeRequest{
			Name: "huge", Parameters: map[string]string{"server": host, "share": "/data/v"},
			CapacityRange: &csi.CapacityRange{RequiredBytes: 1 << 62},
			VolumeCapabilities: []*csi.VolumeCapability{{
				AccessMode: &csi.VolumeCapability_AccessMode{Mode: csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER},
				AccessType: &csi.VolumeCapability_Mount{Mount: &csi.VolumeCapability_MountVolume{}},
			}},
		}
		if _, err := c.CreateVolume(t.Context(), r); status.Code(err) != codes.OutOfRange || there("huge") {
			t.Errorf("more than the file system has: %v", err)
		}
	})
}
