package storetest

import (
	"bytes"
	"errors"
	"time"

	"github.com/rstored/rstored/blockstore"
)

func unix(sec, nsec int64) time.Time { return time.Unix(sec, nsec) }

func testReadWrite(e *env) {
	f := e.mkfile(nil, e.root, "f", 0o644, "0123456789")
	buf := make([]byte, 4)
	for _, r := range []struct {
		off  uint64
		n    int
		eof  bool
		want string
	}{
		{0, 4, false, "0123"},
		{4, 4, false, "4567"},
		{6, 4, true, "6789"},
		{8, 2, true, "89"},
		{10, 0, true, ""},
		{1 << 40, 0, true, ""},
		{1<<64 - 1, 0, true, ""},
	} {
		n, eof, err := e.ReadAt(nil, f, buf, r.off, false)
		e.ok(err)
		e.wantNot(n != r.n || eof != r.eof || string(buf[:n]) != r.want, "read at %d: %d %v %q", r.off, n, eof, buf[:n])
		n, eof, err = e.ReadAt(nil, f, buf, r.off, true)
		if !errors.Is(err, blockstore.ErrWouldBlock) {
			e.ok(err)
			e.wantNot(n != r.n || eof != r.eof || string(buf[:n]) != r.want, "nowait read at %d: %d %v %q", r.off, n, eof,
				buf[:n])
		}
	}
	n, eof, err := e.ReadAt(nil, f, nil, 0, false)
	e.wantNot(n != 0 || eof || err != nil, "empty read: %d %v %v", n, eof, err)
	n, _, _, err = e.WriteAt(nil, f, nil, 5, blockstore.FileSync)
	e.wantNot(n != 0 || err != nil, "empty write: %d %v", n, err)
	e.put(nil, f, "AB", 3)
	e.put(nil, f, "end", 12)
	e.wantNot(e.get(nil, f) != "012AB56789\x00\x00end", "content %q", e.get(nil, f))
	big := bytes.Repeat([]byte("0123456789abcdef"), 200000)
	e.put(nil, f, string(big), 100001)
	got := e.get(nil, f)
	e.wantNot(got[100001:] != string(big) || len(got) != 100001+len(big), "a large write came back different")
	for _, off := range []uint64{1<<63 - 1, 1 << 63, 1<<64 - 2} {
		_, _, _, err = e.WriteAt(nil, f, []byte("xy"), off, blockstore.Unstable)
		if off > 1<<63-1 || err != nil {
			e.want(err, blockstore.ErrFBig)
		}
	}
}

func testSparse(e *env) {
	f := e.mkfile(nil, e.root, "f", 0o644, "")
	const far = 5<<30 + 12345
	e.put(nil, f, "tail", far)
	a := e.attr(f)
	e.wantNot(a.Size != far+4, "size %d", a.Size)
	e.wantNot(a.Used > 1<<20 && !e.opts.Dense, "a hole of 5 GiB uses %d bytes", a.Used)
	buf := bytes.Repeat([]byte{0xee}, 100)
	n, eof, err := e.ReadAt(nil, f, buf, far-96, false)
	e.ok(err)
	e.wantNot(n != 100 || !eof || !bytes.Equal(buf, append(make([]byte, 96), "tail"...)), "around the end: %d %v %q", n,
		eof, buf)
	n, eof, err = e.ReadAt(nil, f, buf, 1<<32, false)
	e.ok(err)
	e.wantNot(n != 100 || eof || !bytes.Equal(buf, make([]byte, 100)), "the hole is not zeros")
	// Cutting and growing must not bring old data back.
	e.put(nil, f, "secret", 100)
	for _, size := range []uint64{103, 6 << 30, 103, 0, 200} {
		e.ok(second(e.SetAttr(nil, f, &blockstore.SetAttr{Size: &size}, nil)))
		e.wantNot(e.attr(f).Size != size, "size %d, want %d", e.attr(f).Size, size)
	}
	e.wantNot(e.get(nil, f) != string(make([]byte, 200)), "old data after truncation: %q", e.get(nil, f))
	for _, grow := range []struct{ size, want uint64 }{{100, 200}, {200, 200}, {201, 201}} {
		e.ok(second(e.SetAttr(nil, f, &blockstore.SetAttr{Size: &grow.size, Grow: true}, nil)))
		e.wantNot(e.attr(f).Size != grow.want, "size %d, want %d", e.attr(f).Size, grow.want)
	}
}

