package storetest

import (
	"time"

	"github.com/rstored/rstored/blockstore"
)

func testReadDir(e *env) {
	want := map[string]blockstore.Handle{}
	for i := range 100 {
		n := numbered(i)
		if i%10 == 0 {
			want[n] = e.mkdir(nil, e.root, n, 0o755)
		} else {
			want[n] = e.mkfile(nil, e.root, n, 0o644, n)
		}
	}
	for _, per := range []int{0, 1, 7, 99} {
		set := e.names(e.root, per)
		e.wantNot(len(set) != len(want), "%d a call: %d names", per, len(set))
	}
	for _, per := range []int{0, 13} {
		for _, d := range e.list(e.root, per, true) {
			e.wantNot(d.Attr == nil || d.Handle == nil, "%q without attributes", d.Name)
			e.wantNot(d.FileID != d.Attr.FileID, "%q: fileid %d and %d", d.Name, d.FileID, d.Attr.FileID)
			if d.Name == "." || d.Name == ".." {
				e.wantNot(*d.Handle != e.root, "%q of the root is another object", d.Name)
				continue
			}
			e.wantNot(*d.Handle != want[d.Name], "%q: another handle", d.Name)
			e.wantNot(*d.Attr != e.attr(*d.Handle), "%q: other attributes", d.Name)
		}
	}
	sub := want[numbered(0)]
	for _, d := range e.list(sub, 0, true) {
		if d.Name == ".." {
			e.wantNot(*d.Handle != e.root, "wrong parent")
		}
	}
	// Cookies stay good over a restart.
	if e.opts.Reopen != nil {
		all := e.list(e.root, 0, false)
		mid := len(all) / 2
		e.FS = e.opts.Reopen(e.T, e.FS)
		var rest []string
		_, eof, err := e.ReadDir(nil, e.root, all[mid].Cookie, [8]byte{}, false, func(d *blockstore.DirEntry) bool {
			rest = append(rest, d.Name)
			return true
		})
		e.ok(err)
		e.wantNot(!eof || len(rest) != len(all)-mid-1, "after the restart %d entries follow, want %d", len(rest),
			len(all)-mid-1)
		for i, n := range rest {
			e.wantNot(n != all[mid+1+i].Name, "after the restart the order is another")
		}
	}
}

// testReadDirModify removes what it has listed and adds more, as rm -r and a
// busy client do: what stays must be listed once.
func testReadDirModify(e *env) {
	const n = 500
	for i := range n {
		e.mkfile(nil, e.root, numbered(i), 0o644, "")
	}
	seen := map[string]int{}
	var cookie uint64
	for round := 0; ; round++ {
		var batch []string
		_, eof, err := e.ReadDir(nil, e.root, cookie, [8]byte{}, round%2 == 0, func(d *blockstore.DirEntry) bool {
			if len(batch) == 17 {
				return false
			}
			batch = append(batch, d.Name)
			cookie = d.Cookie
			return true
		})
		e.ok(err)
		for i, name := range batch {
			seen[name]++
			if i%2 == 0 && name != "." && name != ".." && name[0] == 'e' {
				e.ok(second(e.Remove(nil, e.root, name)))
			}
		}
		e.mkfile(nil, e.root, "new-"+numbered(round), 0o644, "")
		if eof {
			break
		}
		e.wantNot(round > 10*n, "the listing does not end")
	}
	for i := range n {
		e.wantNot(seen[numbered(i)] != 1, "%s listed %d times", numbered(i), seen[numbered(i)])
	}
}

func testReadDirBig(e *env) {
	d := e.mkdir(nil, e.root, "big", 0o755)
	for i := range e.opts.BigDir {
		e.ok(fourth(e.Mknod(nil, d, numbered(i), blockstore.TypeFifo, 0, 0, nil)))
	}
	start := time.Now()
	set := e.names(d, 100)
	e.wantNot(len(set) != e.opts.BigDir, "%d names, want %d", len(set), e.opts.BigDir)
	e.Logf("%d entries, 100 a call: %v", e.opts.BigDir, time.Since(start).Round(time.Millisecond))
	start = time.Now()
	all := e.list(d, 100, true)
	e.Logf("with attributes: %v", time.Since(start).Round(time.Millisecond))
	for _, x := range all {
		e.wantNot(x.Attr == nil, "%q without attributes", x.Name)
	}
}
