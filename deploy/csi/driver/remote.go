package driver

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/rstored/rstored/blockstore"
	"github.com/rstored/rstored/nfs"
	"github.com/rstored/rstored/nfs/client"
	"github.com/rstored/rstored/nfs/dial"
)

// recordDir is the directory of a share with the records of its volumes. Pods do not see it,
// because they mount the directories beside it.
const recordDir = ".rstored-csi"

// recordMax bounds a record in bytes.
const recordMax = 4096

// remote implements servers as an NFS client.
type remote struct{ dialer *dial.Dialer }

// at returns the client for a share and the directory of the share. A share can be a symbolic link
// on the server. Below it no link is followed.
func (s *remote) at(ctx context.Context, share client.URL) (*client.Client, client.Handle, error) {
	c := s.dialer.Client(share)
	n, err := c.Follow(ctx, share.Path, true)
	if gone(err) { // differs from the error of a missing object in the share
		return nil, nil, fmt.Errorf("%w: %v", errShare, err)
	}
	if err != nil {
		return nil, nil, err
	}
	return c, n.Handle, nil
}

// Total implements servers.
func (s *remote) Total(ctx context.Context, share client.URL) (uint64, error) {
	c, dir, err := s.at(ctx, share)
	if err != nil {
		return 0, err
	}
	st, err := c.Stat(ctx, dir)
	return st.TotalBytes, err
}

// Record implements servers.
func (s *remote) Record(ctx context.Context, share client.URL, directory string) ([]byte, error) {
	c, dir, err := s.at(ctx, share)
	if err != nil {
		return nil, err
	}
	n, err := c.Lookup(ctx, dir, recordDir)
	if err == nil {
		n, err = c.Lookup(ctx, n.Handle, recordName(directory))
	}
	if gone(err) {
		return nil, fs.ErrNotExist
	}
	if err != nil {
		return nil, err
	}
	var b bytes.Buffer
	if n.Attr.Size > recordMax {
		return nil, fmt.Errorf("the record of %s has %d bytes", directory, n.Attr.Size)
	}
	if _, err := c.Stream(ctx, n.Handle, &limited{&b, recordMax}, 0); err != nil {
		return nil, err
	}
	return b.Bytes(), nil
}

// PutRecord implements servers.
func (s *remote) PutRecord(ctx context.Context, share client.URL, directory string, b []byte) error {
	c, dir, err := s.at(ctx, share)
	if err != nil {
		return err
	}
	mode := uint32(0o700)
	n, err := c.Mkdir(ctx, dir, recordDir, &blockstore.SetAttr{Mode: &mode})
	if client.IsStatus(err, nfs.ErrExist) {
		if n, err = c.Lookup(ctx, dir, recordDir); err == nil && n.Attr.Type != blockstore.TypeDir {
			err = fmt.Errorf("%s is not a directory", recordDir)
		}
	}
	if err != nil {
		return err
	}
	name, part := recordName(directory), "."+recordName(directory)+".part"
	// Unchecked: it replaces the partial file of a controller that was killed.
	f, err := c.CreateFile(ctx, share.Join(recordDir).Join(part).Path, 0o600)
	if err != nil {
		return err
	}
	_, err = f.WriteAt(b, 0)
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	return c.Rename(ctx, n.Handle, part, n.Handle, name)
}

// RemoveRecord implements servers.
func (s *remote) RemoveRecord(ctx context.Context, share client.URL, directory string) error {
	c, dir, err := s.at(ctx, share)
	if err != nil {
		return err
	}
	n, err := c.Lookup(ctx, dir, recordDir)
	if err == nil {
		err = c.Remove(ctx, n.Handle, recordName(directory))
	}
	return unlessGone(err)
}