func testStability(e *env) {
	f := e.mkfile(nil, e.root, "f", 0o644, "")
	v := e.Verifier()
	for i, how := range []blockstore.Stability{blockstore.Unstable, blockstore.DataSync, blockstore.FileSync} {
		n, committed, w, err := e.WriteAt(nil, f, []byte("data"), uint64(i)*4, how)
		e.ok(err)
		e.wantNot(n != 4 || committed < how, "wrote %d as stable as %d, asked %d", n, committed, how)
		e.wantNot(!w.Post.Known || w.Post.Size != uint64(i)*4+4, "consistency data %+v", w)
	}
	w, err := e.Commit(nil, f, 0, 0)
	e.ok(err)
	e.wantNot(!w.Post.Known, "no attributes")
	e.ok(second(e.Commit(nil, f, 1<<40, 1<<31)))
	e.wantNot(e.Verifier() != v, "the verifier changed without cause")
}

// testWriteNowait: WriteNowait writes as WriteAt does, or returns ErrWouldBlock.
func testWriteNowait(e *env) {
	fs, ok := e.FS.(blockstore.NowaitWriter)
	if !ok {
		e.Skip("the store has no writes that do not wait")
	}
	f := e.mkfile(nil, e.root, "f", 0o600, "0123456789")
	d := e.mkdir(nil, e.root, "d", 0o700)
	e.want(fourth(fs.WriteNowait(nil, d, []byte("x"), 0, blockstore.Unstable)), blockstore.ErrWouldBlock)
	e.want(fourth(fs.WriteNowait(Other, f, []byte("x"), 0, blockstore.Unstable)), blockstore.ErrWouldBlock)
	e.want(fourth(fs.WriteNowait(nil, f, []byte("xy"), 1<<63, blockstore.Unstable)), blockstore.ErrWouldBlock)
	_, _, _, err := fs.WriteNowait(nil, blockstore.Handle{}, []byte("x"), 0, blockstore.Unstable)
	e.want(err, blockstore.ErrWouldBlock)
	e.wantNot(e.get(nil, f) != "0123456789", "content %q", e.get(nil, f))
	want := []byte("0123456789")
	for i, how := range []blockstore.Stability{
		blockstore.Unstable, blockstore.DataSync, blockstore.FileSync,
		blockstore.Unstable,
	} {
		p := bytes.Repeat([]byte{byte('a' + i)}, 3+7*i)
		off := uint64(2 + 3*i)
		before := e.attr(f)
		n, committed, w, err := fs.WriteNowait(nil, f, p, off, how)
		if errors.Is(err, blockstore.ErrWouldBlock) {
			n, committed, w, err = e.WriteAt(nil, f, p, off, how)
		}
		e.ok(err)
		e.wantNot(n != len(p) || committed < how, "wrote %d as stable as %d, asked %d", n, committed, how)
		e.wantNot(!w.Pre.Known || w.Pre.Size != before.Size || !w.Pre.Mtime.Equal(before.Mtime), "before: %+v, want %+v",
			w.Pre, before)
		want = append(want[:off], append(p, want[min(int(off)+len(p), len(want)):]...)...)
		e.wantNot(e.get(nil, f) != string(want), "content %q, want %q", e.get(nil, f), want)
		after := e.attr(f)
		e.wantNot(!w.Post.Known || w.Post.Size != after.Size || !w.Post.Mtime.Equal(after.Mtime), "after: %+v, want %+v",
			w.Post, after)
	}
}

