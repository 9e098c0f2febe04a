package driver

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// node is the Node service. It does not stage volumes. Each publication is a mount, and mounts of
// one server share connections and caches in the kernel.
type node struct {
	csi.UnimplementedNodeServer
	id       string
	topology map[string]string
	mounter  Mounter
	targets  busy
	asked    busy // paths whose usage a call waits for
}

// NodeGetInfo implements csi.NodeServer.
func (n *node) NodeGetInfo(context.Context, *csi.NodeGetInfoRequest) (*csi.NodeGetInfoResponse, error) {
	return &csi.NodeGetInfoResponse{
		NodeId: n.id, AccessibleTopology: &csi.Topology{Segments: n.topology},
	}, nil
}

// NodeGetCapabilities implements csi.NodeServer.
func (n *node) NodeGetCapabilities(
	context.Context, *csi.NodeGetCapabilitiesRequest,
) (*csi.NodeGetCapabilitiesResponse, error) {
	var out csi.NodeGetCapabilitiesResponse
	for _, t := range []csi.NodeServiceCapability_RPC_Type{
		csi.NodeServiceCapability_RPC_GET_VOLUME_STATS, csi.NodeServiceCapability_RPC_VOLUME_MOUNT_GROUP,
	} {
		out.Capabilities = append(out.Capabilities, &csi.NodeServiceCapability{
			Type: &csi.NodeServiceCapability_Rpc{Rpc: &csi.NodeServiceCapability_RPC{Type: t}},
		})
	}
	return &out, nil
}

// claim reserves a target until release is called, and returns the mount there.
func (n *node) claim(target string) (there *Mounted, release func(), err error) {
	if release, err = n.targets.take(target); err != nil {
		return nil, nil, err
	}
	if there, err = n.mounted(target); err != nil {
		release()
		return nil, nil, err
	}
	return there, release, nil
}

// NodePublishVolume implements csi.NodeServer.
func (n *node) NodePublishVolume(
	ctx context.Context, r *csi.NodePublishVolumeRequest,
) (*csi.NodePublishVolumeResponse, error) {
	if r.GetVolumeId() == "" {
		return nil, status.Error(codes.InvalidArgument, "the volume's identifier is missing")
	}
	target, err := targetPath(r.GetTargetPath())
	if err != nil {
		return nil, err
	}
	m, err := mountOf(r, target)
	if err != nil {
		return nil, status.Error(codes.InvalidArgument, err.Error())
	}
	group, err := mountGroup(r)
	if err != nil {
		return nil, err
	}
	there, release, err := n.claim(target)
	if err != nil {
		return nil, err
	}
	if there != nil && m.FUSE && m.is(there) && n.dead(ctx, target) {
		if err := n.unmount(ctx, target, release); err != nil {
			return nil, err
		}
		if there, release, err = n.claim(target); err != nil {
			return nil, err
		}
	}
	readOnly := slices.Contains(m.Options.Flags, "ro")
	if there != nil {
		if !m.is(there) {
			release()
			return nil, status.Errorf(codes.AlreadyExists, "%s (%s) is mounted at %s, not %s", there.Source, there.Type,
				target, m.Source)
		}
		if there.ReadOnly != readOnly {
			release()
			return nil, status.Errorf(codes.AlreadyExists, "%s is mounted at %s, but read-only is %t, not %t", there.Source,
				target, there.ReadOnly, readOnly)
		}
		return n.grant(ctx, m, group, readOnly, release)
	}
	if err := os.MkdirAll(target, 0o750); err != nil {
		release()
		return nil, status.Errorf(codes.Internal, "making the target path: %v", err)
	}
	ended := make(chan struct{})
	if err := n.mounter.Mount(ctx, m, func() { release(); close(ended) }); err != nil {
		return nil, mountError(m, err)
	}
	<-ended
	if group == nil {
		return &csi.NodePublishVolumeResponse{}, nil
	}
	if release, err = n.targets.take(target); err != nil {
		return nil, err
	}
	return n.grant(ctx, m, group, readOnly, release)
}

// mountGroup returns the group that is to share the volume (fsGroup of a pod), or nil.
func mountGroup(r *csi.NodePublishVolumeRequest) (*uint32, error) {
	g := r.GetVolumeCapability().GetMount().GetVolumeMountGroup()
	if g == "" {
		return nil, nil
	}
	n, err := strconv.ParseUint(g, 10, 32)
	if err != nil {
		return nil, status.Errorf(codes.InvalidArgument, "the group %q of the volume is not a number", g)
	}
	return new(uint32(n)), nil
}

