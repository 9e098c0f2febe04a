package fault

import (
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rstored/rstored/blockstore"
)

// Op is a set of methods of a store, one bit for each. A Rule names the methods that it applies to.
type Op uint32

// Methods, to be combined with |.
const (
	GetAttr Op = 1 << iota
	SetAttr
	Lookup
	Access
	ReadLink
	ReadAt
	WriteAt
	Commit
	Create
	Mkdir
	Symlink
	Mknod
	Remove
	Rmdir
	Rename
	Link
	ReadDir
	Stat
	// Extents are all methods of blockstore.Extents, Xattrs those of blockstore.Xattrs.
	Extents
	Xattrs
	// Any is every method.
	Any Op = 1<<iota - 1
)

// Rule is a fault. A rule applies to a call of one of its methods with probability P. If several
// rules apply to a call, only the first one has an effect.
type Rule struct {
	Ops Op
	P   float64 // 0 to 1
	// Delay bounds the wait before the call. Each wait is a random part of Delay.
	Delay time.Duration
	// Err is the error of the call. Without After the store is not called. With After the store
	// executes the call, and its results are lost, as in a crash before the reply.
	Err   error
	After bool
	// Short makes a read or write transfer a random part of its bytes, at least one byte.
	Short bool
}

// FS is a store with faults. It implements blockstore.FS.
type FS struct {
	blockstore.FS
	rules atomic.Pointer[[]Rule]
	count atomic.Uint64

	mu sync.Mutex
	r  *rand.Rand
}

var _ blockstore.FS = (*FS)(nil)

// New wraps a store; the same seed and calls give the same faults.
func New(fs blockstore.FS, seed uint64, rules ...Rule) *FS {
	f := &FS{FS: fs, r: rand.New(rand.NewPCG(seed, 0))}
	f.Set(rules...)
	return f
}

// Set replaces the rules, at any time.
func (f *FS) Set(rules ...Rule) { f.rules.Store(&rules) }

// Faults returns how many calls a rule applied to.
func (f *FS) Faults() uint64 { return f.count.Load() }

// before chooses the rule for a call, waits for its delay, and returns the error that replaces the
// call.
func (f *FS) before(op Op) (rule Rule, err error) {
	for _, r := range *f.rules.Load() {
		if r.Ops&op == 0 || f.float() >= r.P {
			continue
		}
		f.count.Add(1)
		if r.Delay > 0 {
			time.Sleep(time.Duration(f.float() * float64(r.Delay)))
		}
		if !r.After {
			err = r.Err
		}
		return r, err
	}
	return rule, nil
}

// after returns the error to report for a call that the store has executed.
func (r *Rule) after(err error) error {
	if r.After && r.Err != nil {
		return r.Err
	}
	return err
}

func (f *FS) float() float64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.r.Float64()
}

func (f *FS) cut(r *Rule, p []byte) []byte {
	if !r.Short || len(p) < 2 {
		return p
	}
	return p[:1+int(f.float()*float64(len(p)-1))]
}

// one, two and three call the store, with faults. Their names count the results beside the error.
func one[A any](f *FS, op Op, call func(*Rule) (A, error)) (a A, err error) {
	r, err := f.before(op)
	if err == nil {
		a, err = call(&r)
		err = r.after(err)
	}
	return a, err
}

func two[A, B any](f *FS, op Op, call func(*Rule) (A, B, error)) (a A, b B, err error) {
	r, err := f.before(op)
	if err == nil {
		a, b, err = call(&r)
		err = r.after(err)
	}
	return a, b, err
}

func three[A, B, C any](f *FS, op Op, call func(*Rule) (A, B, C, error)) (a A, b B, c C, err error) {
	r, err := f.before(op)
	if err == nil {
		a, b, c, err = call(&r)
		err = r.after(err)
	}
	return a, b, c, err
}

// The methods of blockstore.FS, with faults.

// GetAttr implements blockstore.FS.
func (f *FS) GetAttr(c *blockstore.Cred, h blockstore.Handle) (blockstore.Attr, error) {
	return one(f, GetAttr, func(*Rule) (blockstore.Attr, error) { return f.FS.GetAttr(c, h) })
}

// SetAttr implements blockstore.FS.
func (f *FS) SetAttr(c *blockstore.Cred, h blockstore.Handle, s *blockstore.SetAttr, guard *time.Time) (
	blockstore.Wcc, error,
) {
	return one(f, SetAttr, func(*Rule) (blockstore.Wcc, error) { return f.FS.SetAttr(c, h, s, guard) })
}

// Lookup implements blockstore.FS.
func (f *FS) Lookup(c *blockstore.Cred, dir blockstore.Handle, name string) (
	blockstore.Handle, blockstore.Attr, error,
) {
	return two(f, Lookup, func(*Rule) (blockstore.Handle, blockstore.Attr, error) { return f.FS.Lookup(c, dir, name) })
}

// Access implements blockstore.FS.
func (f *FS) Access(c *blockstore.Cred, h blockstore.Handle, want uint32) (uint32, blockstore.Attr, error) {
	return two(f, Access, func(*Rule) (uint32, blockstore.Attr, error) { return f.FS.Access(c, h, want) })
}

