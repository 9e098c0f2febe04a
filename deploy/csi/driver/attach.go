package driver

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// NodeID returns the identifier of a node: its name and the addresses from which it mounts. The
// rules of exports use the addresses.
func NodeID(name string, addresses []string) (string, error) {
	for _, a := range addresses {
		if _, err := netip.ParseAddr(a); err != nil {
			return "", fmt.Errorf("--address %s: %w", a, err)
		}
	}
	if strings.ContainsAny(name, "@,") || name == "" {
		return "", fmt.Errorf("the node's name %q has none, or an @ or a comma", name)
	}
	return name + "@" + strings.Join(addresses, ","), nil
}

// addressesOf returns the addresses in a result of NodeID. There may be none.
func addressesOf(id string) (list []string, err error) {
	_, text, ok := strings.Cut(id, "@")
	if !ok {
		return nil, status.Errorf(codes.NotFound, "the node %q is not one of this driver", id)
	}
	if text == "" {
		return nil, nil
	}
	for a := range strings.SplitSeq(text, ",") {
		ip, err := netip.ParseAddr(a)
		if err != nil {
			return nil, status.Errorf(codes.NotFound, "the node %q: %v", id, err)
		}
		list = append(list, ip.Unmap().String())
	}
	return list, nil
}

// ControllerPublishVolume implements csi.ControllerServer. If the volume has an export, the export
// admits the node from then on. Other volumes are in an export whose administrator decides which
// clients it admits.
func (c *controller) ControllerPublishVolume(
	ctx context.Context, r *csi.ControllerPublishVolumeRequest,
) (*csi.ControllerPublishVolumeResponse, error) {
	switch {
	case r.GetVolumeId() == "" || r.GetNodeId() == "":
		return nil, status.Error(codes.InvalidArgument, "the identifier of the volume or of the node is missing")
	case r.GetVolumeCapability() == nil:
		return nil, status.Error(codes.InvalidArgument, "the volume capability is missing")
	case r.GetVolumeCapability().GetBlock() != nil,
		!slices.Contains(modes, r.GetVolumeCapability().GetAccessMode().GetMode()):
		return nil, status.Error(codes.InvalidArgument, "the volume capability is not supported")
	}
	done := &csi.ControllerPublishVolumeResponse{}
	v, err := parseID(r.GetVolumeId())
	if err != nil { // an existing directory, which its attributes describe
		if _, perr := parsePlace(r.GetVolumeContext()); perr == nil {
			return done, nil
		}
		return nil, status.Errorf(codes.NotFound, "%q: %v", r.GetVolumeId(), err)
	}
	rec, err := c.record(ctx, v.share, v.directory)
	if err != nil {
		return nil, err
	}
	addresses, err := addressesOf(r.GetNodeId())
	switch {
	case err != nil:
		return nil, err
	case rec.Control == "": // no export of its own: any node reaches it
		return done, nil
	case len(addresses) == 0:
		return nil, status.Errorf(codes.FailedPrecondition, "the node %q has no address that the export of volume %q "+
			"could admit: start its plugin with --address", r.GetNodeId(), r.GetVolumeId())
	}
	release, err := c.volumes.take(v.share.String() + "#" + v.directory)
	if err != nil {
		return nil, err
	}
	defer release()
	if err := c.exports.Allow(ctx, rec.Control, exportName(v.share, v.directory), addresses); err != nil {
		return nil, controlError(err)
	}
	return done, nil
}

// ControllerUnpublishVolume implements csi.ControllerServer. A request without a node is for all
// nodes.
func (c *controller) ControllerUnpublishVolume(
	ctx context.Context, r *csi.ControllerUnpublishVolumeRequest,
) (*csi.ControllerUnpublishVolumeResponse, error) {
	if r.GetVolumeId() == "" {
		return nil, status.Error(codes.InvalidArgument, "the identifier of the volume is missing")
	}
	done := &csi.ControllerUnpublishVolumeResponse{}
	v, err := parseID(r.GetVolumeId())
	if err != nil {
		return done, nil
	}
	rec, err := c.record(ctx, v.share, v.directory)
	if status.Code(err) == codes.NotFound || err == nil && rec.Control == "" {
		return done, nil
	}
	if err != nil {
		return nil, err
	}
	var addresses []string
	if r.GetNodeId() != "" {
		if addresses, err = addressesOf(r.GetNodeId()); err != nil || len(addresses) == 0 {
			return done, nil // the volume was not published to this node
		}
	}
	release, err := c.volumes.take(v.share.String() + "#" + v.directory)
	if err != nil {
		return nil, err
	}
	defer release()
	if err := c.exports.Deny(ctx, rec.Control, exportName(v.share, v.directory), addresses); err != nil {
		return nil, controlError(err)
	}
	return done, nil
}
