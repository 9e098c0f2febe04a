package filecmd

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/rstored/rstored/nfs/client"
	"github.com/rstored/rstored/nfs/nfs3"
)

// resumeChunk is the unit in which a copy is resumed. Bytes after a chunk are written when the
// chunk is durable, so that the size of a part says which chunks are complete.
const resumeChunk = 64 << 20

// part is a file during its copy, under a temporary name beside the target.
type part struct {
	o     *object
	name  string
	done  uint64 // bytes that an earlier copy has left
	stays bool   // after a failure, for the next copy
}

// nameMax is the longest name of common file systems, in bytes.
const nameMax = 255

// partName is the name of a part of a file.
func partName(name, id string) string {
	const infix = ".rstored-part-"
	if most := nameMax - 1 - len(infix) - len(id); len(name) > most {
		for most > 0 && utf8.ValidString(name) && !utf8.RuneStart(name[most]) {
			most--
		}
		name = name[:most]
	}
	return "." + name + infix + id
}

// idLen is the length of an ID.
const idLen = 16

// newID is an unpredictable ID for the name of a part.
func newID() string {
	var b [idLen / 2]byte
	_, _ = rand.Read(b[:]) // does not fail
	return hex.EncodeToString(b[:])
}

// version is an ID of the current version of a file: its identity, its size, and its times of
// change.
func version(a *nfs3.Attr) string {
	b := make([]byte, 0, 40)
	for _, v := range []uint64{a.FSID, a.FileID, a.Size, uint64(a.Mtime.UnixNano()), uint64(a.Ctime.UnixNano())} {
		b = binary.BigEndian.AppendUint64(b, v)
	}
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:idLen/2])
}

// begin makes the part for a file, or opens the part of an earlier copy.
func (k *copier) begin(ctx context.Context, from, into *object, name string) (*part, error) {
	p := &part{name: partName(name, newID())}
	var err error
	if p.o, err = k.dst.create(ctx, into, p.name); err != nil {
		return nil, err
	}
	if !k.resume || from.attr.Size <= k.chunk || from.sparse() || k.sameSide {
		return p, nil
	}
	known := partName(name, version(&from.attr))
	k.expire(ctx, p.o, into, name, known)
	old, err := k.dst.reopen(ctx, into, known, p.o)
	switch {
	case err == nil && old.attr.Size <= from.attr.Size:
		err = k.dst.close(p.o)
		k.discard(into, p.name)
		if err != nil {
			return nil, errors.Join(err, k.dst.close(old))
		}
		p.o, p.name, p.stays = old, known, true
		if old.attr.Size > 0 {
			p.done = (old.attr.Size - 1) / k.chunk * k.chunk
		}
		k.progress(int(p.done))
		return p, nil
	case err == nil:
		err = k.dst.close(old)
	case gone(err):
		if err = k.place(ctx, p.o, into, p.name, known); err == nil {
			p.name, p.stays = known, true
		}
	case errors.Is(err, errNotOurs): // it stays where it is
		err = nil
	}
	if err != nil {
		_ = k.dst.close(p.o)
		k.discard(into, p.name)
		return nil, err
	}
	return p, nil
}

// partExpires is the age at which an abandoned part is removed.
const partExpires = 24 * time.Hour

// expire removes parts of earlier versions of the source, except known. now was just made on the
// same side, so its times and those of the parts come from one clock. Failures are ignored.
func (k *copier) expire(ctx context.Context, now, into *object, name, known string) {
	prefix := partName(name, strings.Repeat("0", idLen))
	prefix = prefix[:len(prefix)-idLen]
	var old []string
	_ = k.dst.list(ctx, into, func(n string, o *object) error {
		if len(n) == len(prefix)+idLen && strings.HasPrefix(n, prefix) && n != known && ours(&o.attr, now) &&
			now.attr.Mtime.Sub(o.attr.Mtime) > partExpires {
			old = append(old, n)
		}
		return nil
	})
	for _, n := range old {
		_ = k.dst.remove(ctx, into, n)
	}
}

// write writes the data of a small file to its part on this host.
func (k *copier) write(p *part, data []byte) error {
	if _, err := (timedFile{p.o.f, k.spent.here}).WriteAt(data, 0); err != nil {
		return atTarget(err)
	}
	k.progress(len(data))
	return nil
}

// data copies the bytes that the part does not have yet.
func (k *copier) data(ctx context.Context, from *object, p *part) error {
	size, step := from.attr.Size, from.attr.Size
	if p.stays {
		step = k.chunk
	}
	for off := p.done; off < size; off += step {
		n := min(step, size-off)
		x := client.Extent{Off: off, Size: n}
		if err := copyData(ctx, k.src, from, k.dst, p.o, x, k.spent.here, k.progress); err != nil {
			return err
		}
		if off+n < size {
			if err := k.dst.sync(p.o); err != nil {
				return atTarget(err)
			}
		}
	}
	if !p.stays {
		return nil
	}
	now, err := k.src.attr(ctx, from)
	if err != nil {
		return fmt.Errorf("looking at the source again: %w", err)
	}
	if version(&now) != version(&from.attr) {
		p.stays = false
		return errors.New("the source changed while it was copied")
	}
	return nil
}
