package storetest

import (
	"bytes"
	"errors"
	"fmt"
	"strings"

	"github.com/rstored/rstored/blockstore"
)

// testExtents tests the methods of Extents that the store supports.
func testExtents(e *env) {
	x, ok := e.FS.(blockstore.Extents)
	if !ok {
		e.Skip("the store does not know about extents")
	}
	e.run("seek", func() { e.testSeek(x) })
	e.run("allocate", func() { e.testAllocate(x) })
	e.run("copy", func() { e.testCopy(x) })
	e.run("copy of holes", func() { e.testCopyHoles(x) })
	e.run("clone", func() { e.testClone(x) })
	d := e.mkdir(nil, e.root, "dir", 0o755)
	for _, err := range []error{x.Allocate(nil, d, 0, 1), x.Deallocate(nil, d, 0, 1)} {
		e.want(err, blockstore.ErrIsDir)
	}
	e.want(second(x.Seek(nil, d, 0, true)), blockstore.ErrIsDir)
}

// run runs a part of a test. The part ends without a failure if the store does not support it.
func (e *env) run(what string, f func()) {
	defer func() {
		if r := recover(); r != nil {
			if r != errSkip {
				panic(r)
			}
			e.Logf("%s: not supported here", what)
		}
	}()
	f()
}

var errSkip = errors.New("not supported")

// supported is ok. If the error is ErrNotSupp, it ends the part of the test (run).
func (e *env) supported(err error) {
	e.Helper()
	if errors.Is(err, blockstore.ErrNotSupp) {
		panic(errSkip)
	}
	e.ok(err)
}

func (e *env) testSeek(x blockstore.Extents) {
	f := e.mkfile(nil, e.root, "sparse", 0o644, "head")
	const far = 1 << 20
	e.put(nil, f, strings.Repeat("x", 1<<16), far)
	const size = far + 1<<16
	at, err := x.Seek(nil, f, 0, false)
	e.supported(err)
	e.wantNot(at != 0, "data begins at %d", at)
	hole, err := x.Seek(nil, f, 0, true)
	e.ok(err)
	e.wantNot(hole < 4 || hole > size, "a hole at %d", hole)
	if hole < size { // the filesystem knows holes
		at, err = x.Seek(nil, f, hole, false)
		e.ok(err)
		e.wantNot(at != far, "data again at %d", at)
	}
	at, err = x.Seek(nil, f, far+5, false)
	e.ok(err)
	e.wantNot(at != far+5, "data at %d", at)
	at, err = x.Seek(nil, f, far+5, true)
	e.ok(err)
	e.wantNot(at != size, "the last hole at %d", at)
	for _, off := range []uint64{size, 1 << 40, 1<<64 - 1} {
		for _, hole := range []bool{false, true} {
			e.want(second(x.Seek(nil, f, off, hole)), blockstore.ErrNXIO)
		}
	}
}

func (e *env) testAllocate(x blockstore.Extents) {
	f := e.mkfile(nil, e.root, "file", 0o644, "0123456789")
	e.supported(x.Allocate(nil, f, 5, 100_000))
	a := e.attr(f)
	e.wantNot(a.Size != 100_005 || a.Used < 100_000, "size %d, used %d", a.Size, a.Used)
	e.wantNot(e.get(nil, f) != "0123456789"+string(make([]byte, 99_995)), "allocating changed the content")
	e.ok(x.Allocate(nil, f, 0, 10))
	e.wantNot(e.attr(f).Size != 100_005, "the file became shorter")
	e.put(nil, f, strings.Repeat("y", 100_005), 0)
	e.supported(x.Deallocate(nil, f, 3, 90_000))
	want := append(bytes.Repeat([]byte("y"), 3), make([]byte, 90_000)...)
	want = append(want, bytes.Repeat([]byte("y"), 100_005-90_003)...)
	e.wantNot(e.get(nil, f) != string(want), "the hole is not where it should be")
	e.wantNot(e.attr(f).Used >= a.Used && !e.opts.Dense, "the hole takes space: %d of %d", e.attr(f).Used, a.Used)
	e.ok(x.Deallocate(nil, f, 100_000, 1<<40))
	e.wantNot(e.attr(f).Size != 100_005, "a hole behind the end changed the size")
	for _, r := range [][2]uint64{{0, 0}, {1 << 63, 1}, {1<<63 - 1, 1}, {1, 1<<63 - 1}, {1<<64 - 1, 1<<64 - 1}} {
		for _, err := range []error{x.Allocate(nil, f, r[0], r[1]), x.Deallocate(nil, f, r[0], r[1])} {
			if r[1] == 0 {
				e.want(err, blockstore.ErrInval)
			} else {
				e.want(err, blockstore.ErrFBig)
			}
		}
	}
	if e.opts.Root {
		e.want(x.Allocate(Other, f, 0, 1), blockstore.ErrAccess)
		e.want(x.Deallocate(Other, f, 0, 1), blockstore.ErrAccess)
	}
}

