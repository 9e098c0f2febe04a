package storetest

import (
	"slices"
	"strings"

	"github.com/rstored/rstored/blockstore"
)

func testXattrs(e *env) {
	x, ok := e.FS.(blockstore.Xattrs)
	if !ok || !e.Limits().Xattrs {
		e.Skip("no extended attributes here")
	}
	for _, h := range []blockstore.Handle{e.mkfile(nil, e.root, "file", 0o644, ""), e.mkdir(nil, e.root, "dir", 0o755)} {
		_, err := x.GetXattr(nil, h, "a")
		e.want(err, blockstore.ErrNoXattr)
		_, err = x.SetXattr(nil, h, "a", []byte("1"), blockstore.XattrReplace)
		e.want(err, blockstore.ErrNoXattr)
		w, err := x.SetXattr(nil, h, "a", []byte("1"), blockstore.XattrCreate)
		e.ok(err)
		e.wantNot(w.Pre == nil || w.Post == nil || w.Post.Ctime.Before(w.Pre.Ctime), "consistency data %+v", w)
		_, err = x.SetXattr(nil, h, "a", []byte("2"), blockstore.XattrCreate)
		e.want(err, blockstore.ErrExist)
		_, err = x.SetXattr(nil, h, "a", []byte("22"), blockstore.XattrReplace)
		e.ok(err)
		_, err = x.SetXattr(nil, h, "b.c", nil, blockstore.XattrEither)
		e.ok(err)
		v, err := x.GetXattr(nil, h, "a")
		e.ok(err)
		e.wantNot(string(v) != "22", "value %q", v)
		v, err = x.GetXattr(nil, h, "b.c")
		e.ok(err)
		e.wantNot(len(v) != 0, "value %q", v)
		names, err := x.ListXattrs(nil, h)
		e.ok(err)
		e.wantNot(!slices.Equal(names, []string{"a", "b.c"}), "names %q", names)
		for _, name := range []string{"", strings.Repeat("x", blockstore.XattrNameMax+1)} {
			_, err = x.SetXattr(nil, h, name, nil, blockstore.XattrEither)
			e.want(err, blockstore.ErrInval)
		}
		_, err = x.SetXattr(nil, h, "big", make([]byte, blockstore.XattrMax+1), blockstore.XattrEither)
		e.want(err, blockstore.ErrXattrSize)
		if e.opts.Root {
			_, err = x.SetXattr(Other, h, "a", nil, blockstore.XattrEither)
			e.want(err, blockstore.ErrAccess)
			_, err = x.RemoveXattr(Other, h, "a")
			e.want(err, blockstore.ErrAccess)
			_, err = x.GetXattr(Other, h, "a")
			e.ok(err)
		}
		_, err = x.RemoveXattr(nil, h, "a")
		e.ok(err)
		_, err = x.RemoveXattr(nil, h, "a")
		e.want(err, blockstore.ErrNoXattr)
	}
	l, _, _, err := e.Symlink(nil, e.root, "link", "target", nil)
	e.ok(err)
	_, err = x.SetXattr(nil, l, "a", nil, blockstore.XattrEither)
	e.want(err, blockstore.ErrPerm)
}
