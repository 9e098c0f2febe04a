package e2e

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rstored/rstored/blockstore"
	"github.com/rstored/rstored/nfs"
	"github.com/rstored/rstored/nfs/client"
)

// page is the content of a page: which of a file, and of which write.
func page(file, n, gen uint32) []byte {
	p := make([]byte, 0, diskPage)
	p = append(p, dataMagic...)
	p = binary.BigEndian.AppendUint32(p, file)
	p = binary.BigEndian.AppendUint32(p, n)
	p = binary.BigEndian.AppendUint32(p, gen)
	rnd := rand.New(rand.NewPCG(uint64(file)<<32|uint64(n), uint64(gen)))
	for len(p) < diskPage {
		p = binary.BigEndian.AppendUint16(p, uint16(rnd.Uint32()))
	}
	return p[:diskPage]
}

var zeroPage = make([]byte, diskPage)

// generation is which write of a page p has, 0 if it has none; ok is false if p is no such page.
func generation(p []byte, file, n uint32) (gen uint32, ok bool) {
	if bytes.Equal(p, zeroPage) {
		return 0, true
	}
	at := len(dataMagic) + 8
	gen = binary.BigEndian.Uint32(p[at:])
	return gen, bytes.Equal(p, page(file, n, gen))
}

// block is what is known of a page of a file: the write that is on the disk for sure, and those
// that may have come after it.
type block struct {
	stable uint32
	maybe  []uint32
}

func (b *block) may(gen uint32) bool { return gen == b.stable || slices.Contains(b.maybe, gen) }

// owed is an unstable write that was not committed.
type owed struct {
	n, gen uint32
	verf   [8]byte
}

// writer writes some pages of a file, which others write other pages of, by one client. What it
// knows it has from replies alone.
type writer struct {
	w      *datapath
	c      *client.Client
	h      client.Handle
	name   string
	file   uint32
	first  uint32 // of its pages
	blocks []block
	owed   []owed
	gen    uint32
	ctime  time.Time
	power  int64 // cuts when ctime was seen
	r      *rand.Rand
}

// datapath is a daemon on a bad disk, and what its clients do.
type datapath struct {
	t     *testing.T
	d     *daemon
	disk  *badDisk
	gate  sync.RWMutex // held for writing while everything is looked at
	stop  atomic.Bool
	cuts  atomic.Int64 // of power
	fails atomic.Int64 // calls that failed
	done  [8]atomic.Int64
}

// expected reports whether a call may fail with an error on such a disk.
func expected(err error) bool {
	for _, e := range []error{blockstore.ErrIO, blockstore.ErrNoSpace, blockstore.ErrROFS} {
		if errors.Is(err, e) {
			return true
		}
	}
	for _, st := range []nfs.Status{nfs.ErrIO, nfs.ErrNoSpc, nfs.ErrROFS, nfs.ErrJukebox} {
		if client.IsStatus(err, st) {
			return true
		}
	}
	return false
}

// failed notes that a call has failed. It is a mistake of the server if the disk is no reason.
func (w *datapath) failed(what string, err error) {
	w.fails.Add(1)
	if !expected(err) && w.t.Context().Err() == nil {
		w.t.Errorf("%s: %v", what, err)
	}
}

func (x *writer) ctx() (context.Context, context.CancelFunc) {
	return context.WithTimeout(x.w.t.Context(), 2*time.Minute)
}

func (x *writer) step() {
	ctx, cancel := x.ctx()
	defer cancel()
	switch n := x.r.IntN(20); {
	case n < 11:
		x.write(ctx, uint32(x.r.IntN(len(x.blocks))), 1+uint32(x.r.IntN(8)), blockstore.Stability(x.r.IntN(3)))
	case n < 15:
		x.commit(ctx)
	case n < 18:
		x.read(ctx)
	default:
		x.attr(ctx)
	}
}