func (e *env) testCopy(x blockstore.Extents) {
	data := strings.Repeat("0123456789abcdef", 8192)
	from, to := e.mkfile(nil, e.root, "from", 0o644, data), e.mkfile(nil, e.root, "to", 0o644, "")
	copied := func(fromOff, toOff, n uint64) (total uint64) {
		for {
			want := uint64(0)
			if n > 0 {
				want = n - total
			}
			k, err := x.Copy(nil, from, fromOff+total, to, toOff+total, want)
			e.supported(err)
			if total += k; k == 0 || total == n {
				return total
			}
		}
	}
	n := copied(0, 0, 0)
	e.wantNot(n != uint64(len(data)) || e.get(nil, to) != data, "%d bytes of all", n)
	n = copied(1, 3, 7)
	e.wantNot(n != 7 || e.get(nil, to) != data[:3]+data[1:8]+data[10:], "%d bytes of a part", n)
	n = copied(uint64(len(data))-5, 0, 100)
	e.wantNot(n != 5, "%d bytes before the end", n)
	n = copied(uint64(len(data)), 0, 100)
	e.wantNot(n != 0, "%d bytes behind the end", n)
	e.want(second(x.Copy(nil, from, 0, from, 10, 100)), blockstore.ErrInval)
	k, err := x.Copy(nil, from, 0, from, uint64(len(data)), 16)
	e.supported(err)
	e.wantNot(k != 16 || e.get(nil, from) != data+data[:16], "within a file: %d", k)
	if e.opts.Root {
		e.want(second(x.Copy(Other, from, 0, to, 0, 1)), blockstore.ErrAccess)
	}
}

// testCopyHoles: a copy has holes where its source has them, also over data that was there.
func (e *env) testCopyHoles(x blockstore.Extents) {
	const unit, units = 64 << 10, 8
	for _, source := range []string{"-x--xx--", "xx----x-", "--------", "x------x"} {
		for _, before := range []int{0, 5, units} {
			from := e.mkfile(nil, e.root, fmt.Sprintf("from %s %d", source, before), 0o644, "")
			to := e.mkfile(nil, e.root, fmt.Sprintf("to %s %d", source, before), 0o644, "")
			var want strings.Builder
			for i, c := range source {
				if c == 'x' {
					e.put(nil, from, strings.Repeat("x", unit), uint64(i*unit))
				}
				want.WriteString(strings.Repeat(strings.ReplaceAll(string(c), "-", "\x00"), unit))
			}
			size := uint64(unit * units)
			e.ok(second(e.FS.SetAttr(nil, from, &blockstore.SetAttr{Size: &size}, nil)))
			if before > 0 {
				e.put(nil, to, strings.Repeat("y", before*unit), 0)
			}
			for done := uint64(0); done < size; {
				k, err := x.Copy(nil, from, done, to, done, 0)
				e.supported(err)
				e.wantNot(k == 0, "the copy of %s ends at %d", source, done)
				done += k
			}
			e.wantNot(e.get(nil, to) != want.String(), "the copy of %s over %d units is different", source, before)
			for i, c := range source {
				off := uint64(i * unit)
				at, err := x.Seek(nil, from, off, true)
				e.supported(err)
				if c == 'x' || at != off {
					continue // data, or a filesystem that knows no holes
				}
				at, err = x.Seek(nil, to, off, true)
				e.ok(err)
				e.wantNot(at != off, "unit %d of %s over %d units is no hole in the copy: the next is at %d", i, source, before, at)
			}
		}
	}
}

func (e *env) testClone(x blockstore.Extents) {
	data := strings.Repeat("0123456789abcdef", 8192)
	from, to := e.mkfile(nil, e.root, "original", 0o644, data), e.mkfile(nil, e.root, "clone", 0o644, "")
	e.supported(x.Clone(nil, from, 0, to, 0, 0))
	e.wantNot(e.get(nil, to) != data, "the clone is not the same")
	e.put(nil, to, "changed", 0)
	e.wantNot(e.get(nil, from) != data, "a change of the clone changed the original")
}