// grant completes a publication. It gives the directory of the volume to the group, not its
// contents.
func (n *node) grant(
	ctx context.Context, m Mount, group *uint32, readOnly bool, release func(),
) (*csi.NodePublishVolumeResponse, error) {
	if group == nil || readOnly {
		release()
		return &csi.NodePublishVolumeResponse{}, nil
	}
	err := n.mounter.Grant(ctx, m.Target, *group, release)
	if errors.Is(err, fs.ErrPermission) {
		return nil, status.Errorf(codes.FailedPrecondition, "%s cannot be given to the group %d (fsGroup), because the "+
			"server squashes root: set gid: \"%d\" and mode: \"2770\" in the StorageClass, or export it to the nodes with "+
			"no_root_squash", m.Source, *group, *group)
	}
	if err != nil {
		return nil, status.Errorf(codes.Internal, "giving %s to the group %d: %v", m.Source, *group, err)
	}
	return &csi.NodePublishVolumeResponse{}, nil
}

// dead reports whether the process of a mount by FUSE has ended.
func (n *node) dead(ctx context.Context, target string) bool {
	_, err := n.mounter.Usage(ctx, target, func() {})
	return errors.Is(err, syscall.ENOTCONN)
}

// mountOf returns the mount that a request asks for.
func mountOf(r *csi.NodePublishVolumeRequest, target string) (m Mount, err error) {
	if err := keys(r.GetVolumeContext(), contextAttrs); err != nil {
		return m, err
	}
	p, err := parsePlace(r.GetVolumeContext())
	if err != nil {
		return m, err
	}
	c := r.GetVolumeCapability()
	if err := capability(c, p); err != nil {
		return m, err
	}
	mode := c.GetAccessMode().GetMode()
	readOnly := r.GetReadonly() || mode == csi.VolumeCapability_AccessMode_SINGLE_NODE_READER_ONLY ||
		mode == csi.VolumeCapability_AccessMode_MULTI_NODE_READER_ONLY
	m = Mount{Server: p.server, Source: p.source(), Target: target, FUSE: p.fuse}
	if m.Options, err = mountOptions(p, c.GetMount().GetMountFlags(), readOnly); err == nil && p.fuse {
		m.Source, err = p.url(m.Options)
	}
	return m, err
}

// is reports whether a mount is the one that m describes.
func (m *Mount) is(there *Mounted) bool {
	kind := there.Type == fuseType
	if !m.FUSE {
		kind = strings.HasPrefix(there.Type, "nfs")
	}
	return kind && there.Source == m.Source
}

// mountError adds advice for the administrator to an error of mount(2).
func mountError(m Mount, err error) error {
	code, hint := codes.Internal, ""
	switch {
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled):
		code, hint = codes.DeadlineExceeded, "it goes on in the background"
	case errors.Is(err, syscall.ENOENT):
		code, hint = codes.NotFound, "the server has no such directory, or exports it to others"
	case errors.Is(err, syscall.EACCES), errors.Is(err, syscall.EPERM):
		code, hint = codes.PermissionDenied, "the server does not export it to this node, or the plugin is not privileged"
	case errors.Is(err, syscall.ENODEV):
		code, hint = codes.FailedPrecondition, "the node's kernel has no NFS client: modprobe nfs"
	case errors.Is(err, syscall.EPROTONOSUPPORT), errors.Is(err, syscall.EPROTO):
		code = codes.FailedPrecondition
		hint = "the node's kernel has no NFS over RDMA, or the server not that version: modprobe rpcrdma"
	case errors.Is(err, syscall.EINVAL):
		code, hint = codes.InvalidArgument, "the kernel does not take one of the options"
	case errors.Is(err, syscall.ECONNREFUSED), errors.Is(err, syscall.EHOSTUNREACH), errors.Is(err, syscall.ENETUNREACH),
		errors.Is(err, syscall.ETIMEDOUT), errors.Is(err, syscall.EIO):
		code, hint = codes.Unavailable, "is the server there, and has the node an RDMA device (rdma link) on its way to it?"
	}
	if hint != "" {
		hint = " (" + hint + ")"
	}
	return status.Errorf(code, "%s: %v%s", m.Source, err, hint)
}

