package filecmd

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rstored/rstored/blockstore"
	"github.com/rstored/rstored/nfs"
	"github.com/rstored/rstored/nfs/client"
	"github.com/rstored/rstored/nfs/nfs3"
)

const (
	// defaultJobs is the number of objects that are copied at once.
	defaultJobs = 16
	// largeFile is the size from which on one transfer fills a connection. largeJobs bounds the
	// memory of such transfers.
	largeFile = 8 * client.TransferMax
	largeJobs = 4
)

// copier copies trees from one side to the other. One goroutine walks the source, a bounded number
// of others copy objects. A failure is reported, and the rest continues.
type copier struct {
	r         *run
	src, dst  side
	recursive bool
	verify    bool
	owner     bool
	resume    bool
	chunk     uint64 // see resumeChunk
	sameSide  bool   // both sides are one server
	last      bool   // no source comes after this one
	later     later

	jobs         int
	ahead        int         // small files are gathered while at least so many objects wait
	queue        chan func() // nil while nothing is copied; see start
	large        chan struct{}
	wg           sync.WaitGroup
	files, bytes atomic.Int64
	spent        spent
	severalCalls atomic.Bool // the target cannot make a file in one call
	readsSingly  atomic.Bool // the source cannot return several files in one call

	// Only the goroutine of the walk uses these.
	links map[id]*leader
	again []follower // further names of files that have several names
	dirs  []finished // in the order of their making
	next  together   // see gather
}

// leader is the first name of a file that has several.
type leader struct{ copy *object }

type follower struct {
	from *object
	into *object
	name string
	lead *leader
}

type finished struct {
	o     *object
	attr  *nfs3.Attr
	depth int
}

func newCopier(r *run, src, dst side, jobs int) *copier {
	return &copier{
		r: r, src: src, dst: dst, jobs: max(jobs, 1), ahead: max(jobs, 1), large: make(chan struct{}, largeJobs),
		links: make(map[id]*leader), chunk: resumeChunk, spent: newSpent(src, dst),
	}
}

// run copies from, under the name given, into a directory that exists.
func (k *copier) run(from, into *object, name string) {
	k.walk(from, into, name)
	k.complete(into)
}

// complete waits for the copies into a directory. It then makes hard links and sets the attributes
// of directories.
func (k *copier) complete(into *object) {
	if k.last {
		k.r.status.expectAll()
	}
	k.wait()
	for _, f := range k.again {
		k.start(func() { k.linkOrCopy(f) })
	}
	k.wait()
	// Copies into a directory change its times, so directories come last. Inner directories come
	// before outer ones, because an outer mode can deny access.
	slices.SortStableFunc(k.dirs, func(a, b finished) int { return cmp.Compare(b.depth, a.depth) })
	for i, d := range k.dirs {
		if i > 0 && d.depth != k.dirs[i-1].depth {
			k.wait()
		}
		k.start(func() {
			k.syncDir(d.o) // before its mode may forbid that
			if err := k.dst.finish(k.r.ctx, d.o, d.attr, k.owner); err != nil {
				k.fail(d.o.shown, err)
			}
		})
	}
	k.wait()
	k.syncDir(into)
	k.syncLater()
	k.again, k.dirs = nil, nil
}

func (k *copier) fail(name string, err error) {
	if k.r.ctx.Err() != nil {
		return // said once, at the end
	}
	if of, ok := errors.AsType[*fileError](err); ok {
		k.r.fail(of)
		return
	}
	k.r.fail(named(name, err))
}

// makeDir makes a directory, or returns the one that exists.
func (k *copier) makeDir(into *object, name string) (*object, error) {
	to, err := k.dst.mkdir(k.r.ctx, into, name)
	if !exists(err) {
		return to, err
	}
	to, e := k.dst.lookup(k.r.ctx, into, name)
	switch {
	case e != nil:
		return nil, e
	case !to.dir():
		return nil, errors.New("exists and is not a directory")
	}
	return to, nil
}

// exists reports whether err says that a name is in use.
func exists(err error) bool {
	return errors.Is(err, fs.ErrExist) || client.IsStatus(err, nfs.ErrExist)
}

// other starts the copy of an object that is not a directory.
func (k *copier) other(from, into *object, name string) {
	if from.attr.Type == blockstore.TypeReg && from.attr.NLink > 1 {
		if lead := k.links[from.id()]; lead != nil {
			k.again = append(k.again, follower{from, into, name, lead})
			return
		}
		lead := &leader{}
		k.links[from.id()] = lead
		k.r.status.expect(from.toCopy())
		k.start(func() { lead.copy = k.one(from, into, name) })
		return
	}
	k.r.status.expect(from.toCopy())
	if k.mayGather(from) {
		k.gather(from, into, name)
		return
	}
	k.start(func() { k.one(from, into, name) })
}

// linkOrCopy makes a further name of a file that was copied already.
func (k *copier) linkOrCopy(f follower) {
	if f.lead.copy == nil { // the copy by the first name has failed
		k.r.status.expect(f.from.toCopy())
		k.one(f.from, f.into, f.name)
		return
	}
	err := k.replacing(f.into, f.name, func(name string) error { return k.dst.link(k.r.ctx, f.lead.copy, f.into, name) })
	if err != nil {
		k.fail(below(f.into, f.name), err)
		return
	}
	k.files.Add(1)
}

