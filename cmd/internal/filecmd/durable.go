package filecmd

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// lateSyncer is a side whose files can be made durable together.
type lateSyncer interface {
	// renameNew is rename that fails with fs.ErrExist if the name to is taken, or if that cannot be
	// excluded.
	renameNew(ctx context.Context, dir *object, from, to string) error
	// openDir opens a directory for syncFS. syncFS makes everything durable on the file system of f,
	// and reports what could not be written since f was opened.
	openDir(dir *object) (f *os.File, err error)
	syncFS(f *os.File) error
}

// later has the file systems that a copy of a tree syncs as a whole at its end. The copy does not
// sync a small file with a new name by itself: the user can rely on the file only when the copy has
// ended. If a file replaces another one, the copy syncs it before the rename, so that after a crash
// the name has the old file or the complete new one.
type later struct {
	side lateSyncer // nil: each file is synced by itself

	mu  sync.Mutex
	all map[uint64]lateSync // by FSID
}

type lateSync struct {
	f     *os.File
	shown string
}

// add adds the file system of a directory.
func (l *later) add(dir *object) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if _, ok := l.all[dir.attr.FSID]; ok {
		return nil
	}
	f, err := l.side.openDir(dir)
	if err != nil {
		return err
	}
	if l.all == nil {
		l.all = make(map[uint64]lateSync)
	}
	l.all[dir.attr.FSID] = lateSync{f, dir.shown}
	return nil
}

// covers reports whether the file system of a directory is synced at the end.
func (l *later) covers(dir *object) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	_, ok := l.all[dir.attr.FSID]
	return ok
}

// settle makes a complete object durable and gives it its name.
func (k *copier) settle(ctx context.Context, to, into *object, part, name string, large bool) error {
	if k.later.side != nil && !large && k.later.add(into) == nil {
		err := k.later.side.renameNew(ctx, into, part, name)
		if err == nil {
			to.moved(into, name)
			return nil
		}
		if !exists(err) {
			return err
		}
	}
	if err := k.dst.sync(to); err != nil {
		return err
	}
	return k.place(ctx, to, into, part, name)
}

// syncLater syncs what settle and syncDir have left.
func (k *copier) syncLater() {
	for _, l := range k.later.all {
		if k.r.ctx.Err() == nil {
			begin := time.Now()
			err := k.later.side.syncFS(l.f)
			k.spent.on(k.dst, begin)
			if err != nil {
				k.fail(l.shown, fmt.Errorf("syncing the file system: %w", err))
			}
		}
		_ = l.f.Close()
	}
	k.later.all = nil
}

// syncDir makes what was copied into a directory durable under its name.
func (k *copier) syncDir(into *object) {
	if k.r.ctx.Err() != nil || k.later.covers(into) {
		return
	}
	if err := k.dst.syncDir(into); err != nil {
		k.fail(into.shown, fmt.Errorf("syncing the directory: %w", err))
	}
}

func (local) sync(o *object) error { return o.f.Sync() }

func (local) syncDir(o *object) error {
	f, err := os.Open(o.path)
	if errors.Is(err, os.ErrPermission) {
		return nil // a directory that may be written and not read
	}
	if err != nil {
		return err
	}
	defer f.Close()
	if err = f.Sync(); errors.Is(err, unix.EINVAL) {
		return nil // the file system syncs no directories
	}
	return err
}

func (local) openDir(dir *object) (*os.File, error) { return os.Open(dir.path) }

func (local) syncFS(f *os.File) error { return unix.Syncfs(int(f.Fd())) }

func (local) renameNew(_ context.Context, dir *object, from, to string) error {
	from, to = filepath.Join(dir.path, from), filepath.Join(dir.path, to)
	err := unix.Renameat2(unix.AT_FDCWD, from, unix.AT_FDCWD, to, unix.RENAME_NOREPLACE)
	switch {
	case err == nil:
		return nil
	case errors.Is(err, unix.EINVAL), errors.Is(err, unix.ENOSYS): // the file system cannot exclude it
		err = fs.ErrExist
	}
	return &os.LinkError{Op: "rename", Old: from, New: to, Err: err}
}
