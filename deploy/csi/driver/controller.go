package driver

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/rstored/rstored/nfs/client"
)

// controller is the Controller service. It works through servers and mounts nothing.
//
// It does not enforce sizes. It records the requested size, so that a second request for the volume
// with another size is refused, and refuses a size larger than the server's file system. It reports
// no capacity of a volume. It offers neither snapshots nor clones: the server's COPY is of one
// file, so a copy of a directory in use would not be of one moment.
type controller struct {
	csi.UnimplementedControllerServer
	servers servers
	volumes busy
}

// servers are the operations on servers. The methods may be called from any goroutine.
type servers interface {
	// Total is the size in bytes of the file system of a share.
	Total(ctx context.Context, share client.URL) (uint64, error)
	// Record reads the record of a volume. The error is fs.ErrNotExist if there is none.
	Record(ctx context.Context, share client.URL, directory string) ([]byte, error)
	// PutRecord writes it, whole or not at all.
	PutRecord(ctx context.Context, share client.URL, directory string, b []byte) error
	// RemoveRecord removes the record. A missing record is no error.
	RemoveRecord(ctx context.Context, share client.URL, directory string) error
	// Exists reports whether a share has the directory. An object of another type with that name is
	// an error.
	Exists(ctx context.Context, share client.URL, directory string) (bool, error)
	// Make makes a directory, or sets the attributes of an existing one.
	Make(ctx context.Context, share client.URL, directory string, mode uint32, uid, gid *uint32) error
	// Remove removes a directory and its contents. A missing directory is no error.
	Remove(ctx context.Context, share client.URL, directory string) error
}

// record describes a volume, as JSON, in recordDir of the share.
type record struct {
	Name     string `json:"name"`     // in CreateVolume
	Required int64  `json:"required"` // bytes that were asked for; 0 is any
	Limit    int64  `json:"limit,omitempty"`
}

// ControllerGetCapabilities implements csi.ControllerServer.
func (c *controller) ControllerGetCapabilities(
	context.Context, *csi.ControllerGetCapabilitiesRequest,
) (*csi.ControllerGetCapabilitiesResponse, error) {
	volumes := &csi.ControllerServiceCapability_RPC{Type: csi.ControllerServiceCapability_RPC_CREATE_DELETE_VOLUME}
	return &csi.ControllerGetCapabilitiesResponse{Capabilities: []*csi.ControllerServiceCapability{{
		Type: &csi.ControllerServiceCapability_Rpc{Rpc: volumes},
	}}}, nil
}

// CreateVolume implements csi.ControllerServer. It writes the record first. A directory without a
// record was not made by this driver, and the driver neither uses nor removes it.
func (c *controller) CreateVolume(ctx context.Context, r *csi.CreateVolumeRequest) (*csi.CreateVolumeResponse, error) {
	if r.GetName() == "" {
		return nil, status.Error(codes.InvalidArgument, "the volume's name is missing")
	}
	if r.GetVolumeContentSource() != nil {
		return nil, status.Error(codes.InvalidArgument, "volumes are made empty: there are no snapshots and no clones")
	}
	cl, err := parseClass(r.GetParameters())
	if err != nil {
		return nil, status.Error(codes.InvalidArgument, err.Error())
	}
	if err := capabilities(r.GetVolumeCapabilities(), cl.place); err != nil {
		return nil, status.Error(codes.InvalidArgument, err.Error())
	}
	size := r.GetCapacityRange()
	want := record{Name: r.GetName(), Required: size.GetRequiredBytes(), Limit: size.GetLimitBytes()}
	if want.Required < 0 || want.Limit < 0 || want.Limit > 0 && want.Limit < want.Required {
		return nil, status.Errorf(codes.InvalidArgument, "no size is at least %d and at most %d bytes", want.Required,
			want.Limit)
	}
	v := volume{share: cl.controller, directory: dirName(r.GetName()), retain: cl.retain}
	id, err := v.id()
	if err != nil {
		return nil, status.Error(codes.InvalidArgument, err.Error())
	}
	release, err := c.volumes.take(v.share.String() + "#" + v.directory)
	if err != nil {
		return nil, err
	}
	defer release()
	if err := c.claim(ctx, v, want); err != nil {
		return nil, err
	}
	if err := c.servers.Make(ctx, v.share, v.directory, cl.mode, cl.uid, cl.gid); err != nil {
		return nil, serverError(v.share, err)
	}
	cl.directory = v.directory
	return &csi.CreateVolumeResponse{Volume: &csi.Volume{VolumeId: id, VolumeContext: cl.context()}}, nil
}

