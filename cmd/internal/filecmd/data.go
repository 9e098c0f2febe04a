package filecmd

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"sync/atomic"

	"github.com/rstored/rstored/blockstore"
	"github.com/rstored/rstored/nfs"
	"github.com/rstored/rstored/nfs/client"
)

// copyData copies the bytes of x to a file that was just created. x is the whole file for a sparse
// file, and for one that the server copies. It calls progress with the bytes that arrive, and with
// a negative number if bytes must be sent again. here gets the time in files of this host.
func copyData(
	ctx context.Context, src side, from *object, dst side, to *object, x client.Extent, here *atomic.Int64,
	progress func(int),
) error {
	target, upload := dst.(*remote)
	source, download := src.(*remote)
	if upload && download && target.c == source.c {
		err := copyThere(ctx, source.c, from, to, progress)
		if !client.IsStatus(err, nfs.ErrNotSupp) {
			return changed(err)
		}
	}
	switch {
	case upload && download && from.sparse():
		return downloadData(ctx, source.c, from, holes{remoteFile{ctx, target.c, to.h}}, progress)
	case upload && download:
		return target.c.Upload(ctx, to.h, remoteFile{ctx, source.c, from.h}, x.Off, x.Size, progress)
	case upload:
		return uploadLocal(ctx, from, target, to, x, here, progress)
	case download:
		return downloadLocal(ctx, source, from, to, x, here, progress)
	}
	return errors.New("neither side is remote")
}

// copyThere makes the server copy a file. If the server cannot, it fails with nfs.ErrNotSupp and
// takes progress back.
func copyThere(ctx context.Context, c *client.Client, from, to *object, progress func(int)) error {
	list := []client.Extent{{Size: from.attr.Size}}
	if from.sparse() {
		var err error
		if list, err = c.Extents(ctx, from.h, from.attr.Size); err != nil {
			return err
		}
	}
	done := 0
	for _, x := range list {
		err := c.Copy(ctx, from.h, to.h, x.Off, x.Size, func(n int) {
			done += n
			progress(n)
		})
		if err != nil {
			if client.IsStatus(err, nfs.ErrNotSupp) {
				progress(-done)
			}
			return err
		}
	}
	return nil
}

// downloadData reads a sparse file without its holes, if the server reports them.
func downloadData(ctx context.Context, c *client.Client, from *object, w io.WriterAt, progress func(int)) error {
	list, err := c.Extents(ctx, from.h, from.attr.Size)
	if client.IsStatus(err, nfs.ErrNotSupp) {
		list, err = []client.Extent{{Size: from.attr.Size}}, nil
	}
	if err != nil {
		return err
	}
	for _, x := range list {
		if err := c.Download(ctx, from.h, w, x.Off, x.Size, progress); err != nil {
			return err
		}
	}
	return nil
}

func uploadLocal(
	ctx context.Context, from *object, target *remote, to *object, part client.Extent, here *atomic.Int64,
	progress func(int),
) error {
	f, err := openListed(from)
	if err != nil {
		return err
	}
	defer f.Close()
	list := []client.Extent{part}
	if from.sparse() {
		if list, err = extents(f, int64(from.attr.Size)); err != nil {
			return err
		}
	}
	for _, x := range list {
		if err := target.c.Upload(ctx, to.h, timedFile{f, here}, x.Off, x.Size, progress); err != nil {
			return changed(err)
		}
	}
	return nil
}

func downloadLocal(
	ctx context.Context, source *remote, from, to *object, part client.Extent, here *atomic.Int64, progress func(int),
) error {
	f := timedFile{to.f, here}
	if from.sparse() {
		if err := to.f.Truncate(int64(from.attr.Size)); err != nil {
			return err
		}
		return changed(downloadData(ctx, source.c, from, holes{f}, progress))
	}
	return changed(source.c.Download(ctx, from.h, f, part.Off, part.Size, progress))
}

// changed explains an end of file before the size that the file had when it was listed.
func changed(err error) error {
	if errors.Is(err, io.ErrUnexpectedEOF) {
		return errors.New("the file became shorter while it was copied")
	}
	return err
}

// remoteFile is a remote file that is read and written at any place. Its writes are stable.
type remoteFile struct {
	ctx context.Context
	c   *client.Client
	h   client.Handle
}

// ReadAt implements io.ReaderAt.
func (f remoteFile) ReadAt(p []byte, off int64) (n int, err error) {
	for n < len(p) {
		k, eof, err := f.c.Read(f.ctx, f.h, p[n:], uint64(off)+uint64(n))
		if err != nil {
			return n, err
		}
		n += k
		if n < len(p) && (eof || k == 0) {
			return n, io.EOF
		}
	}
	return n, nil
}

// WriteAt implements io.WriterAt.
func (f remoteFile) WriteAt(p []byte, off int64) (n int, err error) {
	for n < len(p) {
		done, err := f.c.Write(f.ctx, f.h, p[n:], uint64(off)+uint64(n), blockstore.FileSync)
		if err != nil {
			return n, err
		}
		n += done.N
	}
	return n, nil
}

// verify reads both copies of a file again and compares their SHA-256.
func verify(ctx context.Context, src side, from *object, dst side, to *object) error {
	a, b := sha256.New(), sha256.New()
	if err := src.stream(ctx, from, a); err != nil {
		return fmt.Errorf("reading the source again: %w", err)
	}
	if err := dst.stream(ctx, to, b); err != nil {
		return fmt.Errorf("reading the copy again: %w", err)
	}
	if !bytes.Equal(a.Sum(nil), b.Sum(nil)) {
		return fmt.Errorf("the copy is different: SHA-256 %x instead of %x", b.Sum(nil), a.Sum(nil))
	}
	return nil
}
