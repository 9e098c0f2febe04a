package filecmd

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"sync"
	"sync/atomic"

	"github.com/rstored/rstored/blockstore"
	"github.com/rstored/rstored/nfs"
	"github.com/rstored/rstored/nfs/client"
	"github.com/rstored/rstored/nfs/nfs3"
)

const (
	// defaultJobs is how many objects are worked on at once.
	defaultJobs = 16
	// largeFile is the size from which on a file has a transfer deep enough to
	// fill a connection by itself; largeJobs bounds the memory of those.
	largeFile = 8 * client.TransferMax
	largeJobs = 4
)

// copier copies trees from one side to the other. One goroutine walks; what it
// finds is copied by a bounded number of others. A failure is reported and the
// rest goes on.
type copier struct {
	r         *run
	src, dst  side
	recursive bool
	verify    bool
	owner     bool
	sameSide  bool // both sides are one server

	slots, large chan struct{}
	wg           sync.WaitGroup
	files, bytes atomic.Int64

	// The walk's own.
	links map[id]*leader
	again []follower // further names of files with several
	dirs  []finished // in the order of their making
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
	o    *object
	attr *nfs3.Attr
}

func newCopier(r *run, src, dst side, jobs int) *copier {
	return &copier{
		r: r, src: src, dst: dst, slots: make(chan struct{}, max(jobs, 1)), large: make(chan struct{}, largeJobs),
		links: make(map[id]*leader),
	}
}

// run copies from, under the name given, into a directory that exists.
func (k *copier) run(from, into *object, name string) {
	k.walk(from, into, name)
	k.complete()
}

// complete waits for the copies and does what has to come after them.
func (k *copier) complete() {
	k.wg.Wait()
	for _, f := range k.again {
		k.start(func() { k.linkOrCopy(f) })
	}
	k.wg.Wait()
	// What is in a directory changes its times, so they come last; and inner
	// ones first, as an outer one may not let us in any more.
	for i := len(k.dirs) - 1; i >= 0 && k.r.ctx.Err() == nil; i-- {
		d := &k.dirs[i]
		if err := k.dst.finish(k.r.ctx, d.o, d.attr, k.owner); err != nil {
			k.fail(d.o.shown, err)
		}
	}
	k.again, k.dirs = nil, nil
}

// start runs do beside the walk, when there is a slot.
func (k *copier) start(do func()) {
	select {
	case k.slots <- struct{}{}:
	case <-k.r.ctx.Done():
		return
	}
	k.wg.Go(func() {
		defer func() { <-k.slots }()
		do()
	})
}

func (k *copier) fail(name string, err error) {
	if k.r.ctx.Err() != nil {
		return // said once, at the end
	}
	var of *fileError
	if errors.As(err, &of) {
		k.r.fail(of)
		return
	}
	k.r.fail(named(name, err))
}

// walk copies one object and, if it is a directory, what is in it.
func (k *copier) walk(from, into *object, name string) {
	if k.r.ctx.Err() != nil {
		return
	}
	switch {
	case !from.dir():
		k.other(from, into, name)
		return
	case !k.recursive:
		k.fail(from.shown, errors.New("is a directory (use -r)"))
		return
	}
	to, err := k.makeDir(into, name)
	if err != nil {
		k.fail(below(into, name), err)
		return
	}
	k.dirs = append(k.dirs, finished{to, &from.attr})
	// Directories wait until the list is complete, so that a deep tree does not
	// keep a listing open at every level.
	type sub struct {
		name string
		o    *object
	}
	var subs []sub
	err = k.src.list(k.r.ctx, from, func(name string, o *object) error {
		if o.dir() {
			subs = append(subs, sub{name, o})
		} else {
			k.other(o, to, name)
		}
		return k.r.ctx.Err()
	})
	if err != nil {
		k.fail(from.shown, err)
	}
	for _, s := range subs {
		k.walk(s.o, to, s.name)
	}
}

// makeDir makes a directory, or takes the one that is there.
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
		return nil, errors.New("is there and is no directory")
	}
	return to, nil
}

// exists reports whether a name was taken.
func exists(err error) bool {
	return errors.Is(err, fs.ErrExist) || client.IsStatus(err, nfs.ErrExist)
}