// ReadLink implements blockstore.FS.
func (f *FS) ReadLink(c *blockstore.Cred, h blockstore.Handle) (string, error) {
	return one(f, ReadLink, func(*Rule) (string, error) { return f.FS.ReadLink(c, h) })
}

// ReadAt implements blockstore.FS.
func (f *FS) ReadAt(c *blockstore.Cred, h blockstore.Handle, p []byte, off uint64, nowait bool) (int, bool, error) {
	return two(f, ReadAt, func(r *Rule) (int, bool, error) { return f.FS.ReadAt(c, h, f.cut(r, p), off, nowait) })
}

// WriteAt implements blockstore.FS.
func (f *FS) WriteAt(c *blockstore.Cred, h blockstore.Handle, p []byte, off uint64, how blockstore.Stability) (
	int, blockstore.Stability, blockstore.Wcc, error,
) {
	return three(f, WriteAt, func(r *Rule) (int, blockstore.Stability, blockstore.Wcc, error) {
		return f.FS.WriteAt(c, h, f.cut(r, p), off, how)
	})
}

// Commit implements blockstore.FS.
func (f *FS) Commit(c *blockstore.Cred, h blockstore.Handle, off uint64, n uint32) (blockstore.Wcc, error) {
	return one(f, Commit, func(*Rule) (blockstore.Wcc, error) { return f.FS.Commit(c, h, off, n) })
}

// Create implements blockstore.FS.
func (f *FS) Create(c *blockstore.Cred, dir blockstore.Handle, name string, mode blockstore.CreateMode,
	s *blockstore.SetAttr, verf [8]byte,
) (blockstore.Handle, blockstore.Attr, blockstore.Wcc, error) {
	return three(f, Create, func(*Rule) (blockstore.Handle, blockstore.Attr, blockstore.Wcc, error) {
		return f.FS.Create(c, dir, name, mode, s, verf)
	})
}

// Mkdir implements blockstore.FS.
func (f *FS) Mkdir(c *blockstore.Cred, dir blockstore.Handle, name string, s *blockstore.SetAttr) (
	blockstore.Handle, blockstore.Attr, blockstore.Wcc, error,
) {
	return three(f, Mkdir, func(*Rule) (blockstore.Handle, blockstore.Attr, blockstore.Wcc, error) {
		return f.FS.Mkdir(c, dir, name, s)
	})
}

// Symlink implements blockstore.FS.
func (f *FS) Symlink(c *blockstore.Cred, dir blockstore.Handle, name, target string, s *blockstore.SetAttr) (
	blockstore.Handle, blockstore.Attr, blockstore.Wcc, error,
) {
	return three(f, Symlink, func(*Rule) (blockstore.Handle, blockstore.Attr, blockstore.Wcc, error) {
		return f.FS.Symlink(c, dir, name, target, s)
	})
}

// Mknod implements blockstore.FS.
func (f *FS) Mknod(c *blockstore.Cred, dir blockstore.Handle, name string, typ blockstore.FileType, major,
	minor uint32, s *blockstore.SetAttr,
) (blockstore.Handle, blockstore.Attr, blockstore.Wcc, error) {
	return three(f, Mknod, func(*Rule) (blockstore.Handle, blockstore.Attr, blockstore.Wcc, error) {
		return f.FS.Mknod(c, dir, name, typ, major, minor, s)
	})
}

// Remove implements blockstore.FS.
func (f *FS) Remove(c *blockstore.Cred, dir blockstore.Handle, name string) (blockstore.Wcc, error) {
	return one(f, Remove, func(*Rule) (blockstore.Wcc, error) { return f.FS.Remove(c, dir, name) })
}

// Rmdir implements blockstore.FS.
func (f *FS) Rmdir(c *blockstore.Cred, dir blockstore.Handle, name string) (blockstore.Wcc, error) {
	return one(f, Rmdir, func(*Rule) (blockstore.Wcc, error) { return f.FS.Rmdir(c, dir, name) })
}

// Rename implements blockstore.FS.
func (f *FS) Rename(c *blockstore.Cred, from blockstore.Handle, fromName string, to blockstore.Handle,
	toName string,
) (blockstore.Wcc, blockstore.Wcc, error) {
	return two(f, Rename, func(*Rule) (blockstore.Wcc, blockstore.Wcc, error) {
		return f.FS.Rename(c, from, fromName, to, toName)
	})
}

// Link implements blockstore.FS.
func (f *FS) Link(c *blockstore.Cred, h, dir blockstore.Handle, name string) (
	blockstore.Attr, blockstore.Wcc, error,
) {
	return two(f, Link, func(*Rule) (blockstore.Attr, blockstore.Wcc, error) { return f.FS.Link(c, h, dir, name) })
}

// ReadDir implements blockstore.FS.
func (f *FS) ReadDir(c *blockstore.Cred, dir blockstore.Handle, cookie uint64, verf [8]byte, plus bool,
	emit func(*blockstore.DirEntry) bool,
) ([8]byte, bool, error) {
	return two(f, ReadDir, func(*Rule) ([8]byte, bool, error) { return f.FS.ReadDir(c, dir, cookie, verf, plus, emit) })
}

// Stat implements blockstore.FS.
func (f *FS) Stat(c *blockstore.Cred, h blockstore.Handle) (blockstore.Stat, error) {
	return one(f, Stat, func(*Rule) (blockstore.Stat, error) { return f.FS.Stat(c, h) })
}
