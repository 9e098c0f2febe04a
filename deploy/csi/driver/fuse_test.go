package driver

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
)

func byFUSE(r *csi.NodePublishVolumeRequest) { r.VolumeContext["mount"] = "fuse" }

// TestPublishFUSE: a mount by FUSE is one of a URL, the kernel's mount of the same directory is
// another one, and a mount whose process has ended is made anew.
func TestPublishFUSE(t *testing.T) {
	m := &table{}
	n := &node{mounter: m}
	target := filepath.Join(t.TempDir(), "mount")
	for range 2 {
		if _, err := n.NodePublishVolume(t.Context(), publish(target, byFUSE)); err != nil {
			t.Fatal(err)
		}
	}
	if len(m.asked) != 1 || !m.asked[0].FUSE || m.asked[0].Source != "nfs+rdma://nas:20049/data/v" ||
		len(m.asked[0].Options.Data) != 0 {
		t.Errorf("%+v", m.asked)
	}
	_, err := n.NodePublishVolume(t.Context(), publish(target))
	code(t, err, codes.AlreadyExists, "fuse.rstored")
	m.usage = unix.ENOTCONN
	_, err = n.NodeGetVolumeStats(t.Context(), &csi.NodeGetVolumeStatsRequest{VolumeId: "v", VolumePath: target})
	code(t, err, codes.Internal, "process of the mount")
	if _, err := n.NodePublishVolume(t.Context(), publish(target, byFUSE)); err != nil || len(m.asked) != 2 ||
		len(m.list) != 1 {
		t.Errorf("%v, %d mounts were made, there are %v", err, len(m.asked), m.list)
	}
}

// TestGroup: fsGroup of a pod is done once the volume is mounted, and again for a volume that is.
func TestGroup(t *testing.T) {
	m := &table{}
	n := &node{mounter: m}
	target := filepath.Join(t.TempDir(), "mount")
	group := func(g string) func(*csi.NodePublishVolumeRequest) {
		return func(r *csi.NodePublishVolumeRequest) { r.VolumeCapability.GetMount().VolumeMountGroup = g }
	}
	for range 2 {
		if _, err := n.NodePublishVolume(t.Context(), publish(target, group("4711"))); err != nil {
			t.Fatal(err)
		}
	}
	if len(m.group) != 2 || m.group[0] != 4711 || len(m.asked) != 1 {
		t.Errorf("%v, %v", m.group, m.asked)
	}
	_, err := n.NodePublishVolume(t.Context(), publish(target, group("staff")))
	code(t, err, codes.InvalidArgument, "not a number")
	m.grant = unix.EPERM
	_, err = n.NodePublishVolume(t.Context(), publish(target, group("12")))
	code(t, err, codes.FailedPrecondition, `set gid: "12"`)
	if _, release, err := n.claim(target); err != nil {
		t.Error("the target is still taken")
	} else {
		release()
	}
}

// TestGrant: a real directory, as root.
func TestGrant(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	dir := t.TempDir()
	for _, tt := range []struct{ mode, want uint32 }{{0o700, 0o2770}, {0o755, 0o2775}, {0o2770, 0o2770}} {
		if err := errors.Join(unix.Chown(dir, 7, 7), unix.Chmod(dir, tt.mode)); err != nil {
			t.Fatal(err)
		}
		for range 2 {
			if err := (Kernel{}).Grant(t.Context(), dir, 4711, func() {}); err != nil {
				t.Fatal(err)
			}
			var s unix.Stat_t
			if err := unix.Stat(dir, &s); err != nil || s.Uid != 7 || s.Gid != 4711 || s.Mode&0o7777 != tt.want {
				t.Errorf("%o became %d:%d %o, %v", tt.mode, s.Uid, s.Gid, s.Mode&0o7777, err)
			}
		}
	}
}

// TestFUSEChild: the program that serves a mount, when it ends, hangs, or is not there.
func TestFUSEChild(t *testing.T) {
	dir := t.TempDir()
	h := Host{Rstorectl: filepath.Join(dir, "rstorectl"), Dir: filepath.Join(dir, "logs")}
	mount := func(ctx context.Context, script string) error {
		t.Helper()
		if err := os.WriteFile(h.Rstorectl, []byte("#!/bin/sh\n"+script), 0o755); err != nil {
			t.Fatal(err)
		}
		done := make(chan struct{})
		err := h.Mount(ctx, Mount{
			FUSE: true, Source: "nfs+tcp://nas:2049/v", Target: filepath.Join(dir, "t"),
			Options: Options{Flags: []string{"ro"}, Data: []string{"vers=4.2"}},
		}, func() { close(done) })
		<-done
		return err
	}
	args := filepath.Join(dir, "args")
	if err := mount(t.Context(), "echo \"$@\" >"+args+"; printf x >&3"); err != nil {
		t.Error(err)
	}
	if b, err := os.ReadFile(args); err != nil ||
		!strings.Contains(string(b), "--options ro,vers=4.2 nfs+tcp://nas:2049/v "+filepath.Join(dir, "t")) {
		t.Errorf("%s, %v", b, err)
	}
	err := mount(t.Context(), "echo 'rstorectl: access denied by server while mounting v' >&2; exit 1")
	if !errors.Is(err, syscall.EACCES) {
		t.Error(err)
	}
	if err := mount(t.Context(), "exit 3"); err == nil || !strings.Contains(err.Error(), "exit status 3") {
		t.Error(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := mount(ctx, "exec sleep 600"); err == nil {
		t.Error("a mount that takes ten minutes was taken")
	}
	h.Rstorectl = filepath.Join(dir, "none", "rstorectl")
	if err := h.Mount(t.Context(), Mount{FUSE: true}, func() {}); !errors.Is(err, os.ErrNotExist) {
		t.Error(err)
	}
}

// TestInstall: the program of an earlier version stays, for the mounts that it serves.
func TestInstall(t *testing.T) {
	dir := t.TempDir()
	from, to := filepath.Join(dir, "rstorectl"), filepath.Join(dir, "host")
	names := map[string]bool{}
	for _, text := range []string{"one", "two", "one"} {
		if err := os.WriteFile(from, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		name, err := Install(from, to)
		if err != nil {
			t.Fatal(err)
		}
		b, err := os.ReadFile(name)
		info, _ := os.Stat(name)
		if err != nil || string(b) != text || info.Mode().Perm() != 0o755 {
			t.Errorf("%s is %q, %v, %v", name, b, info, err)
		}
		names[name] = true
	}
	list, err := os.ReadDir(to)
	if err != nil || len(names) != 2 || len(list) != 2 {
		t.Errorf("%v, %v, %v", names, list, err)
	}
}