// other starts the copy of what is no directory.
func (k *copier) other(from, into *object, name string) {
	if from.attr.Type == blockstore.TypeReg && from.attr.NLink > 1 {
		if lead := k.links[from.id()]; lead != nil {
			k.again = append(k.again, follower{from, into, name, lead})
			return
		}
		lead := &leader{}
		k.links[from.id()] = lead
		k.start(func() { lead.copy = k.one(from, into, name) })
		return
	}
	k.start(func() { k.one(from, into, name) })
}

// linkOrCopy makes a further name of a file that was copied already.
func (k *copier) linkOrCopy(f follower) {
	if f.lead.copy == nil { // it failed; maybe this name fares better
		k.one(f.from, f.into, f.name)
		return
	}
	err := k.replacing(f.into, f.name, func() error { return k.dst.link(k.r.ctx, f.lead.copy, f.into, f.name) })
	if err != nil {
		k.fail(below(f.into, f.name), err)
		return
	}
	k.files.Add(1)
}

// replacing makes a name; one that is there is removed first.
func (k *copier) replacing(into *object, name string, make func() error) error {
	err := make()
	if !exists(err) {
		return err
	}
	if err := k.dst.remove(k.r.ctx, into, name); err != nil {
		return err
	}
	return make()
}

// one copies an object that is no directory. It returns the copy, or nil after
// a failure or of a symbolic link.
func (k *copier) one(from, into *object, name string) (to *object) {
	to, err := k.tryOne(k.r.ctx, from, into, name)
	if err != nil {
		shown := from.shown
		if errors.Is(err, errTarget) {
			shown = below(into, name)
		}
		k.fail(shown, err)
		return nil
	}
	k.files.Add(1)
	return to
}

// errTarget marks a failure of the side that is written.
var errTarget = errors.New("writing")

// targetError is a failure of the side that is written.
type targetError struct{ error }

func (e targetError) Unwrap() error        { return e.error }
func (e targetError) Is(target error) bool { return target == errTarget }

func atTarget(err error) error {
	if err == nil {
		return nil
	}
	return targetError{err}
}

func (k *copier) tryOne(ctx context.Context, from, into *object, name string) (to *object, err error) {
	switch from.attr.Type {
	case blockstore.TypeReg:
		return k.file(ctx, from, into, name)
	case blockstore.TypeLnk:
		target, err := k.src.readlink(ctx, from)
		if err != nil {
			return nil, err
		}
		return nil, atTarget(k.replacing(into, name, func() error { return k.dst.symlink(ctx, into, name, target) }))
	case blockstore.TypeFifo, blockstore.TypeSock, blockstore.TypeBlk, blockstore.TypeChr:
		err = k.replacing(into, name, func() (err error) {
			to, err = k.dst.mknod(ctx, into, name, &from.attr)
			return err
		})
		if err == nil {
			err = k.dst.finish(ctx, to, &from.attr, k.owner)
		}
		return to, atTarget(err)
	}
	return nil, fmt.Errorf("is of unknown type %d", from.attr.Type)
}

func (k *copier) file(ctx context.Context, from, into *object, name string) (to *object, err error) {
	if k.sameSide {
		if there, err := k.dst.lookup(ctx, into, name); err == nil && there.id() == from.id() {
			return nil, errors.New("is the same file as its copy")
		}
	}
	if from.attr.Size >= largeFile {
		select {
		case k.large <- struct{}{}:
			defer func() { <-k.large }()
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	// Before anything is made, or emptied.
	if _, ok := k.src.(local); ok {
		if err := readable(from.path); err != nil {
			return nil, err
		}
	}
	err = k.replacing(into, name, func() (err error) {
		to, err = k.dst.create(ctx, into, name)
		return err
	})
	if err != nil {
		return nil, atTarget(err)
	}
	if err := copyData(ctx, k.src, from, k.dst, to, k.progress); err != nil {
		// Half a file is taken for a whole one too easily.
		_ = k.dst.remove(context.WithoutCancel(ctx), into, name)
		return nil, err
	}
	if err := k.dst.finish(ctx, to, &from.attr, k.owner); err != nil {
		return nil, atTarget(err)
	}
	if k.verify {
		if err := verify(ctx, k.src, from, k.dst, to); err != nil {
			return nil, err
		}
	}
	return to, nil
}

func (k *copier) progress(n int) {
	k.bytes.Add(int64(n))
	if k.r.status != nil {
		k.r.status.add(n)
	}
}