// claim writes the record of a volume, or checks that the existing record is for the same volume.
func (c *controller) claim(ctx context.Context, v volume, want record) error {
	b, err := c.servers.Record(ctx, v.share, v.directory)
	switch {
	case err == nil:
		var have record
		if err := json.Unmarshal(b, &have); err != nil {
			return status.Errorf(codes.Internal, "the record of %s in %s: %v", v.directory, v.share, err)
		}
		if have.Name != want.Name {
			return status.Errorf(codes.AlreadyExists, "%s is the directory of the volume %q", v.directory, have.Name)
		}
		if have.Required < want.Required || want.Limit > 0 && have.Required > want.Limit {
			return status.Errorf(codes.AlreadyExists, "the volume %q was made for %d bytes", have.Name, have.Required)
		}
		return nil
	case !errors.Is(err, fs.ErrNotExist):
		return serverError(v.share, err)
	}
	there, err := c.servers.Exists(ctx, v.share, v.directory)
	if err != nil {
		return serverError(v.share, err)
	}
	if there {
		return status.Errorf(codes.AlreadyExists, "%s has a directory %s that this driver has not made", v.share, v.directory)
	}
	total, err := c.servers.Total(ctx, v.share)
	if err != nil {
		return serverError(v.share, err)
	}
	if total > 0 && uint64(want.Required) > total {
		return status.Errorf(codes.OutOfRange, "%d bytes were asked for, and the file system of %s has %d", want.Required,
			v.share, total)
	}
	if b, err = json.Marshal(want); err != nil {
		return status.Error(codes.Internal, err.Error())
	}
	if err := c.servers.PutRecord(ctx, v.share, v.directory, append(b, '\n')); err != nil {
		return serverError(v.share, err)
	}
	return nil
}

// DeleteVolume implements csi.ControllerServer. An identifier that this driver has not made names
// no volume of it, so the volume counts as deleted.
func (c *controller) DeleteVolume(ctx context.Context, r *csi.DeleteVolumeRequest) (*csi.DeleteVolumeResponse, error) {
	if r.GetVolumeId() == "" {
		return nil, status.Error(codes.InvalidArgument, "the volume's identifier is missing")
	}
	v, err := parseID(r.GetVolumeId())
	if err != nil || v.retain {
		return &csi.DeleteVolumeResponse{}, nil
	}
	release, err := c.volumes.take(v.share.String() + "#" + v.directory)
	if err != nil {
		return nil, err
	}
	defer release()
	if _, err := c.servers.Record(ctx, v.share, v.directory); errors.Is(err, fs.ErrNotExist) {
		return &csi.DeleteVolumeResponse{}, nil
	} else if err != nil {
		return nil, serverError(v.share, err)
	}
	if err := c.servers.Remove(ctx, v.share, v.directory); err != nil {
		return nil, serverError(v.share, err)
	}
	if err := c.servers.RemoveRecord(ctx, v.share, v.directory); err != nil {
		return nil, serverError(v.share, err)
	}
	return &csi.DeleteVolumeResponse{}, nil
}

// ValidateVolumeCapabilities implements csi.ControllerServer.
func (c *controller) ValidateVolumeCapabilities(
	ctx context.Context, r *csi.ValidateVolumeCapabilitiesRequest,
) (*csi.ValidateVolumeCapabilitiesResponse, error) {
	if r.GetVolumeId() == "" {
		return nil, status.Error(codes.InvalidArgument, "the volume's identifier is missing")
	}
	if len(r.GetVolumeCapabilities()) == 0 {
		return nil, status.Error(codes.InvalidArgument, "the volume capabilities are missing")
	}
	v, err := parseID(r.GetVolumeId())
	if err != nil {
		return nil, status.Errorf(codes.NotFound, "%q: %v", r.GetVolumeId(), err)
	}
	there, err := c.servers.Exists(ctx, v.share, v.directory)
	if err != nil {
		return nil, serverError(v.share, err)
	}
	if !there {
		return nil, status.Errorf(codes.NotFound, "%s has no directory %s", v.share, v.directory)
	}
	if why := objection(r); why != "" {
		return &csi.ValidateVolumeCapabilitiesResponse{Message: why}, nil
	}
	return &csi.ValidateVolumeCapabilitiesResponse{Confirmed: &csi.ValidateVolumeCapabilitiesResponse_Confirmed{
		VolumeContext: r.GetVolumeContext(), VolumeCapabilities: r.GetVolumeCapabilities(), Parameters: r.GetParameters(),
	}}, nil
}

// objection is the reason why a volume does not meet a request, or empty.
func objection(r *csi.ValidateVolumeCapabilitiesRequest) string {
	var p place
	var err error
	if len(r.GetVolumeContext()) > 0 {
		p, err = parsePlace(r.GetVolumeContext())
	}
	if err == nil && len(r.GetParameters()) > 0 {
		_, err = parseClass(r.GetParameters())
	}
	if err == nil {
		err = capabilities(r.GetVolumeCapabilities(), p)
	}
	if err != nil {
		return err.Error()
	}
	return ""
}
