package filecmd

import (
	"errors"
)

// The walk goes through the source depth first. A directory costs round trips: to make it at the
// target, and to list it at the source. So the next directories are made and listed in the
// background.
const (
	// dirsAhead is how many directories are made and listed at once at each level.
	dirsAhead = 4
	// depthAhead bounds the listings that are open. From this depth on only one directory at a time
	// is made and listed at each level.
	depthAhead = 32
	// entriesAhead bounds the entries that are read ahead in one directory.
	entriesAhead = 256
)

// dirAhead is a directory that is made and listed in the background.
type dirAhead struct {
	from    *object
	shown   string        // the target
	made    chan struct{} // closed when to and err are set
	to      *object
	err     error
	entries chan entryOf // closed at the end of the listing, when listErr is set
	listErr error
}

// prepare makes a directory and begins to list it. The caller reads all entries, unless the context
// has ended.
func (k *copier) prepare(from, into *object, name string) *dirAhead {
	d := &dirAhead{
		from: from, shown: below(into, name), made: make(chan struct{}), entries: make(chan entryOf, entriesAhead),
	}
	go func() {
		defer close(d.entries)
		d.to, d.err = k.makeDir(into, name)
		close(d.made)
		if d.err != nil {
			return
		}
		d.listErr = k.src.list(k.r.ctx, from, func(name string, o *object) error {
			select {
			case d.entries <- entryOf{name, o}:
				return nil
			case <-k.r.ctx.Done():
				return k.r.ctx.Err()
			}
		})
	}()
	return d
}

// walk copies one object and, if it is a directory, what is in it.
func (k *copier) walk(from, into *object, name string) {
	if k.r.ctx.Err() != nil {
		return
	}
	switch {
	case !from.dir():
		k.other(from, into, name)
	case !k.recursive:
		k.fail(from.shown, errors.New("is a directory (use -r)"))
	default:
		k.walkDir(k.prepare(from, into, name), 0)
	}
}

// walkDir copies what is in a directory of that depth.
func (k *copier) walkDir(d *dirAhead, depth int) {
	<-d.made
	if d.err != nil {
		k.fail(d.shown, d.err)
		return
	}
	k.dirs = append(k.dirs, finished{d.to, &d.from.attr, depth})
	// Directories wait until the list is complete, so that a deep tree does not
	// keep a listing open at every level.
	var subs []entryOf
	for e := range d.entries {
		if e.o.dir() {
			subs = append(subs, e)
		} else {
			k.other(e.o, d.to, e.name)
		}
	}
	if d.listErr != nil {
		k.fail(d.from.shown, d.listErr)
	}
	most := dirsAhead
	if depth >= depthAhead {
		most = 1
	}
	var ahead []*dirAhead // the first ones of subs
	for len(subs)+len(ahead) > 0 && k.r.ctx.Err() == nil {
		for len(ahead) < most && len(subs) > 0 {
			ahead = append(ahead, k.prepare(subs[0].o, d.to, subs[0].name))
			subs = subs[1:]
		}
		next := ahead[0]
		ahead = ahead[1:]
		k.walkDir(next, depth+1)
	}
}
