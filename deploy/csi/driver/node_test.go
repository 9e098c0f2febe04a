package driver

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// table is a Mounter that keeps a list instead of mounting.
type table struct {
	mu    sync.Mutex
	list  []Mounted
	asked []Mount
	fail  error
	usage error
	grant error
	group []uint32
	hold  chan struct{} // if there, mounts wait for it beyond the end of their calls
}

func (m *table) Mount(ctx context.Context, what Mount, finished func()) error {
	put := func() {
		defer finished()
		if m.hold != nil {
			<-m.hold
		}
		m.mu.Lock()
		defer m.mu.Unlock()
		m.asked = append(m.asked, what)
		kind := "nfs4"
		if what.FUSE {
			kind = fuseType
		}
		if m.fail == nil {
			m.list = append(m.list, Mounted{what.Source, what.Target, kind, slices.Contains(what.Options.Flags, "ro")})
		}
	}
	if m.hold != nil {
		go put()
		<-ctx.Done()
		return ctx.Err()
	}
	put()
	return m.fail
}

func (m *table) Unmount(_ context.Context, target string, finished func()) error {
	defer finished()
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.fail != nil {
		return m.fail
	}
	for i := len(m.list) - 1; i >= 0; i-- {
		if m.list[i].Target == target {
			m.list = slices.Delete(m.list, i, i+1)
			return nil
		}
	}
	return unix.EINVAL
}

func (m *table) Mounts() ([]Mounted, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.list), nil
}

func (m *table) Usage(_ context.Context, _ string, finished func()) (Usage, error) {
	finished()
	return Usage{TotalBytes: 100, AvailBytes: 30, UsedBytes: 60, TotalFiles: 10, FreeFiles: 4, UsedFiles: 6},
		errors.Join(m.fail, m.usage)
}

func (m *table) Grant(_ context.Context, _ string, gid uint32, finished func()) error {
	defer finished()
	m.group = append(m.group, gid)
	return m.grant
}

func publish(target string, change ...func(*csi.NodePublishVolumeRequest)) *csi.NodePublishVolumeRequest {
	r := &csi.NodePublishVolumeRequest{
		VolumeId: "nfs+tcp://nas:2049/data#v", TargetPath: target,
		VolumeContext: map[string]string{"server": "nas", "share": "/data", "directory": "v"},
		VolumeCapability: &csi.VolumeCapability{
			AccessMode: &csi.VolumeCapability_AccessMode{Mode: csi.VolumeCapability_AccessMode_MULTI_NODE_MULTI_WRITER},
			AccessType: &csi.VolumeCapability_Mount{Mount: &csi.VolumeCapability_MountVolume{}},
		},
	}
	for _, c := range change {
		c(r)
	}
	return r
}

func readOnly(r *csi.NodePublishVolumeRequest) { r.Readonly = true }

func code(t *testing.T, err error, want codes.Code, text string) {
	t.Helper()
	if status.Code(err) != want || !strings.Contains(status.Convert(err).Message(), text) {
		t.Errorf("%v; want %v with %q", err, want, text)
	}
}

