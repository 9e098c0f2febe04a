package driver

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"strings"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/rstored/rstored/nfs/client"
)

// A snapshot is a copy of the directory of a volume, in a share of its own inside of recordDir. It
// has a record there, as volumes have. The server copies, and shares blocks if its file system can.
// Files that change meanwhile are copied as they are found: the copy does not show the volume at
// one moment.
const (
	snapshotDir = "snapshots"
	// snapshotMark ends the identifiers of snapshots: nfs+tcp://server:2049/share#directory#snapshot.
	snapshotMark = "#snapshot"
)

// snapshots returns the share that has the snapshots of a share.
func snapshots(share client.URL) client.URL { return share.Join(recordDir).Join(snapshotDir) }

func snapshotID(v volume) (string, error) {
	id := v.share.String() + "#" + v.directory + snapshotMark
	if len(id) > idMax {
		return "", status.Errorf(codes.InvalidArgument, "the snapshot's identifier %s would have %d bytes, which is more "+
			"than %d", id, len(id), idMax)
	}
	return id, nil
}

// parseSnapshotID returns the share of the volume, and the directory of the snapshot.
func parseSnapshotID(id string) (volume, error) {
	rest, ok := strings.CutSuffix(id, snapshotMark)
	if !ok || len(id) > idMax {
		return volume{}, errNotOurs
	}
	v, err := parseID(rest)
	if err != nil || v.retain {
		return volume{}, errNotOurs
	}
	return v, nil
}

// origin is the source from which a volume or a snapshot is copied.
type origin struct {
	share     client.URL
	directory string
	id        string // for the record
}

// source finds the source of a new volume. The source must be on the server of the share to.
func (c *controller) source(ctx context.Context, s *csi.VolumeContentSource, to client.URL) (*origin, error) {
	var o origin
	var v volume
	var err error
	switch {
	case s == nil:
		return nil, nil
	case s.GetSnapshot() != nil:
		o.id = s.GetSnapshot().GetSnapshotId()
		v, err = parseSnapshotID(o.id)
		o.share, o.directory = snapshots(v.share), v.directory
	case s.GetVolume() != nil:
		o.id = s.GetVolume().GetVolumeId()
		v, err = parseID(o.id)
		o.share, o.directory = v.share, v.directory
	default:
		return nil, status.Error(codes.InvalidArgument, "the source of the volume is neither a volume nor a snapshot")
	}
	if err != nil {
		return nil, status.Errorf(codes.NotFound, "%q: %v", o.id, err)
	}
	if v.share.Host != to.Host {
		return nil, status.Errorf(codes.InvalidArgument, "%s is on another server than %s: servers copy within themselves "+
			"only", o.id, to)
	}
	rec, err := c.record(ctx, o.share, o.directory)
	if err != nil {
		return nil, err
	}
	if rec.Copying {
		return nil, status.Errorf(codes.FailedPrecondition, "%s is not complete", o.id)
	}
	return &o, nil
}

// record reads the record of a volume or of a snapshot that must exist.
func (c *controller) record(ctx context.Context, share client.URL, directory string) (r record, err error) {
	b, err := c.servers.Record(ctx, share, directory)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, errShare) {
		return r, status.Errorf(codes.NotFound, "%s has no volume or snapshot %s", share, directory)
	}
	if err != nil {
		return r, serverError(share, err)
	}
	if err := json.Unmarshal(b, &r); err != nil {
		return r, status.Errorf(codes.Internal, "the record of %s in %s: %v", directory, share, err)
	}
	return r, nil
}

// put writes a record.
func (c *controller) put(ctx context.Context, share client.URL, directory string, r record) error {
	b, err := json.Marshal(r)
	if err != nil {
		return status.Error(codes.Internal, err.Error())
	}
	if err := c.servers.PutRecord(ctx, share, directory, append(b, '\n')); err != nil {
		return serverError(share, err)
	}
	return nil
}

// fill copies from to a directory whose record says Copying. It first removes what an earlier
// attempt has left. At the end it clears Copying in the record.
func (c *controller) fill(ctx context.Context, from *origin, to volume, rec *record) error {
	if rec.Control != "" {
		if err := c.exports.Remove(ctx, rec.Control, exportName(to.share, to.directory)); err != nil {
			return controlError(err)
		}
	}
	if err := c.servers.Remove(ctx, to.share, to.directory); err != nil {
		return serverError(to.share, err)
	}
	if err := c.servers.Make(ctx, to.share, to.directory, 0o700, nil, nil); err != nil {
		return serverError(to.share, err)
	}
	// The quota is set while the directory is empty.
	if err := c.export(ctx, to, rec); err != nil {
		return err
	}
	if err := c.servers.Copy(ctx, from.share, from.directory, to.share, to.directory); err != nil {
		return serverError(from.share, err)
	}
	rec.Copying = false
	return c.put(ctx, to.share, to.directory, *rec)
}

