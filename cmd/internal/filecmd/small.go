package filecmd

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/rstored/rstored/nfs/client"
	"github.com/rstored/rstored/nfs/nfs3"
)

// placer is a side that can make complete files at once.
type placer interface {
	// placeFiles makes files in a directory, and returns those that are complete, in order. An error
	// that matches errors.ErrUnsupported means that this side cannot, and that nothing was made of
	// the others.
	placeFiles(ctx context.Context, into *object, files []newFile, owner bool) ([]*object, error)
}

// newFile is a file that placeFiles makes, with its data and with the attributes that finish sets.
// part is its name until it is complete.
type newFile struct {
	name, part string
	data       []byte
	attr       *nfs3.Attr
}

// smallBuffers hold the data of small files.
var smallBuffers = sync.Pool{New: func() any {
	b := make([]byte, client.TransferMax)
	return &b
}}

// small copies a file that fits into one WRITE, in one call to the server. done is false if that is
// not possible, or has failed at the target. Then the target is unchanged. The caller copies the
// file in single steps, which work or return a more exact error.
func (k *copier) small(ctx context.Context, from, into *object, name string) (to *object, done bool, err error) {
	target, ok := k.dst.(placer)
	if !ok || k.severalCalls.Load() || k.verify || k.sameSide || from.sparse() || from.attr.Size > client.TransferMax {
		return nil, false, nil
	}
	buf := smallBuffers.Get().(*[]byte)
	defer smallBuffers.Put(buf)
	data := (*buf)[:from.attr.Size]
	begin := time.Now()
	err = k.src.read(ctx, from, data)
	k.spent.on(k.src, begin)
	if err != nil {
		return nil, true, changed(err)
	}
	part := partName(name, newID())
	made, err := target.placeFiles(ctx, into, []newFile{{name, part, data, &from.attr}}, k.owner)
	switch {
	case err == nil:
		k.progress(len(data))
		return made[0], true, nil
	case errors.Is(err, errors.ErrUnsupported):
		if len(data) <= smallest {
			k.severalCalls.Store(true)
		}
	case ctx.Err() != nil:
		k.discard(into, part)
		return nil, true, err
	default:
		k.discard(into, part)
	}
	return nil, false, nil
}

// smallest is a length that every server takes in one WRITE.
const smallest = 4096