func TestPublish(t *testing.T) {
	m := &table{}
	n := &node{id: "node", mounter: m}
	target := filepath.Join(t.TempDir(), "pods", "mount")
	for range 2 { // the second time it is there
		if _, err := n.NodePublishVolume(t.Context(), publish(target)); err != nil {
			t.Fatal(err)
		}
	}
	if len(m.asked) != 1 || m.asked[0].Source != "nas:/data/v" ||
		strings.Join(m.asked[0].Options.Data, ",") != "rdma,port=20049,vers=4.2" {
		t.Errorf("mounts: %+v", m.asked)
	}
	_, err := n.NodePublishVolume(t.Context(), publish(target, readOnly))
	code(t, err, codes.AlreadyExists, "read-only is false, not true")
	_, err = n.NodePublishVolume(t.Context(),
		publish(target, func(r *csi.NodePublishVolumeRequest) { r.VolumeContext["directory"] = "w" }))
	code(t, err, codes.AlreadyExists, "not nas:/data/w")

	s, err := n.NodeGetVolumeStats(t.Context(), &csi.NodeGetVolumeStatsRequest{VolumeId: "v", VolumePath: target})
	if err != nil || s.GetUsage()[0].GetTotal() != 100 || s.GetUsage()[0].GetAvailable() != 30 ||
		s.GetUsage()[1].GetUsed() != 6 {
		t.Errorf("%v, %v", s, err)
	}
	m.fail = unix.EBUSY
	_, err = n.NodeUnpublishVolume(t.Context(), &csi.NodeUnpublishVolumeRequest{VolumeId: "v", TargetPath: target})
	code(t, err, codes.Internal, "still used")
	m.fail = nil
	for range 2 {
		if _, err := n.NodeUnpublishVolume(t.Context(),
			&csi.NodeUnpublishVolumeRequest{VolumeId: "v", TargetPath: target}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := os.Stat(target); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the target path is there: %v", err)
	}
	_, err = n.NodeGetVolumeStats(t.Context(), &csi.NodeGetVolumeStatsRequest{VolumeId: "v", VolumePath: target})
	code(t, err, codes.NotFound, "no volume")

	// Read-only by what is asked for, and by the access mode.
	for _, c := range []func(*csi.NodePublishVolumeRequest){readOnly, func(r *csi.NodePublishVolumeRequest) {
		r.VolumeCapability.AccessMode.Mode = csi.VolumeCapability_AccessMode_MULTI_NODE_READER_ONLY
	}} {
		if _, err := n.NodePublishVolume(t.Context(), publish(target, c)); err != nil {
			t.Fatal(err)
		}
		if !m.list[0].ReadOnly {
			t.Errorf("%+v", m.list)
		}
		if _, err := n.NodeUnpublishVolume(t.Context(),
			&csi.NodeUnpublishVolumeRequest{VolumeId: "v", TargetPath: target}); err != nil {
			t.Fatal(err)
		}
	}
}

// TestUnpublishKeepsFiles: a target path that is not mounted is removed only if it is empty.
func TestUnpublishKeepsFiles(t *testing.T) {
	target := t.TempDir()
	if err := os.WriteFile(filepath.Join(target, "mine"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	n := &node{mounter: &table{}}
	_, err := n.NodeUnpublishVolume(t.Context(), &csi.NodeUnpublishVolumeRequest{VolumeId: "v", TargetPath: target})
	code(t, err, codes.Internal, "not mounted")
	if _, err := os.Stat(filepath.Join(target, "mine")); err != nil {
		t.Error(err)
	}
}

// TestUnpublishBelow: what was mounted over something else leaves that.
func TestUnpublishBelow(t *testing.T) {
	target := t.TempDir()
	m := &table{list: []Mounted{
		{Source: "tmpfs", Target: target, Type: "tmpfs"},
		{Source: "nas:/data/v", Target: target, Type: "nfs4"},
	}}
	n := &node{mounter: m}
	_, err := n.NodeUnpublishVolume(t.Context(), &csi.NodeUnpublishVolumeRequest{VolumeId: "v", TargetPath: target})
	code(t, err, codes.Internal, "something else")
	if len(m.list) != 1 {
		t.Errorf("%v", m.list)
	}
}

// TestPublishInTheBackground: while a mount waits for its server, nobody else works on its path.
func TestPublishInTheBackground(t *testing.T) {
	m := &table{hold: make(chan struct{})}
	n := &node{mounter: m}
	target := filepath.Join(t.TempDir(), "mount")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := n.NodePublishVolume(ctx, publish(target))
	code(t, err, codes.DeadlineExceeded, "in the background")
	_, err = n.NodePublishVolume(ctx, publish(target))
	code(t, err, codes.Aborted, "another call works on")
	_, err = n.NodeUnpublishVolume(ctx, &csi.NodeUnpublishVolumeRequest{VolumeId: "v", TargetPath: target})
	code(t, err, codes.Aborted, "another call works on")
	close(m.hold)
	for { // it comes to its end, and the next call finds it mounted
		if _, err = n.NodePublishVolume(ctx, publish(target)); status.Code(err) != codes.Aborted {
			break
		}
	}
	if err != nil || len(m.asked) != 1 {
		t.Errorf("%v, %d mounts", err, len(m.asked))
	}
}

func TestPublishRefused(t *testing.T) {
	m := &table{}
	n := &node{mounter: m}
	target := filepath.Join(t.TempDir(), "mount")
	for want, c := range map[string]func(*csi.NodePublishVolumeRequest){
		"target path is missing": func(r *csi.NodePublishVolumeRequest) { r.TargetPath = "" },
		"not absolute":           func(r *csi.NodePublishVolumeRequest) { r.TargetPath = "x" },
		"identifier":             func(r *csi.NodePublishVolumeRequest) { r.VolumeId = "" },
		"capability is missing":  func(r *csi.NodePublishVolumeRequest) { r.VolumeCapability = nil },
		"server is missing":      func(r *csi.NodePublishVolumeRequest) { r.VolumeContext = nil },
		"unknown parameter":      func(r *csi.NodePublishVolumeRequest) { r.VolumeContext["dir"] = "x" },
		"below the share":        func(r *csi.NodePublishVolumeRequest) { r.VolumeContext["directory"] = "../v" },
		"contradicts": func(r *csi.NodePublishVolumeRequest) {
			r.VolumeContext["transport"] = "tcp"
			r.VolumeCapability.GetMount().MountFlags = []string{"rdma"}
		},
		"block devices": func(r *csi.NodePublishVolumeRequest) {
			r.VolumeCapability.AccessType = &csi.VolumeCapability_Block{Block: &csi.VolumeCapability_BlockVolume{}}
		},
		"fsType": func(r *csi.NodePublishVolumeRequest) { r.VolumeCapability.GetMount().FsType = "ext4" },
		"access mode": func(r *csi.NodePublishVolumeRequest) {
			r.VolumeCapability.AccessMode.Mode = csi.VolumeCapability_AccessMode_MULTI_NODE_SINGLE_WRITER
		},
	} {
		_, err := n.NodePublishVolume(t.Context(), publish(target, c))
		code(t, err, codes.InvalidArgument, want)
	}
	for _, tt := range []struct {
		err  error
		code codes.Code
		text string
	}{
		{unix.ENODEV, codes.FailedPrecondition, "modprobe nfs"},
		{unix.EPROTONOSUPPORT, codes.FailedPrecondition, "modprobe rpcrdma"},
		{unix.ENOENT, codes.NotFound, "no such directory"},
		{unix.EACCES, codes.PermissionDenied, "does not export"},
		{unix.EINVAL, codes.InvalidArgument, "one of the options"},
		{unix.ECONNREFUSED, codes.Unavailable, "is the server there"},
		{unix.ENOMEM, codes.Internal, "nas:/data/v"},
	} {
		m.fail = fmt.Errorf("mount: %w", tt.err)
		_, err := n.NodePublishVolume(t.Context(), publish(target))
		code(t, err, tt.code, tt.text)
	}
}

func TestArguments(t *testing.T) {
	o, err := mountOptions(place{}, []string{"noatime", "hard"}, true)
	if err != nil {
		t.Fatal(err)
	}
	lookup := func(_ context.Context, host string) ([]string, error) {
		if host != "nas" {
			return nil, errors.New("no such host")
		}
		return []string{"fd00::7", "10.0.0.7"}, nil
	}
	flags, data, err := arguments(t.Context(), Mount{Server: "nas", Options: o}, lookup)
	if err != nil || flags != unix.MS_NOATIME|unix.MS_RDONLY || data != "rdma,port=20049,vers=4.2,hard,addr=fd00::7" {
		t.Errorf("%#x %q %v", flags, data, err)
	}
	if _, _, err := arguments(t.Context(), Mount{Server: "nobody"}, lookup); err == nil ||
		!strings.Contains(err.Error(), "address of the server") {
		t.Error(err)
	}
}

// TestKernel: what needs no NFS: the mounts of this process, and numbers of a directory.
func TestKernel(t *testing.T) {
	k := Kernel{}
	list, err := k.Mounts()
	if err != nil || !slices.ContainsFunc(list, func(m Mounted) bool { return m.Target == "/proc" }) {
		t.Errorf("%v, %v", list, err)
	}
	done := make(chan struct{})
	if u, err := k.Usage(t.Context(), t.TempDir(), func() { close(done) }); err != nil || u.TotalBytes == 0 ||
		u.UsedBytes > u.TotalBytes {
		t.Errorf("%+v, %v", u, err)
	}
	<-done
	done = make(chan struct{})
	if err := k.Unmount(t.Context(), t.TempDir(), func() { close(done) }); err != nil && !errors.Is(err, syscall.EPERM) {
		t.Error(err) // to be unmounted already is no error
	}
	<-done
}

func TestListen(t *testing.T) {
	dir := t.TempDir()
	sock := filepath.Join(dir, "s")
	for _, bad := range []string{"tcp://:1", "unix://relative", sock} {
		if _, err := listen(bad); err == nil {
			t.Errorf("%s was taken", bad)
		}
	}
	l, err := listen("unix://" + sock)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := listen("unix://" + sock); err == nil || !strings.Contains(err.Error(), "another process") {
		t.Error(err)
	}
	// One that was killed leaves its socket.
	l.(*net.UnixListener).SetUnlinkOnClose(false)
	l.Close()
	if l, err = listen("unix://" + sock); err != nil {
		t.Fatal(err)
	}
	l.Close()
	if err := os.WriteFile(sock, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := listen("unix://" + sock); err == nil || !strings.Contains(err.Error(), "something else") {
		t.Error(err)
	}
}
