package ops

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	tools "github.com/rstored/rstored/test/csi"
)

// TestCSIFUSE: volumes that rstorectl mounts by FUSE: all of csi-sanity, what pods write, groups,
// numbers, and a mount whose process has ended.
func TestCSIFUSE(t *testing.T) {
	need(t, "go")
	if _, err := os.Stat("/dev/fuse"); err != nil {
		t.Skip(err)
	}
	dir, host := t.TempDir(), fmt.Sprintf("127.%d.%d.%d", 77+rand.IntN(100), rand.IntN(256), 1+rand.IntN(254))
	bin := binaries(t)
	if err := tools.Tools(t.Context(), root, dir); err != nil {
		t.Fatal(err)
	}
	export, control := filepath.Join(dir, "export"), filepath.Join(dir, "c.sock")
	for _, d := range []string{export, filepath.Join(dir, "pods")} {
		if err := os.Mkdir(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chmod(filepath.Dir(dir), 0o755); err != nil { // pods are other users
		t.Fatal(err)
	}
	program(t, filepath.Join(bin, "rstored"), "--state-dir", filepath.Join(dir, "state"), "--control", control,
		"--log-level", "error", "--export", export+"=/data(rw,no_root_squash)",
		"--rdma-listen", host+":20049", "--tcp-listen", host+":2049")
	until(t, "rstored", func() bool {
		return exec.Command(filepath.Join(bin, "rstorectl"), "--control", control, "status").Run() == nil
	})
	socket, pods := filepath.Join(dir, "csi.sock"), filepath.Join(dir, "pods")
	program(t, filepath.Join(dir, "rstored-csi"), "--endpoint", "unix://"+socket, "--controller", "--node", "--node-id",
		"here", "--rstorectl", filepath.Join(bin, "rstorectl"), "--fuse-dir", filepath.Join(dir, "fuse"),
		"--topology", "net=a", "--address", "127.0.0.1")
	until(t, "rstored-csi", func() bool { _, err := os.Stat(socket); return err == nil })
	t.Cleanup(func() {
		left, _ := exec.Command("sh", "-c", `grep -F " $0/" /proc/self/mountinfo | cut -d' ' -f5`, dir).Output()
		for target := range strings.FieldsSeq(string(left)) {
			t.Errorf("still mounted: %s", target)
			_ = exec.Command("umount", "-l", target).Run()
		}
	})

	for _, transport := range []string{"tcp", "rdma"} {
		t.Run("sanity/"+transport, func(t *testing.T) {
			class := filepath.Join(t.TempDir(), "class")
			if err := os.WriteFile(class, []byte("server: "+host+"\nshare: /data\nmount: fuse\ntransport: "+transport+
				"\ntopology: net=a\n"), 0o600); err != nil {
				t.Fatal(err)
			}
			out := run(t, dir, nil, filepath.Join(dir, "csi-sanity"), "--csi.endpoint", "unix://"+socket,
				"--csi.testvolumeparameters", class, "--csi.mountdir", filepath.Join(pods, "mount"),
				"--csi.stagingdir", filepath.Join(pods, "stage"), "--ginkgo.no-color")
			if !strings.Contains(out, " Passed | 0 Failed") {
				t.Error(out)
			}
		})
	}

	conn, err := grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	c, n := csi.NewControllerClient(conn), csi.NewNodeClient(conn)
	shared := func(group string) *csi.VolumeCapability {
		return &csi.VolumeCapability{
			AccessMode: &csi.VolumeCapability_AccessMode{Mode: csi.VolumeCapability_AccessMode_MULTI_NODE_MULTI_WRITER},
			AccessType: &csi.VolumeCapability_Mount{Mount: &csi.VolumeCapability_MountVolume{VolumeMountGroup: group}},
		}
	}
	create := &csi.CreateVolumeRequest{
		Name: "one", VolumeCapabilities: []*csi.VolumeCapability{shared("")},
		Parameters: map[string]string{
			"server": host, "share": "/data", "mount": "fuse", "transport": "rdma", "mode": "0770", "topology": "net=a",
		},
		AccessibilityRequirements: &csi.TopologyRequirement{
			Requisite: []*csi.Topology{{Segments: map[string]string{"net": "b"}}},
		},
	}
	if _, err := c.CreateVolume(t.Context(), create); status.Code(err) != codes.ResourceExhausted {
		t.Errorf("a volume where the server is not reached: %v", err)
	}
	create.AccessibilityRequirements = nil
	r, err := c.CreateVolume(t.Context(), create)
	if err != nil {
		t.Fatal(err)
	}
	v := r.GetVolume()
	if list := v.GetAccessibleTopology(); len(list) != 1 || list[0].GetSegments()["net"] != "a" {
		t.Errorf("the volume is reached from %v", list)
	}
	target := filepath.Join(pods, "one")
	publish := func(group string, readOnly bool, target string) error {
		_, err := n.NodePublishVolume(t.Context(), &csi.NodePublishVolumeRequest{
			VolumeId: v.GetVolumeId(), VolumeContext: v.GetVolumeContext(), TargetPath: target, Readonly: readOnly,
			VolumeCapability: shared(group),
		})
		return err
	}
	unpublish := func(target string) {
		t.Helper()
		if _, err := n.NodeUnpublishVolume(t.Context(),
			&csi.NodeUnpublishVolumeRequest{VolumeId: v.GetVolumeId(), TargetPath: target}); err != nil {
			t.Error(err)
		}
	}
	if err := publish("4711", false, target); err != nil {
		t.Fatal(err)
	}
	if got := command(t, "stat", "-c", "%g %a", filepath.Join(export, "one")); got != "4711 2770" {
		t.Errorf("the volume of a pod with fsGroup 4711 is %s", got)
	}
	// A pod of another user, whose group this is.
	command(t, "setpriv", "--reuid", "1000", "--regid", "1000", "--groups", "4711", "sh", "-ec",
		`cd "$0"; head -c 20M /dev/urandom >file; mkdir d; ln file d/name; sync file`, target)
	want, err := os.ReadFile(filepath.Join(export, "one", "file"))
	if err != nil {
		t.Fatal(err)
	}
	if got := command(t, "stat", "-c", "%u %g %h", filepath.Join(export, "one", "file")); got != "1000 4711 2" {
		t.Errorf("the file of a pod is %s", got)
	}
	second := filepath.Join(pods, "two")
	if err := publish("", true, second); err != nil {
		t.Fatal(err)
	}
	if got, err := os.ReadFile(filepath.Join(second, "d", "name")); err != nil || !bytes.Equal(got, want) {
		t.Errorf("a second pod reads something else: %d bytes, %v", len(got), err)
	}
	if err := os.WriteFile(filepath.Join(second, "new"), nil, 0o600); err == nil {
		t.Error("a pod has written to a volume that is read-only")
	}
	unpublish(second)
	s, err := n.NodeGetVolumeStats(t.Context(),
		&csi.NodeGetVolumeStatsRequest{VolumeId: v.GetVolumeId(), VolumePath: target})
	if err != nil || s.GetUsage()[0].GetTotal() == 0 {
		t.Errorf("%v, %v", s, err)
	}

	t.Run("killed", func(t *testing.T) {
		var mounts []struct{ PID int }
		if err := json.Unmarshal([]byte(command(t, filepath.Join(bin, "rstorectl"), "mounts", target, "-o", "json")),
			&mounts); err != nil || len(mounts) != 1 {
			t.Fatalf("%v, %v", mounts, err)
		}
		command(t, "kill", "-9", strconv.Itoa(mounts[0].PID))
		until(t, "the end of the mount's process", func() bool {
			_, err := n.NodeGetVolumeStats(t.Context(),
				&csi.NodeGetVolumeStatsRequest{VolumeId: v.GetVolumeId(), VolumePath: target})
			return err != nil && strings.Contains(err.Error(), "has ended")
		})
		if err := publish("4711", false, target); err != nil {
			t.Fatal(err)
		}
		if got, err := os.ReadFile(filepath.Join(target, "file")); err != nil || !bytes.Equal(got, want) {
			t.Errorf("%d bytes, %v", len(got), err)
		}
	})
	f, err := os.Open(filepath.Join(target, "file"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := n.NodeUnpublishVolume(t.Context(), &csi.NodeUnpublishVolumeRequest{
		VolumeId: v.GetVolumeId(), TargetPath: target,
	}); err == nil || !strings.Contains(err.Error(), "still used") {
		t.Errorf("unmounted under an open file: %v", err)
	}
	f.Close()
	until(t, "the file to be closed", func() bool {
		_, err := n.NodeUnpublishVolume(t.Context(),
			&csi.NodeUnpublishVolumeRequest{VolumeId: v.GetVolumeId(), TargetPath: target})
		return err == nil
	})
	// What a person reads.
	v.VolumeContext["directory"] = "none"
	if err := publish("", false, second); status.Code(err) != codes.NotFound ||
		!strings.Contains(err.Error(), "No such file or directory") {
		t.Errorf("a directory that is not there: %v", err)
	}
	unpublish(second)
	if _, err := c.DeleteVolume(t.Context(), &csi.DeleteVolumeRequest{VolumeId: v.GetVolumeId()}); err != nil {
		t.Error(err)
	}
}