func testSetAttr(e *env) {
	f := e.mkfile(nil, e.root, "f", 0o644, "0123456789")
	at, mt := unix(1234567890, 123456000), unix(1500000000, 999999000)
	w, err := e.SetAttr(nil, f, &blockstore.SetAttr{
		Mode: new(uint32(0o751)), Size: new(uint64(4)),
		AtimeHow: blockstore.TimeClient, Atime: at, MtimeHow: blockstore.TimeClient, Mtime: mt,
	}, nil)
	e.ok(err)
	a := e.attr(f)
	e.wantNot(a.Mode != 0o751 || a.Size != 4 || !a.Atime.Equal(at) || !a.Mtime.Equal(mt), "attributes %+v", a)
	e.wantNot(!w.Post.Known || w.Post.Attr != a, "post attributes %+v, want %+v", w.Post, a)
	e.wantNot(!w.Pre.Known || w.Pre.Size != 10, "pre attributes %+v", w.Pre)
	_, err = e.SetAttr(nil, f, &blockstore.SetAttr{AtimeHow: blockstore.TimeServer, MtimeHow: blockstore.TimeServer}, nil)
	e.ok(err)
	a = e.attr(f)
	if d := time.Since(a.Mtime); d < -time.Minute || d > time.Minute {
		e.Fatalf("server time is %v off", d)
	}
	e.ok(second(e.SetAttr(nil, f, &blockstore.SetAttr{}, nil)))
	e.want(second(e.SetAttr(nil, f, &blockstore.SetAttr{Size: new(uint64(1) << 63)}, nil)), blockstore.ErrFBig)
	d := e.mkdir(nil, e.root, "d", 0o700)
	e.chmod(nil, d, 0o1777)
	e.wantNot(e.attr(d).Mode != 0o1777, "mode %o", e.attr(d).Mode)
	if e.opts.Root {
		e.ok(second(e.SetAttr(nil, f, &blockstore.SetAttr{UID: new(uint32(77)), GID: new(uint32(78))}, nil)))
		a = e.attr(f)
		e.wantNot(a.UID != 77 || a.GID != 78, "owner %d:%d", a.UID, a.GID)
	}
}

func testGuard(e *env) {
	f := e.mkfile(nil, e.root, "f", 0o644, "")
	a := e.attr(f)
	wrong := a.Ctime.Add(-time.Nanosecond)
	w, err := e.SetAttr(nil, f, &blockstore.SetAttr{Mode: new(uint32(0o600))}, &wrong)
	e.want(err, blockstore.ErrNotSync)
	e.wantNot(e.attr(f).Mode != 0o644, "changed against the guard")
	e.wantNot(!w.Post.Known || w.Post.Mode != 0o644, "no attributes with the refusal")
	right := a.Ctime
	e.ok(second(e.SetAttr(nil, f, &blockstore.SetAttr{Mode: new(uint32(0o600))}, &right)))
	e.wantNot(e.attr(f).Mode != 0o600, "not changed")
}

func testWcc(e *env) {
	check := func(what string, before blockstore.Attr, w blockstore.Wcc, h blockstore.Handle) {
		e.Helper()
		e.wantNot(!w.Pre.Known || w.Pre.Attr != before, "%s: pre %+v, want %+v", what, w.Pre, before)
		after := e.attr(h)
		e.wantNot(!w.Post.Known || w.Post.Attr != after, "%s: post %+v, want %+v", what, w.Post, after)
	}
	a := e.attr(e.root)
	f, fa, w, err := e.Create(nil, e.root, "f", blockstore.Guarded, &blockstore.SetAttr{Mode: new(uint32(0o644))},
		[8]byte{})
	e.ok(err)
	check("create", a, w, e.root)
	e.wantNot(fa != e.attr(f), "attributes of create differ")
	a = e.attr(e.root)
	_, _, w, err = e.Create(nil, e.root, "f", blockstore.Guarded, nil, [8]byte{})
	e.want(err, blockstore.ErrExist)
	check("failed create", a, w, e.root)
	a = e.attr(e.root)
	d, _, w, err := e.Mkdir(nil, e.root, "d", &blockstore.SetAttr{Mode: new(uint32(0o755))})
	e.ok(err)
	check("mkdir", a, w, e.root)
	a = e.attr(f)
	_, _, w, err = e.WriteAt(nil, f, []byte("x"), 0, blockstore.Unstable)
	e.ok(err)
	check("write", a, w, f)
	ra, da := e.attr(e.root), e.attr(d)
	w, dw, err := e.Rename(nil, e.root, "f", d, "g")
	e.ok(err)
	check("rename from", ra, w, e.root)
	check("rename to", da, dw, d)
	da = e.attr(d)
	_, w, err = e.Link(nil, f, d, "h")
	e.ok(err)
	check("link", da, w, d)
	da = e.attr(d)
	w, err = e.Remove(nil, d, "h")
	e.ok(err)
	check("remove", da, w, d)
}

