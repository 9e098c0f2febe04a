package filecmd

import (
	"context"
	"errors"
	"time"

	"github.com/rstored/rstored/blockstore"
	"github.com/rstored/rstored/nfs/client"
)

// Small files of one directory are copied together, so that several share a round trip.
const (
	// togetherFile is the size of the largest file that is copied together with others.
	togetherFile = 64 << 10
	// togetherBytes bounds the bytes of the files that are copied together.
	togetherBytes = 256 << 10
	togetherFiles = 16
)

// together are small files of one directory that are copied together.
type together struct {
	into  *object
	files []entryOf
	bytes uint64
}

// gather collects a small file, to copy it together with the next small files of its directory. If
// few objects wait to be copied (copier.ahead), gather starts the copy at once, so that the
// goroutines that copy do not become idle.
func (k *copier) gather(from, into *object, name string) {
	t := &k.next
	if t.into != into || t.bytes+from.attr.Size > togetherBytes || len(t.files) == togetherFiles {
		k.startGathered()
		t.into = into
	}
	t.files = append(t.files, entryOf{name, from})
	t.bytes += from.attr.Size
	if len(k.queue) < k.ahead {
		k.startGathered()
	}
}

// startGathered starts the copy of the files that were gathered.
func (k *copier) startGathered() {
	t := k.next
	k.next = together{}
	switch len(t.files) {
	case 0:
	case 1:
		k.start(func() { k.one(t.files[0].o, t.into, t.files[0].name) })
	default:
		k.start(func() { k.several(&t) })
	}
}

// mayGather reports whether a file can be copied together with others.
func (k *copier) mayGather(from *object) bool {
	return from.attr.Type == blockstore.TypeReg && from.attr.Size <= togetherFile && !from.sparse() &&
		!k.verify && !k.sameSide && !k.severalCalls.Load() && !k.readsSingly.Load()
}

// several copies small files in as few calls as possible. It copies the files for which that fails
// one by one, which works or returns a more exact error.
func (k *copier) several(t *together) {
	ctx := k.r.ctx
	buf := smallBuffers.Get().(*[]byte)
	defer smallBuffers.Put(buf)
	data, rest := make([][]byte, len(t.files)), *buf
	for i, f := range t.files {
		data[i], rest = rest[:f.o.attr.Size:f.o.attr.Size], rest[f.o.attr.Size:]
	}
	from := t.files[:k.readSeveral(ctx, t.files, data)]
	var done int
	if target, ok := k.dst.(placer); ok {
		done = k.placeSeveral(ctx, target, t.into, from, data)
	} else {
		for i, f := range from {
			k.oneWith(f.o, t.into, f.name, data[i])
		}
		done = len(from)
	}
	for _, f := range t.files[done:] {
		if ctx.Err() == nil {
			k.one(f.o, t.into, f.name)
		}
	}
}

// readSeveral reads files, and returns how many it has read, in order.
func (k *copier) readSeveral(ctx context.Context, files []entryOf, data [][]byte) (n int) {
	if src, ok := k.src.(*remote); ok {
		list := make([]client.FileData, len(files))
		for i, f := range files {
			list[i] = client.FileData{Handle: f.o.h, Data: data[i]}
		}
		n, err := src.c.ReadFiles(ctx, list)
		if errors.Is(err, errors.ErrUnsupported) {
			k.readsSingly.Store(true)
		}
		return n
	}
	begin := time.Now()
	for n < len(files) && k.src.read(ctx, files[n].o, data[n]) == nil {
		n++
	}
	k.spent.on(k.src, begin)
	return n
}

// placeSeveral makes files at the target, and returns how many are complete, in order.
func (k *copier) placeSeveral(ctx context.Context, target placer, into *object, files []entryOf,
	data [][]byte,
) (n int) {
	list := make([]newFile, len(files))
	for i, f := range files {
		list[i] = newFile{name: f.name, part: partName(f.name, newID()), data: data[i], attr: &f.o.attr}
	}
	made, err := target.placeFiles(ctx, into, list, k.owner)
	for i := range made {
		k.progress(len(data[i]))
		k.files.Add(1)
	}
	if err != nil && !errors.Is(err, errors.ErrUnsupported) {
		var parts []string
		for _, f := range list[len(made):] {
			parts = append(parts, f.part)
		}
		k.discard(into, parts...)
	}
	return len(made)
}