// NodeUnpublishVolume implements csi.NodeServer.
func (n *node) NodeUnpublishVolume(
	ctx context.Context, r *csi.NodeUnpublishVolumeRequest,
) (*csi.NodeUnpublishVolumeResponse, error) {
	if r.GetVolumeId() == "" {
		return nil, status.Error(codes.InvalidArgument, "the volume's identifier is missing")
	}
	target, err := targetPath(r.GetTargetPath())
	if err != nil {
		return nil, err
	}
	there, release, err := n.claim(target)
	if err != nil {
		return nil, err
	}
	if there == nil {
		defer release()
		return n.tidy(target)
	}
	if err := n.unmount(ctx, target, release); err != nil {
		return nil, err
	}
	if there, release, err = n.claim(target); err != nil {
		return nil, err
	}
	defer release()
	if there != nil {
		return nil, status.Errorf(codes.Internal, "%s was mounted below: something else is at %s", there.Source, target)
	}
	return n.tidy(target)
}

// unmount unmounts a target, and releases it.
func (n *node) unmount(ctx context.Context, target string, release func()) error {
	ended := make(chan struct{})
	if err := n.mounter.Unmount(ctx, target, func() { release(); close(ended) }); err != nil {
		if errors.Is(err, syscall.EBUSY) {
			return status.Errorf(codes.Internal, "%s is still used", target)
		}
		return status.Errorf(codes.Internal, "unmounting %s: %v", target, err)
	}
	<-ended
	return nil
}

// tidy removes a target path that is not mounted. It removes an empty directory only.
func (n *node) tidy(target string) (*csi.NodeUnpublishVolumeResponse, error) {
	if err := os.Remove(target); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, status.Errorf(codes.Internal, "removing the target path, which is not mounted: %v", err)
	}
	return &csi.NodeUnpublishVolumeResponse{}, nil
}

// NodeGetVolumeStats implements csi.NodeServer. The numbers are those of the exported file system,
// which all volumes of the export share.
func (n *node) NodeGetVolumeStats(
	ctx context.Context, r *csi.NodeGetVolumeStatsRequest,
) (*csi.NodeGetVolumeStatsResponse, error) {
	if r.GetVolumeId() == "" || r.GetVolumePath() == "" {
		return nil, status.Error(codes.InvalidArgument, "the volume's identifier or its path is missing")
	}
	path := filepath.Clean(r.GetVolumePath())
	there, err := n.mounted(path)
	if err != nil {
		return nil, err
	}
	if there == nil {
		return nil, status.Errorf(codes.NotFound, "no volume is mounted at %s", path)
	}
	// At most one call waits for a server that does not answer.
	release, err := n.asked.take(path)
	if err != nil {
		return nil, err
	}
	u, err := n.mounter.Usage(ctx, path, release)
	if errors.Is(err, syscall.ENOTCONN) && there.Type == fuseType {
		return nil, status.Errorf(codes.Internal, "the process of the mount at %s has ended: its pods must be deleted, and "+
			"get the volume again", path)
	}
	if err != nil {
		return nil, status.Errorf(codes.Internal, "%s: %v", there.Source, err)
	}
	return &csi.NodeGetVolumeStatsResponse{Usage: []*csi.VolumeUsage{
		{Unit: csi.VolumeUsage_BYTES, Total: int64(u.TotalBytes), Available: int64(u.AvailBytes), Used: int64(u.UsedBytes)},
		{Unit: csi.VolumeUsage_INODES, Total: int64(u.TotalFiles), Available: int64(u.FreeFiles), Used: int64(u.UsedFiles)},
	}}, nil
}

// mounted returns the mount at a path, or nil.
func (n *node) mounted(target string) (*Mounted, error) {
	list, err := n.mounter.Mounts()
	if err != nil {
		return nil, status.Errorf(codes.Internal, "reading the mounts: %v", err)
	}
	for i := len(list) - 1; i >= 0; i-- {
		if list[i].Target == target {
			return &list[i], nil
		}
	}
	return nil, nil
}

func targetPath(p string) (string, error) {
	if p == "" {
		return "", status.Error(codes.InvalidArgument, "the target path is missing")
	}
	if !filepath.IsAbs(p) {
		return "", status.Errorf(codes.InvalidArgument, "the target path %q is not absolute", p)
	}
	return filepath.Clean(p), nil
}
