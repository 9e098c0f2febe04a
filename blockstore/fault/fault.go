// Package fault makes a file store misbehave on purpose: errors, latency,
// short reads and writes, and reads that would block, from a seed, for the
// tests of what stands on a store.
package fault

import (
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rstored/rstored/blockstore"
)

// Op names a method of blockstore.FS to a rule.
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

// Rule says what happens to some calls of some methods. The first rule that
// applies to a call decides; a rule applies with probability P.
type Rule struct {
	Ops Op
	P   float64 // 0 to 1
	// Delay is waited before the call, for a random part of it.
	Delay time.Duration
	// Err is returned instead of making the call. With After the call is made
	// first and its results are lost, as by a crash before the answer.
	Err   error
	After bool
	// Short cuts reads and writes to a random part, at least one byte.
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

// before picks the rule of a call and does what comes before it.
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

// after is the error of a call that was made.
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

// GetAttr is blockstore.FS.GetAttr with faults.
func (f *FS) GetAttr(c *blockstore.Cred, h blockstore.Handle) (blockstore.Attr, error) {
	r, err := f.before(GetAttr)
	if err != nil {
		return blockstore.Attr{}, err
	}
	a, err := f.FS.GetAttr(c, h)
	return a, r.after(err)
}

// SetAttr is blockstore.FS.SetAttr with faults.
func (f *FS) SetAttr(c *blockstore.Cred, h blockstore.Handle, s *blockstore.SetAttr, guard *time.Time) (blockstore.Wcc, error) {
	r, err := f.before(SetAttr)
	if err != nil {
		return blockstore.Wcc{}, err
	}
	w, err := f.FS.SetAttr(c, h, s, guard)
	return w, r.after(err)
}

// Lookup is blockstore.FS.Lookup with faults.
func (f *FS) Lookup(c *blockstore.Cred, dir blockstore.Handle, name string) (blockstore.Handle, blockstore.Attr, error) {
	r, err := f.before(Lookup)
	if err != nil {
		return blockstore.Handle{}, blockstore.Attr{}, err
	}
	h, a, err := f.FS.Lookup(c, dir, name)
	return h, a, r.after(err)
}

// Access is blockstore.FS.Access with faults.
func (f *FS) Access(c *blockstore.Cred, h blockstore.Handle, want uint32) (uint32, blockstore.Attr, error) {
	r, err := f.before(Access)
	if err != nil {
		return 0, blockstore.Attr{}, err
	}
	got, a, err := f.FS.Access(c, h, want)
	return got, a, r.after(err)
}

// ReadLink is blockstore.FS.ReadLink with faults.
func (f *FS) ReadLink(c *blockstore.Cred, h blockstore.Handle) (string, error) {
	r, err := f.before(ReadLink)
	if err != nil {
		return "", err
	}
	s, err := f.FS.ReadLink(c, h)
	return s, r.after(err)
}

// ReadAt is blockstore.FS.ReadAt with faults.
func (f *FS) ReadAt(c *blockstore.Cred, h blockstore.Handle, p []byte, off uint64, nowait bool) (int, bool, error) {
	r, err := f.before(ReadAt)
	if err != nil {
		return 0, false, err
	}
	n, eof, err := f.FS.ReadAt(c, h, f.cut(&r, p), off, nowait)
	return n, eof, r.after(err)
}

// WriteAt is blockstore.FS.WriteAt with faults.
func (f *FS) WriteAt(c *blockstore.Cred, h blockstore.Handle, p []byte, off uint64, how blockstore.Stability) (int, blockstore.Stability, blockstore.Wcc, error) {
	r, err := f.before(WriteAt)
	if err != nil {
		return 0, how, blockstore.Wcc{}, err
	}
	n, committed, w, err := f.FS.WriteAt(c, h, f.cut(&r, p), off, how)
	return n, committed, w, r.after(err)
}

// Commit is blockstore.FS.Commit with faults.
func (f *FS) Commit(c *blockstore.Cred, h blockstore.Handle, off uint64, n uint32) (blockstore.Wcc, error) {
	r, err := f.before(Commit)
	if err != nil {
		return blockstore.Wcc{}, err
	}
	w, err := f.FS.Commit(c, h, off, n)
	return w, r.after(err)
}

// made ends a method that makes an object.
func made(r *Rule, h blockstore.Handle, a blockstore.Attr, w blockstore.Wcc, err error) (blockstore.Handle, blockstore.Attr, blockstore.Wcc, error) {
	return h, a, w, r.after(err)
}

func notMade(err error) (blockstore.Handle, blockstore.Attr, blockstore.Wcc, error) {
	return blockstore.Handle{}, blockstore.Attr{}, blockstore.Wcc{}, err
}

// Create is blockstore.FS.Create with faults.
func (f *FS) Create(c *blockstore.Cred, dir blockstore.Handle, name string, mode blockstore.CreateMode, s *blockstore.SetAttr, verf [8]byte) (blockstore.Handle, blockstore.Attr, blockstore.Wcc, error) {
	r, err := f.before(Create)
	if err != nil {
		return notMade(err)
	}
	h, a, w, err := f.FS.Create(c, dir, name, mode, s, verf)
	return made(&r, h, a, w, err)
}

// Mkdir is blockstore.FS.Mkdir with faults.
func (f *FS) Mkdir(c *blockstore.Cred, dir blockstore.Handle, name string, s *blockstore.SetAttr) (blockstore.Handle, blockstore.Attr, blockstore.Wcc, error) {
	r, err := f.before(Mkdir)
	if err != nil {
		return notMade(err)
	}
	h, a, w, err := f.FS.Mkdir(c, dir, name, s)
	return made(&r, h, a, w, err)
}

// Symlink is blockstore.FS.Symlink with faults.
func (f *FS) Symlink(c *blockstore.Cred, dir blockstore.Handle, name, target string, s *blockstore.SetAttr) (blockstore.Handle, blockstore.Attr, blockstore.Wcc, error) {
	r, err := f.before(Symlink)
	if err != nil {
		return notMade(err)
	}
	h, a, w, err := f.FS.Symlink(c, dir, name, target, s)
	return made(&r, h, a, w, err)
}

// Mknod is blockstore.FS.Mknod with faults.
func (f *FS) Mknod(c *blockstore.Cred, dir blockstore.Handle, name string, typ blockstore.FileType, major, minor uint32, s *blockstore.SetAttr) (blockstore.Handle, blockstore.Attr, blockstore.Wcc, error) {
	r, err := f.before(Mknod)
	if err != nil {
		return notMade(err)
	}
	h, a, w, err := f.FS.Mknod(c, dir, name, typ, major, minor, s)
	return made(&r, h, a, w, err)
}

// Remove is blockstore.FS.Remove with faults.
func (f *FS) Remove(c *blockstore.Cred, dir blockstore.Handle, name string) (blockstore.Wcc, error) {
	r, err := f.before(Remove)
	if err != nil {
		return blockstore.Wcc{}, err
	}
	w, err := f.FS.Remove(c, dir, name)
	return w, r.after(err)
}

// Rmdir is blockstore.FS.Rmdir with faults.
func (f *FS) Rmdir(c *blockstore.Cred, dir blockstore.Handle, name string) (blockstore.Wcc, error) {
	r, err := f.before(Rmdir)
	if err != nil {
		return blockstore.Wcc{}, err
	}
	w, err := f.FS.Rmdir(c, dir, name)
	return w, r.after(err)
}

// Rename is blockstore.FS.Rename with faults.
func (f *FS) Rename(c *blockstore.Cred, from blockstore.Handle, fromName string, to blockstore.Handle, toName string) (fromW, toW blockstore.Wcc, err error) {
	r, err := f.before(Rename)
	if err != nil {
		return fromW, toW, err
	}
	fromW, toW, err = f.FS.Rename(c, from, fromName, to, toName)
	return fromW, toW, r.after(err)
}

// Link is blockstore.FS.Link with faults.
func (f *FS) Link(c *blockstore.Cred, h, dir blockstore.Handle, name string) (blockstore.Attr, blockstore.Wcc, error) {
	r, err := f.before(Link)
	if err != nil {
		return blockstore.Attr{}, blockstore.Wcc{}, err
	}
	a, w, err := f.FS.Link(c, h, dir, name)
	return a, w, r.after(err)
}

// ReadDir is blockstore.FS.ReadDir with faults.
func (f *FS) ReadDir(c *blockstore.Cred, dir blockstore.Handle, cookie uint64, verf [8]byte, plus bool, emit func(*blockstore.DirEntry) bool) ([8]byte, bool, error) {
	r, err := f.before(ReadDir)
	if err != nil {
		return verf, false, err
	}
	v, eof, err := f.FS.ReadDir(c, dir, cookie, verf, plus, emit)
	return v, eof, r.after(err)
}

// Stat is blockstore.FS.Stat with faults.
func (f *FS) Stat(c *blockstore.Cred, h blockstore.Handle) (blockstore.Stat, error) {
	r, err := f.before(Stat)
	if err != nil {
		return blockstore.Stat{}, err
	}
	s, err := f.FS.Stat(c, h)
	return s, r.after(err)
}