// finish runs f to its end, even if the caller gives up the call meanwhile, and then calls release.
// When Kubernetes asks again, it gets ABORTED until f has ended.
func finish(ctx context.Context, release func(), f func(ctx context.Context) error) error {
	done := make(chan error, 1)
	go func() {
		defer release()
		done <- f(context.WithoutCancel(ctx))
	}()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return status.Error(codes.DeadlineExceeded, "the copy continues in the background")
	}
}

// CreateSnapshot implements csi.ControllerServer.
func (c *controller) CreateSnapshot(
	ctx context.Context, r *csi.CreateSnapshotRequest,
) (*csi.CreateSnapshotResponse, error) {
	if r.GetName() == "" || r.GetSourceVolumeId() == "" {
		return nil, status.Error(codes.InvalidArgument, "the snapshot's name or the identifier of its volume is missing")
	}
	if len(r.GetParameters()) > 0 {
		if err := keys(r.GetParameters(), nil); err != nil {
			return nil, status.Error(codes.InvalidArgument, err.Error())
		}
	}
	v, err := parseID(r.GetSourceVolumeId())
	if err != nil {
		return nil, status.Errorf(codes.NotFound, "%q: %v", r.GetSourceVolumeId(), err)
	}
	from := &origin{share: v.share, directory: v.directory, id: r.GetSourceVolumeId()}
	of, err := c.record(ctx, from.share, from.directory)
	if err != nil {
		return nil, err
	}
	if of.Copying {
		return nil, status.Errorf(codes.FailedPrecondition, "%s is not complete", from.id)
	}
	to := volume{share: snapshots(v.share), directory: dirName(r.GetName())}
	id, err := snapshotID(volume{share: v.share, directory: to.directory})
	if err != nil {
		return nil, err
	}
	release, err := c.volumes.take(id)
	if err != nil {
		return nil, err
	}
	rec := record{Name: r.GetName(), Required: of.Required, Source: from.id, Made: time.Now().UTC(), Copying: true}
	err = finish(ctx, release, func(ctx context.Context) error {
		if err := c.servers.Make(ctx, v.share.Join(recordDir), snapshotDir, 0o700, nil, nil); err != nil {
			return serverError(v.share, err)
		}
		if err := c.claim(ctx, to, &rec); err != nil || !rec.Copying {
			return err
		}
		return c.fill(ctx, from, to, &rec)
	})
	if err != nil {
		return nil, err
	}
	return &csi.CreateSnapshotResponse{Snapshot: &csi.Snapshot{
		SnapshotId: id, SourceVolumeId: from.id, CreationTime: timestamppb.New(rec.Made), ReadyToUse: true,
		SizeBytes: rec.Required,
	}}, nil
}

// DeleteSnapshot implements csi.ControllerServer.
func (c *controller) DeleteSnapshot(
	ctx context.Context, r *csi.DeleteSnapshotRequest,
) (*csi.DeleteSnapshotResponse, error) {
	if r.GetSnapshotId() == "" {
		return nil, status.Error(codes.InvalidArgument, "the snapshot's identifier is missing")
	}
	v, err := parseSnapshotID(r.GetSnapshotId())
	if err != nil {
		return &csi.DeleteSnapshotResponse{}, nil
	}
	release, err := c.volumes.take(r.GetSnapshotId())
	if err != nil {
		return nil, err
	}
	defer release()
	v.share = snapshots(v.share)
	if err := c.remove(ctx, v); err != nil {
		return nil, err
	}
	return &csi.DeleteSnapshotResponse{}, nil
}

// ControllerExpandVolume implements csi.ControllerServer. It changes the record. If the volume has
// a quota, it changes the quota too.
func (c *controller) ControllerExpandVolume(
	ctx context.Context, r *csi.ControllerExpandVolumeRequest,
) (*csi.ControllerExpandVolumeResponse, error) {
	if r.GetVolumeId() == "" || r.GetCapacityRange() == nil {
		return nil, status.Error(codes.InvalidArgument, "the volume's identifier or its new size is missing")
	}
	required, limit, err := sizes(r.GetCapacityRange())
	if err != nil {
		return nil, err
	}
	v, err := parseID(r.GetVolumeId())
	if err != nil {
		return nil, status.Errorf(codes.NotFound, "%q: %v", r.GetVolumeId(), err)
	}
	release, err := c.volumes.take(v.share.String() + "#" + v.directory)
	if err != nil {
		return nil, err
	}
	defer release()
	rec, err := c.record(ctx, v.share, v.directory)
	if err != nil {
		return nil, err
	}
	if limit > 0 && rec.Required > limit {
		return nil, status.Errorf(codes.OutOfRange, "the volume has %d bytes already", rec.Required)
	}
	if required > rec.Required {
		if err := c.fits(ctx, v.share, required); err != nil {
			return nil, err
		}
		rec.Required, rec.Limit = required, limit
		if err := c.put(ctx, v.share, v.directory, rec); err != nil {
			return nil, err
		}
	}
	if err := c.export(ctx, v, &rec); err != nil {
		return nil, err
	}
	return &csi.ControllerExpandVolumeResponse{CapacityBytes: rec.Required}, nil
}
