package driver

import (
	"context"
	"path"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/rstored/rstored/nfs/client"
)

// controller is the Controller service. It works through servers and mounts nothing.
//
// It records the requested size. So it refuses a second request for the volume with another size,
// and a size larger than the server's file system. A volume with an export of its own has a quota
// of that size. For other volumes the driver reports no capacity. Snapshots and clones are copies
// that the server makes file by file. So the copy of a volume in use does not show it at one
// moment.
type controller struct {
	csi.UnimplementedControllerServer
	servers servers
	exports exporter
	volumes busy
}

// servers are the operations on servers. The methods may be called from any goroutine.
type servers interface {
	// Total is the size in bytes of the file system of a share.
	Total(ctx context.Context, share client.URL) (uint64, error)
	// Record reads the record of a volume. The error is fs.ErrNotExist if there is none.
	Record(ctx context.Context, share client.URL, directory string) ([]byte, error)
	// PutRecord writes the record of a volume, whole or not at all.
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
	// Copy copies the contents of a directory to an empty directory of the same server, with their
	// attributes.
	Copy(ctx context.Context, from client.URL, fromDir string, to client.URL, toDir string) error
}

// record describes a volume, as JSON, in recordDir of the share.
type record struct {
	Name     string `json:"name"`     // in CreateVolume
	Required int64  `json:"required"` // bytes that the request asks for; 0 is any
	Limit    int64  `json:"limit,omitempty"`
	// Source is the identifier of the volume or snapshot from which the volume was copied. Copying
	// says that the copy is not complete.
	Source  string    `json:"source,omitempty"`
	Copying bool      `json:"copying,omitempty"`
	Made    time.Time `json:"made,omitzero"` // of a snapshot
	// Control is the control interface at which the driver changes the volume's own export. It is
	// empty if the volume has no such export. Enforced says that the export has a quota of Required
	// bytes.
	Control  string `json:"control,omitempty"`
	Enforced bool   `json:"enforced,omitempty"`
}

// ControllerGetCapabilities implements csi.ControllerServer.
func (c *controller) ControllerGetCapabilities(
	context.Context, *csi.ControllerGetCapabilitiesRequest,
) (*csi.ControllerGetCapabilitiesResponse, error) {
	var out csi.ControllerGetCapabilitiesResponse
	for _, t := range []csi.ControllerServiceCapability_RPC_Type{
		csi.ControllerServiceCapability_RPC_CREATE_DELETE_VOLUME, csi.ControllerServiceCapability_RPC_CREATE_DELETE_SNAPSHOT,
		csi.ControllerServiceCapability_RPC_CLONE_VOLUME, csi.ControllerServiceCapability_RPC_EXPAND_VOLUME,
		csi.ControllerServiceCapability_RPC_PUBLISH_UNPUBLISH_VOLUME,
	} {
		out.Capabilities = append(out.Capabilities, &csi.ControllerServiceCapability{
			Type: &csi.ControllerServiceCapability_Rpc{Rpc: &csi.ControllerServiceCapability_RPC{Type: t}},
		})
	}
	return &out, nil
}

// CreateVolume implements csi.ControllerServer. It writes the record first. If a directory has no
// record, this driver has not made it, and neither uses nor removes it.
func (c *controller) CreateVolume(ctx context.Context, r *csi.CreateVolumeRequest) (*csi.CreateVolumeResponse, error) {
	if r.GetName() == "" {
		return nil, status.Error(codes.InvalidArgument, "the volume's name is missing")
	}
	cl, err := parseClass(r.GetParameters())
	if err != nil {
		return nil, status.Error(codes.InvalidArgument, err.Error())
	}
	if err := capabilities(r.GetVolumeCapabilities(), cl.place); err != nil {
		return nil, status.Error(codes.InvalidArgument, err.Error())
	}
	where, err := accessible(cl.topology, r.GetAccessibilityRequirements())
	if err != nil {
		return nil, err
	}
	rec := record{Name: r.GetName(), Control: cl.control, Enforced: cl.enforced}
	if rec.Required, rec.Limit, err = sizes(r.GetCapacityRange()); err != nil {
		return nil, err
	}
	v := volume{share: cl.controller, directory: dirName(r.GetName()), retain: cl.retain}
	id, err := v.id()
	if err != nil {
		return nil, status.Error(codes.InvalidArgument, err.Error())
	}
	from, err := c.source(ctx, r.GetVolumeContentSource(), v.share)
	if err != nil {
		return nil, err
	}
	if from != nil {
		rec.Source, rec.Copying = from.id, true
	}
	release, err := c.volumes.take(v.share.String() + "#" + v.directory)
	if err != nil {
		return nil, err
	}
	err = finish(ctx, release, func(ctx context.Context) error {
		if err := c.claim(ctx, v, &rec); err != nil {
			return err
		}
		if rec.Copying {
			if err := c.fill(ctx, from, v, &rec); err != nil {
				return err
			}
		}
		if err := c.servers.Make(ctx, v.share, v.directory, cl.mode, cl.uid, cl.gid); err != nil {
			return serverError(v.share, err)
		}
		return c.export(ctx, v, &rec)
	})
	if err != nil {
		return nil, err
	}
	cl.directory = v.directory
	capacity := int64(0) // a size that is only recorded promises nothing
	if rec.Control != "" {
		cl.share = path.Dir(exportName(v.share, v.directory))
	}
	if rec.Enforced {
		capacity = rec.Required
	}
	return &csi.CreateVolumeResponse{Volume: &csi.Volume{
		CapacityBytes: capacity,
		VolumeId:      id, VolumeContext: cl.context(), ContentSource: r.GetVolumeContentSource(),
		AccessibleTopology: where,
	}}, nil
}

