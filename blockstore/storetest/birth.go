package storetest

import (
	"time"

	"github.com/rstored/rstored/blockstore"
)

// testBirths: the time of creation does not change, and objects made later are not older.
func testBirths(e *env) {
	s, ok := e.FS.(blockstore.Births)
	if !ok || !e.Limits().Births {
		e.Skip("the store does not know when objects were made")
	}
	birth := func(h blockstore.Handle) time.Time {
		e.Helper()
		at, err := s.Birth(nil, h)
		if err != nil {
			e.Fatal(err)
		}
		return at
	}
	before := time.Now().Add(-time.Second) // clocks of file systems are coarse
	first := e.mkfile(nil, e.root, "first", 0o644, "x")
	at := birth(first)
	if at.Before(before) || at.After(time.Now()) {
		e.Errorf("made at %v, after %v", at, before)
	}
	old := time.Unix(1000, 0)
	if _, err := e.SetAttr(nil, first, &blockstore.SetAttr{
		AtimeHow: blockstore.TimeClient, Atime: old, MtimeHow: blockstore.TimeClient, Mtime: old,
	}, nil); err != nil {
		e.Fatal(err)
	}
	if again := birth(first); !again.Equal(at) {
		e.Errorf("made at %v and at %v", at, again)
	}
	if second := birth(e.mkfile(nil, e.root, "second", 0o644, "x")); second.Before(at) {
		e.Errorf("the second file was made at %v, the first at %v", second, at)
	}
	if _, err := s.Birth(nil, blockstore.Handle{Len: 3}); err == nil {
		e.Error("a bad handle has a time")
	}
}
