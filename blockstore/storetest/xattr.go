package storetest

import (
	"slices"
	"strings"

	"github.com/rstored/rstored/blockstore"
)

func testXattrs(e *env) {
	x, ok := e.FS.(blockstore.Xattrs)
	f := e.mkfile(nil, e.root, "f", 0o640, "data")
	if !e.Limits().Xattrs {
		if ok {
			e.want(second(x.SetXattr(nil, f, "a", nil, blockstore.XattrEither)), blockstore.ErrNotSupp)
		}
		e.Skip("the store keeps no extended attributes")
	}
	e.wantNot(!ok, "the store says that it has extended attributes")
	list := func(h blockstore.Handle) []string {
		e.Helper()
		names, err := x.ListXattrs(nil, h)
		e.ok(err)
		slices.Sort(names)
		return names
	}
	set := func(h blockstore.Handle, name, value string, mode blockstore.SetXattrMode) error {
		before := e.attr(h)
		w, err := x.SetXattr(nil, h, name, []byte(value), mode)
		if err == nil {
			e.wantNot(!w.Pre.Known || !w.Post.Known || w.Pre.Attr != before || w.Post.Attr != e.attr(h),
				"consistency data %+v, was %+v", w, before)
			e.wantNot(w.Post.Mtime != before.Mtime, "mtime changed")
		}
		return err
	}
	e.wantNot(len(list(f)) != 0, "a new file has %q", list(f))
	e.ok(set(f, "one", "1", blockstore.XattrCreate))
	e.ok(set(f, "two/2", "", blockstore.XattrEither))
	e.want(set(f, "one", "x", blockstore.XattrCreate), blockstore.ErrExist)
	e.want(set(f, "three", "x", blockstore.XattrReplace), blockstore.ErrNoXattr)
	e.ok(set(f, "one", "more\x00bytes", blockstore.XattrReplace))
	for name, want := range map[string]string{"one": "more\x00bytes", "two/2": ""} {
		v, err := x.GetXattr(nil, f, name)
		e.wantNot(err != nil || string(v) != want, "%s is %q, %v", name, v, err)
	}
	e.wantNot(!slices.Equal(list(f), []string{"one", "two/2"}), "listed %q", list(f))
	e.wantNot(e.get(nil, f) != "data", "the content changed")
	e.want(second(x.GetXattr(nil, f, "three")), blockstore.ErrNoXattr)
	e.want(second(x.RemoveXattr(nil, f, "three")), blockstore.ErrNoXattr)
	e.ok(second(x.RemoveXattr(nil, f, "one")))
	e.wantNot(!slices.Equal(list(f), []string{"two/2"}), "listed %q", list(f))
	e.want(set(f, strings.Repeat("n", blockstore.XattrNameMax+1), "x", blockstore.XattrEither), blockstore.ErrNameTooLong)
	e.ok(set(f, strings.Repeat("n", blockstore.XattrNameMax), "x", blockstore.XattrEither))
	e.want(set(f, "big", strings.Repeat("v", blockstore.XattrValueMax+1), blockstore.XattrEither),
		blockstore.ErrXattrTooBig)

	d := e.mkdir(nil, e.root, "d", 0o755)
	e.ok(set(d, "of a directory", "v", blockstore.XattrEither))
	e.wantNot(!slices.Equal(list(d), []string{"of a directory"}), "listed %q", list(d))
	l, _, _, err := e.Symlink(nil, e.root, "l", "f", nil)
	e.ok(err)
	e.want(second(x.SetXattr(nil, l, "a", nil, blockstore.XattrEither)), blockstore.ErrPerm)
	e.want(second(x.GetXattr(nil, l, "two/2")), blockstore.ErrNoXattr)
	e.wantNot(len(list(l)) != 0, "a link has %q", list(l))

	if e.opts.Root {
		e.want(second(x.GetXattr(Other, f, "two/2")), blockstore.ErrAccess)
		e.want(second(x.ListXattrs(Other, f)), blockstore.ErrAccess)
		e.chmod(nil, f, 0o644)
		e.ok(second(x.GetXattr(Other, f, "two/2")))
		e.want(second(x.SetXattr(Other, f, "two/2", nil, blockstore.XattrEither)), blockstore.ErrAccess)
		e.want(second(x.RemoveXattr(Other, f, "two/2")), blockstore.ErrAccess)
	}
	e.ok(second(e.Remove(nil, e.root, "f")))
	e.want(second(x.GetXattr(nil, f, "two/2")), blockstore.ErrStale)
}