// Exists implements servers.
func (s *remote) Exists(ctx context.Context, share client.URL, directory string) (bool, error) {
	c, dir, err := s.at(ctx, share)
	if err != nil {
		return false, err
	}
	n, err := c.Lookup(ctx, dir, directory)
	switch {
	case gone(err):
		return false, nil
	case err != nil:
		return false, err
	case n.Attr.Type != blockstore.TypeDir:
		return false, fmt.Errorf("%s is not a directory", directory)
	}
	return true, nil
}

// Make implements servers.
func (s *remote) Make(ctx context.Context, share client.URL, directory string, mode uint32, uid, gid *uint32) error {
	c, dir, err := s.at(ctx, share)
	if err != nil {
		return err
	}
	n, err := c.Mkdir(ctx, dir, directory, &blockstore.SetAttr{Mode: &mode})
	if client.IsStatus(err, nfs.ErrExist) {
		if n, err = c.Lookup(ctx, dir, directory); err == nil && n.Attr.Type != blockstore.TypeDir {
			err = fmt.Errorf("%s is not a directory", directory)
		}
	}
	if err != nil {
		return err
	}
	// SETATTR undoes the server's umask. It also completes the attempt of an earlier call.
	if uid != nil || gid != nil {
		if err := c.SetAttr(ctx, n.Handle, &blockstore.SetAttr{UID: uid, GID: gid}, nil); err != nil {
			return fmt.Errorf("giving %s to its owner: %w", directory, err)
		}
	}
	return c.SetAttr(ctx, n.Handle, &blockstore.SetAttr{Mode: &mode}, nil)
}

// Remove implements servers. It finds directories by handle and removes symbolic links without
// following them, so the targets of links stay.
func (s *remote) Remove(ctx context.Context, share client.URL, directory string) error {
	c, dir, err := s.at(ctx, share)
	if err != nil {
		return err
	}
	n, err := c.Lookup(ctx, dir, directory)
	if err != nil {
		return unlessGone(err)
	}
	if n.Attr.Type != blockstore.TypeDir {
		return fmt.Errorf("%s is not a directory", directory)
	}
	return c.RemoveTree(ctx, dir, directory, n)
}

func recordName(directory string) string { return directory + ".json" }

func gone(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || client.IsStatus(err, nfs.ErrNoEnt) || client.IsStatus(err, nfs.ErrStale)
}

func unlessGone(err error) error {
	if gone(err) {
		return nil
	}
	return err
}

// errShare means that the server does not have the share.
var errShare = errors.New("there is no such share")

// limited is a writer that accepts at most n bytes, because a server can send any amount.
type limited struct {
	w io.Writer
	n int
}

// Write implements io.Writer.
func (l *limited) Write(p []byte) (int, error) {
	if l.n -= len(p); l.n < 0 {
		return 0, errors.New("larger than it may be")
	}
	return l.w.Write(p)
}

// serverError names the server, has a code that tells the caller whether to try again, and says
// what an administrator can do.
func serverError(share client.URL, err error) error {
	code, hint := codes.Unavailable, ""
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		code = codes.DeadlineExceeded
	case errors.Is(err, context.Canceled):
		code = codes.Canceled
	case client.IsStatus(err, nfs.ErrAcces), client.IsStatus(err, nfs.ErrPerm):
		code = codes.PermissionDenied
		hint = "export it to the address of the controller with no_root_squash, " +
			"or let the user that it is squashed to write there"
	case client.IsStatus(err, nfs.ErrROFS):
		code, hint = codes.PermissionDenied, "the export is read-only for the controller"
	case client.IsStatus(err, nfs.ErrNoSpc), client.IsStatus(err, nfs.ErrDQuot):
		code = codes.ResourceExhausted
	case errors.Is(err, errShare):
		code, hint = codes.InvalidArgument, "is this path exported to the controller?"
	case errors.As(err, new(nfs.Status)):
		code = codes.Internal
	}
	if hint != "" {
		hint = " (" + hint + ")"
	}
	return status.Errorf(code, "%s: %v%s", share, err, hint)
}