func testStat(e *env) {
	s, err := e.Stat(nil, e.root)
	e.ok(err)
	e.wantNot(s.TotalBytes == 0 || s.AvailBytes > s.TotalBytes || s.FreeBytes > s.TotalBytes || s.FreeFiles > s.TotalFiles,
		"%+v", s)
}

// testGetAttrNowait: GetAttrNowait returns what GetAttr returns, or ErrWouldBlock.
func testGetAttrNowait(e *env) {
	fs, ok := e.FS.(blockstore.NowaitAttr)
	if !ok {
		e.Skip("the store has no attributes that it need not wait for")
	}
	f := e.mkfile(nil, e.root, "f", 0o600, "0123456789")
	for _, h := range []blockstore.Handle{f, e.root} {
		want := e.attr(h)
		switch a, err := fs.GetAttrNowait(Other, h); {
		case errors.Is(err, blockstore.ErrWouldBlock):
		case err != nil || a != want:
			e.Errorf("%+v, %v, want %+v", a, err, want)
		}
	}
	_, err := fs.GetAttrNowait(nil, blockstore.Handle{})
	e.want(err, blockstore.ErrWouldBlock)
	e.ok(second(e.Remove(nil, e.root, "f")))
	_, err = fs.GetAttrNowait(nil, f)
	e.want(err, blockstore.ErrWouldBlock)
}

// testLookupNowait: it says what Lookup and GetAttr say, or nothing. It never tells more than Lookup.
func testLookupNowait(e *env) {
	fs, ok := e.FS.(blockstore.NowaitLookup)
	if !ok {
		e.Skip("the store has no names that it need not wait for")
	}
	f := e.mkfile(nil, e.root, "f", 0o600, "0123456789")
	shut := e.mkdir(nil, e.root, "shut", 0o700)
	e.mkfile(nil, shut, "inside", 0o666, "")
	for _, c := range []*blockstore.Cred{nil, Other} {
		for range 2 { // the first Lookup may let the second LookupNowait answer
			for _, dir := range []blockstore.Handle{e.root, shut, f} {
				for _, name := range []string{"f", "shut", "inside", "none", ".", ".."} {
					h, a, d, err := fs.LookupNowait(c, dir, name)
					wantH, wantA, wantErr := e.Lookup(c, dir, name)
					switch {
					case errors.Is(err, blockstore.ErrWouldBlock):
					case err != nil || wantErr != nil || h != wantH || a != wantA || d != e.attr(dir):
						e.Errorf("%q: %v %+v %+v %v, want %v %+v %v", name, h, a, d, err, wantH, wantA, wantErr)
					}
				}
			}
		}
	}
	e.ok(second(e.Remove(nil, e.root, "f")))
	_, _, _, err := fs.LookupNowait(nil, e.root, "f")
	e.want(err, blockstore.ErrWouldBlock)
	_, _, _, err = fs.LookupNowait(nil, blockstore.Handle{}, "f")
	e.want(err, blockstore.ErrWouldBlock)
}