// export makes a volume's own export, or sets the quota of the export, if the class of the volume
// says so.
func (c *controller) export(ctx context.Context, v volume, rec *record) error {
	if rec.Control == "" {
		return nil
	}
	quota := int64(0)
	if rec.Enforced {
		quota = rec.Required
	}
	return controlError(c.exports.Put(ctx, rec.Control, v.share, v.directory, quota))
}

// sizes checks the range of a size.
func sizes(r *csi.CapacityRange) (required, limit int64, err error) {
	required, limit = r.GetRequiredBytes(), r.GetLimitBytes()
	if required < 0 || limit < 0 || limit > 0 && limit < required {
		return 0, 0, status.Errorf(codes.InvalidArgument, "no size is at least %d and at most %d bytes", required, limit)
	}
	return required, limit, nil
}

// fits refuses a size that is larger than the file system of a share.
func (c *controller) fits(ctx context.Context, share client.URL, required int64) error {
	total, err := c.servers.Total(ctx, share)
	if err != nil {
		return serverError(share, err)
	}
	if total > 0 && uint64(required) > total {
		return status.Errorf(codes.OutOfRange, "%d bytes were asked for, and the file system of %s has %d", required, share,
			total)
	}
	return nil
}

// claim writes the record of a volume or of a snapshot. If there is a record already and it fits
// the request, claim returns that record in rec.
func (c *controller) claim(ctx context.Context, v volume, rec *record) error {
	have, err := c.record(ctx, v.share, v.directory)
	switch {
	case err == nil:
		if have.Name != rec.Name {
			return status.Errorf(codes.AlreadyExists, "%s is the directory of the volume %q", v.directory, have.Name)
		}
		if have.Control != rec.Control {
			return status.Errorf(codes.AlreadyExists, "%q was made with %s %q", have.Name, paramControl, have.Control)
		}
		if have.Source != rec.Source {
			return status.Errorf(codes.AlreadyExists, "%q is a copy of %q, not of %q", have.Name, have.Source, rec.Source)
		}
		if have.Required < rec.Required || rec.Limit > 0 && have.Required > rec.Limit {
			return status.Errorf(codes.AlreadyExists, "the volume %q was made for %d bytes", have.Name, have.Required)
		}
		*rec = have
		return nil
	case status.Code(err) != codes.NotFound:
		return err
	}
	there, err := c.servers.Exists(ctx, v.share, v.directory)
	if err != nil {
		return serverError(v.share, err)
	}
	if there {
		return status.Errorf(codes.AlreadyExists, "%s has a directory %s that this driver has not made", v.share, v.directory)
	}
	if err := c.fits(ctx, v.share, rec.Required); err != nil {
		return err
	}
	return c.put(ctx, v.share, v.directory, *rec)
}

// DeleteVolume implements csi.ControllerServer. If this driver has not made an identifier, there is
// no such volume. It then counts as deleted.
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
	if err := c.remove(ctx, v); err != nil {
		return nil, err
	}
	return &csi.DeleteVolumeResponse{}, nil
}

// remove removes a volume or a snapshot that has a record. It removes the record last.
func (c *controller) remove(ctx context.Context, v volume) error {
	rec, err := c.record(ctx, v.share, v.directory)
	if status.Code(err) == codes.NotFound {
		return nil
	}
	if err == nil && rec.Control != "" {
		err = controlError(c.exports.Remove(ctx, rec.Control, exportName(v.share, v.directory)))
	}
	if err != nil {
		return err
	}
	if err := c.servers.Remove(ctx, v.share, v.directory); err != nil {
		return serverError(v.share, err)
	}
	if err := c.servers.RemoveRecord(ctx, v.share, v.directory); err != nil {
		return serverError(v.share, err)
	}
	return nil
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

// objection returns the reason why a volume does not meet a request, or an empty string.
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
