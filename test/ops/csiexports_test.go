package ops

import (
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/rstored/rstored/nfs"
	"github.com/rstored/rstored/nfs/client"
	"github.com/rstored/rstored/nfs/dial"
	tools "github.com/rstored/rstored/test/csi"
)

// TestCSIExports: volumes with an export each. All of csi-sanity, and that a node reaches the
// volumes that are published to it and no other, neither by path nor by a handle, and is not root
// there.
func TestCSIExports(t *testing.T) {
	need(t, "go", "openssl")
	dir, host := t.TempDir(), fmt.Sprintf("127.%d.%d.", 77+rand.IntN(100), rand.IntN(256))
	server, nodes := host+"1", []string{host + "11", host + "12"}
	bin := binaries(t)
	if err := tools.Tools(t.Context(), root, dir); err != nil {
		t.Fatal(err)
	}
	ca := newAuthority(t, "ours")
	cert, key := ca.issue("server", "IP:"+server, "1")
	own, ownKey := ca.issue("csi", "DNS:csi.example.org", "1")
	export, socket, fuse := filepath.Join(dir, "export"), filepath.Join(dir, "csi.sock"), filepath.Join(dir, "fuse")
	for _, d := range []string{export, filepath.Join(export, "v"), filepath.Join(dir, "pods")} {
		if err := os.Mkdir(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	control := filepath.Join(dir, "c.sock")
	program(t, filepath.Join(bin, "rstored"), "--state-dir", filepath.Join(dir, "state"), "--control", control,
		"--log-level", "error", "--export", export+"=/data "+server+"/32(rw,no_root_squash) 127.0.0.1(rw,no_root_squash)",
		"--rdma-listen", server+":20049", "--tcp-listen", server+":2049", "--control-tls-listen", server+":9048",
		"--control-tls-certificate", cert, "--control-tls-key", key, "--control-tls-client-ca", ca.file("ca.pem"),
		"--control-tls-admins", "csi.example.org")
	until(t, "rstored", func() bool {
		return exec.Command(filepath.Join(bin, "rstorectl"), "--control", control, "status").Run() == nil
	})
	program(t, filepath.Join(dir, "rstored-csi"), "--endpoint", "unix://"+socket, "--controller", "--node", "--node-id",
		"here", "--address", nodes[0]+",127.0.0.1", "--rstorectl", filepath.Join(bin, "rstorectl"), "--fuse-dir", fuse,
		"--control-cert", own, "--control-key", ownKey, "--control-ca", ca.file("ca.pem"))
	until(t, "rstored-csi", func() bool { _, err := os.Stat(socket); return err == nil })

	params := map[string]string{
		"server": server, "share": "/data/v", "control": server, "quota": "recorded", "mode": "0777",
		"mount": "fuse", "transport": "tcp",
	}
	t.Run("sanity", func(t *testing.T) {
		class := filepath.Join(t.TempDir(), "class")
		var text strings.Builder
		for k, v := range params {
			fmt.Fprintf(&text, "%s: \"%s\"\n", k, v)
		}
		if err := os.WriteFile(class, []byte(text.String()), 0o600); err != nil {
			t.Fatal(err)
		}
		out := run(t, dir, nil, filepath.Join(dir, "csi-sanity"), "--csi.endpoint", "unix://"+socket,
			"--csi.testvolumeparameters", class, "--csi.mountdir", filepath.Join(dir, "pods", "mount"),
			"--csi.stagingdir", filepath.Join(dir, "pods", "stage"), "--ginkgo.no-color")
		if !strings.Contains(out, " Passed | 0 Failed") {
			t.Error(out)
		}
	})

	conn, err := grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	c := csi.NewControllerClient(conn)
	capability := &csi.VolumeCapability{
		AccessMode: &csi.VolumeCapability_AccessMode{Mode: csi.VolumeCapability_AccessMode_MULTI_NODE_MULTI_WRITER},
		AccessType: &csi.VolumeCapability_Mount{Mount: &csi.VolumeCapability_MountVolume{}},
	}
	create := func(name string) (*csi.Volume, error) {
		r, err := c.CreateVolume(t.Context(), &csi.CreateVolumeRequest{
			Name: name, Parameters: params, VolumeCapabilities: []*csi.VolumeCapability{capability},
			CapacityRange: &csi.CapacityRange{RequiredBytes: 8 << 20},
		})
		return r.GetVolume(), err
	}
	publish := func(v *csi.Volume, node string) {
		t.Helper()
		if _, err := c.ControllerPublishVolume(t.Context(), &csi.ControllerPublishVolumeRequest{
			VolumeId: v.GetVolumeId(), NodeId: "node@" + node, VolumeCapability: capability,
			VolumeContext: v.GetVolumeContext(),
		}); err != nil {
			t.Fatal(err)
		}
	}
	// A node without an address is a node, but no rule of an export can admit it.
	if v, err := create("unreachable"); err != nil {
		t.Error(err)
	} else if _, err := c.ControllerPublishVolume(t.Context(), &csi.ControllerPublishVolumeRequest{
		VolumeId: v.GetVolumeId(), NodeId: "node@", VolumeCapability: capability, VolumeContext: v.GetVolumeContext(),
	}); status.Code(err) != codes.FailedPrecondition {
		t.Errorf("a node without an address: %v", err)
	} else if _, err := c.DeleteVolume(t.Context(), &csi.DeleteVolumeRequest{VolumeId: v.GetVolumeId()}); err != nil {
		t.Error(err)
	}
	var volumes []*csi.Volume
	for i, name := range []string{"a", "b"} {
		v, err := create(name)
		if err != nil {
			t.Fatal(err)
		}
		volumes = append(volumes, v)
		if got := v.GetVolumeContext()["share"] + "/" + v.GetVolumeContext()["directory"]; got != "/csi/data/v/"+name {
			t.Errorf("nodes mount %s", got)
		}
		publish(v, nodes[i])
		publish(v, nodes[i]) // again is the same
		if err := os.WriteFile(filepath.Join(export, "v", name, "file"), []byte("of "+name), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	from := func(node string) *client.Client {
		t.Helper()
		d := &dial.Dialer{Source: netip.MustParseAddr(node), MountPort: 2049, GiveUp: 20 * time.Second}
		t.Cleanup(func() { _ = d.Close() })
		u, err := client.ParseURL("nfs+rdma://" + server + ":20049/")
		if err != nil {
			t.Fatal(err)
		}
		return d.Client(u)
	}
	denied := func(err error) bool {
		return client.IsStatus(err, nfs.ErrAcces) || client.IsStatus(err, nfs.ErrPerm) ||
			client.IsStatus(err, nfs.ErrStale) || client.IsStatus(err, nfs.ErrNoEnt) || errors.Is(err, fs.ErrNotExist)
	}
	one, two := from(nodes[0]), from(nodes[1])
	mine, err := one.Follow(t.Context(), "/csi/data/v/a/file", true)
	if err != nil {
		t.Fatal(err)
	}
	theirs, err := two.Follow(t.Context(), "/csi/data/v/b/file", true)
	if err != nil {
		t.Fatal(err)
	}
	b := make([]byte, 16)
	if n, _, err := one.Read(t.Context(), mine.Handle, b, 0); err != nil || string(b[:n]) != "of a" {
		t.Errorf("%q, %v", b[:n], err)
	}
	for _, p := range []string{
		"/csi/data/v/b", "/csi/data/v/b/file", "/csi/data/v/a/../b/file", "/data/v/b/file", "/data", export + "/v/b/file",
	} {
		if n, err := one.Follow(t.Context(), p, true); !denied(err) {
			t.Errorf("a node has reached %s of another volume: %+v, %v", p, n, err)
		}
	}
	if n, _, err := one.Read(t.Context(), theirs.Handle, b, 0); !denied(err) {
		t.Errorf("a node has read another volume by a handle: %q, %v", b[:n], err)
	}
	if _, err := one.Lookup(t.Context(), theirs.Handle, ".."); !denied(err) && !client.IsStatus(err, nfs.ErrNotDir) {
		t.Errorf("a node has gone up from a file of another volume: %v", err)
	}
	// Root of a node is nobody.
	f, err := one.CreateFile(t.Context(), "/csi/data/v/a/new", 0o644)
	if err != nil {
		t.Fatal(err)
	}
	f.Close()
	if got := command(t, "stat", "-c", "%u", filepath.Join(export, "v", "a", "new")); got != "65534" {
		t.Errorf("root of a node is %s", got)
	}
	// A node that has the volume no more.
	if _, err := c.ControllerUnpublishVolume(t.Context(), &csi.ControllerUnpublishVolumeRequest{
		VolumeId: volumes[0].GetVolumeId(), NodeId: "node@" + nodes[0],
	}); err != nil {
		t.Fatal(err)
	}
	if n, _, err := one.Read(t.Context(), mine.Handle, b, 0); !denied(err) {
		t.Errorf("a node has read a volume that it had: %q, %v", b[:n], err)
	}
	publish(volumes[0], nodes[0])
	if n, _, err := one.Read(t.Context(), mine.Handle, b, 0); err != nil || string(b[:n]) != "of a" {
		t.Errorf("%q, %v", b[:n], err)
	}

	// Where nothing would be enforced a size is refused, unless the class says that it is recorded
	// alone.
	params["quota"] = "enforced"
	if _, err := create("bounded"); status.Code(err) != codes.FailedPrecondition ||
		!strings.Contains(err.Error(), "quota") {
		t.Errorf("a volume with a quota on a file system without: %v", err)
	}
	for _, v := range append(volumes, &csi.Volume{VolumeId: "nfs+tcp://" + server + ":2049/data/v#bounded"}) {
		for range 2 {
			if _, err := c.DeleteVolume(t.Context(), &csi.DeleteVolumeRequest{VolumeId: v.GetVolumeId()}); err != nil {
				t.Error(err)
			}
		}
	}
	if out := command(t, filepath.Join(bin, "rstorectl"), "--control", control, "export", "list"); strings.Contains(out,
		"/csi/") {
		t.Errorf("exports of volumes that were deleted:\n%s", out)
	}
}