// write writes n pages from one on.
func (x *writer) write(ctx context.Context, from, n uint32, how blockstore.Stability) {
	n = min(n, uint32(len(x.blocks))-from)
	x.gen++
	var p []byte
	for i := range n {
		p = append(p, page(x.file, x.first+from+i, x.gen)...)
		b := &x.blocks[from+i]
		b.maybe = append(b.maybe, x.gen)
	}
	got, err := x.c.Write(ctx, x.h, p, uint64(x.first+from)*diskPage, how)
	if err != nil {
		x.w.failed("WRITE of "+x.name, err)
		return
	}
	x.w.done[got.Committed].Add(1)
	for i := range uint32(got.N / diskPage) { // all of a page, or it counts as not written
		if got.Committed == blockstore.Unstable {
			x.owed = append(x.owed, owed{from + i, x.gen, got.Verifier})
		} else {
			x.blocks[from+i].isStable(x.gen)
		}
	}
}

// isStable notes that a write is on the disk. Later ones may be, too.
func (b *block) isStable(gen uint32) {
	if gen <= b.stable {
		return
	}
	b.stable = gen
	b.maybe = slices.DeleteFunc(b.maybe, func(g uint32) bool { return g <= gen })
}

func (x *writer) commit(ctx context.Context) {
	v, err := x.c.Commit(ctx, x.h, 0, 0)
	if err != nil {
		x.w.failed("COMMIT of "+x.name, err)
		return
	}
	var lost []owed
	for _, o := range x.owed {
		if o.verf == v {
			x.w.done[3].Add(1)
			x.blocks[o.n].isStable(o.gen)
		} else {
			lost = append(lost, o)
		}
	}
	x.owed = nil
	for _, o := range lost { // again, as a client does
		x.w.done[4].Add(1)
		x.write(ctx, o.n, 1, blockstore.Unstable)
	}
}

// read looks at all pages.
func (x *writer) read(ctx context.Context) {
	p := make([]byte, len(x.blocks)*diskPage)
	n := 0
	for n < len(p) {
		k, eof, err := x.c.Read(ctx, x.h, p[n:], uint64(x.first)*diskPage+uint64(n))
		if err != nil {
			x.w.failed("READ of "+x.name, err)
			return
		}
		if n += k; eof || k == 0 {
			break
		}
	}
	x.w.done[5].Add(1)
	for i := range x.blocks {
		b := &x.blocks[i]
		gen, ok := generation(p[i*diskPage:][:diskPage], x.file, x.first+uint32(i))
		if !ok || !b.may(gen) {
			x.w.t.Errorf("%s, page %d: has write %d (whole %v), is to have %d or one of %d", x.name, x.first+uint32(i), gen, ok,
				b.stable, b.maybe)
		}
	}
}

// attr looks whether the change time goes on.
func (x *writer) attr(ctx context.Context) {
	cuts := x.w.cuts.Load()
	a, err := x.c.GetAttr(ctx, x.h)
	if err != nil {
		x.w.failed("GETATTR of "+x.name, err)
		return
	}
	if a.Ctime.Before(x.ctime) && cuts == x.power && cuts == x.w.cuts.Load() {
		x.w.t.Errorf("%s: ctime went from %v back to %v", x.name, x.ctime, a.Ctime)
	}
	x.ctime, x.power = a.Ctime, cuts
}

// namer makes, renames, truncates and removes files of its own.
type namer struct {
	w     *datapath
	c     *client.Client
	dir   client.Handle
	id    int
	next  int
	files map[string]*named // by the name that each has for sure
	lost  map[string]bool   // names that may be there or not
	r     *rand.Rand
}

type named struct {
	h     client.Handle
	id    uint64
	size  uint64
	sizes []uint64 // that it may have
}

func (x *namer) fresh() string {
	x.next++
	return fmt.Sprintf("n%d-%d", x.id, x.next)
}

// failed forgets what may have happened or not. After a loss of power what was done may be unknown
// to the server.
func (x *namer) failed(what string, err error, cuts int64, names ...string) {
	if cuts == x.w.cuts.Load() || expected(err) {
		x.w.failed(what, err)
	}
	for _, n := range names {
		delete(x.files, n)
		x.lost[n] = true
	}
}