// replacing makes a symbolic link or a hard link. It replaces an existing object.
func (k *copier) replacing(into *object, name string, make func(name string) error) error {
	err := make(name)
	if !exists(err) {
		return err
	}
	part := partName(name, newID())
	if err := make(part); err != nil {
		return err
	}
	err = k.dst.rename(k.r.ctx, into, part, name)
	k.discard(into, part) // also where both are names of one file, which rename leaves as they are
	return err
}

// discardTime bounds the cleanup of an interrupted copy.
const discardTime = 10 * time.Second

// discard removes incomplete objects, as far as they exist.
func (k *copier) discard(into *object, parts ...string) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(k.r.ctx), discardTime)
	defer cancel()
	for _, part := range parts {
		_ = k.dst.remove(ctx, into, part)
	}
}

// one copies an object that is not a directory. It returns the copy, or nil after a failure or for
// a symbolic link.
func (k *copier) one(from, into *object, name string) (to *object) {
	return k.oneWith(from, into, name, nil)
}

// oneWith is one, with the data of a file if it was read before.
func (k *copier) oneWith(from, into *object, name string, data []byte) (to *object) {
	to, err := k.tryOne(k.r.ctx, from, into, name, data)
	if err != nil {
		shown := from.shown
		if _, ok := errors.AsType[targetError](err); ok {
			shown = below(into, name)
		}
		k.r.status.expect(-from.toCopy())
		k.fail(shown, err)
		return nil
	}
	k.files.Add(1)
	return to
}

// targetError is a failure of the side that is written.
type targetError struct{ error }

// Unwrap returns the failure.
func (e targetError) Unwrap() error { return e.error }

func atTarget(err error) error {
	if err == nil {
		return nil
	}
	return targetError{err}
}

func (k *copier) tryOne(ctx context.Context, from, into *object, name string, data []byte) (to *object, err error) {
	switch from.attr.Type {
	case blockstore.TypeReg:
		return k.file(ctx, from, into, name, data)
	case blockstore.TypeLnk:
		target, err := k.src.readlink(ctx, from)
		if err != nil {
			return nil, err
		}
		return nil, atTarget(k.replacing(into, name,
			func(name string) error { return k.dst.symlink(ctx, into, name, target) }))
	case blockstore.TypeFifo, blockstore.TypeSock, blockstore.TypeBlk, blockstore.TypeChr:
		part := partName(name, newID())
		if to, err = k.dst.mknod(ctx, into, part, &from.attr); err != nil {
			return nil, atTarget(err)
		}
		if err = k.dst.finish(ctx, to, &from.attr, k.owner); err == nil {
			err = k.place(ctx, to, into, part, name)
		}
		if err != nil {
			k.discard(into, part)
			return nil, atTarget(err)
		}
		return to, nil
	}
	return nil, fmt.Errorf("is of unknown type %d", from.attr.Type)
}

func (k *copier) file(ctx context.Context, from, into *object, name string, data []byte) (to *object, err error) {
	large := from.attr.Size >= largeFile
	if k.sameSide || large {
		there, err := k.dst.lookup(ctx, into, name)
		switch {
		case err != nil: // there is none, or a later step reports the error
		case k.sameSide && there.id() == from.id():
			return nil, errors.New("is the same file as its copy")
		case there.dir():
			return nil, atTarget(errors.New("is a directory"))
		}
	}
	if large {
		select {
		case k.large <- struct{}{}:
			defer func() { <-k.large }()
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	if to, done, err := k.small(ctx, from, into, name); done {
		return to, err
	}
	// Before anything is made.
	if _, ok := k.src.(local); ok {
		if err := readable(from); err != nil {
			return nil, err
		}
	}
	begin := time.Now()
	p, err := k.begin(ctx, from, into, name)
	k.spent.on(k.dst, begin)
	if err != nil {
		return nil, atTarget(err)
	}
	to = p.o
	defer func() {
		if e := k.dst.close(p.o); err == nil {
			err = atTarget(e)
		}
		if err != nil && !p.stays {
			k.discard(into, p.name)
		}
	}()
	if data != nil {
		err = k.write(p, data)
	} else {
		err = k.data(ctx, from, p)
	}
	if err != nil {
		return nil, err
	}
	begin = time.Now()
	err = k.dst.finish(ctx, to, &from.attr, k.owner)
	k.spent.on(k.dst, begin)
	if err != nil {
		p.stays = false // its mode may not be that of a part any more
		return nil, atTarget(err)
	}
	p.stays = false
	if k.verify {
		if err := verify(ctx, k.src, from, k.dst, to); err != nil {
			return nil, err
		}
	}
	begin = time.Now()
	err = k.settle(ctx, to, into, p.name, name, large)
	k.spent.on(k.dst, begin)
	if err != nil {
		return nil, atTarget(err)
	}
	return to, nil
}

// place renames a complete object to its final name.
func (k *copier) place(ctx context.Context, o, into *object, part, name string) error {
	if err := k.dst.rename(ctx, into, part, name); err != nil {
		return err
	}
	o.moved(into, name)
	return nil
}

func (k *copier) progress(n int) {
	k.bytes.Add(int64(n))
	k.r.status.add(n, k.spent.shares)
}
