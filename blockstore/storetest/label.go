package storetest

import (
	"bytes"
	"errors"

	"github.com/rstored/rstored/blockstore"
)

// testLabels: labels are set by owners, read by everybody, and stay as they are.
func testLabels(e *env) {
	s, ok := e.FS.(blockstore.Labels)
	if !ok || !e.Limits().Labels {
		e.Skip("the store keeps no labels")
	}
	label := []byte("system_u:object_r:tmp_t:s0\x00")
	objects := map[string]blockstore.Handle{"file": e.mkfile(nil, e.root, "file", 0o600, "x"), "root": e.root}
	for name, h := range objects {
		before, err := s.GetLabel(nil, h)
		if err != nil {
			e.Fatal(err)
		}
		_, err = s.SetLabel(nil, h, label)
		if before == nil && errors.Is(err, blockstore.ErrPerm) {
			e.Skip("the kernel lets nobody set labels here")
		}
		if err != nil {
			e.Fatalf("%s: %v", name, err)
		}
		if got, err := s.GetLabel(Other, h); err != nil || !bytes.Equal(got, label) {
			e.Errorf("%s: %q, %v", name, got, err)
		}
		e.want(second(s.SetLabel(Other, h, label)), blockstore.ErrPerm)
		e.want(second(s.SetLabel(nil, h, nil)), blockstore.ErrInval)
		e.want(second(s.SetLabel(nil, h, make([]byte, blockstore.LabelMax+1))), blockstore.ErrInval)
	}
	if x, ok := e.FS.(blockstore.Xattrs); ok && e.Limits().Xattrs {
		if names, err := x.ListXattrs(nil, objects["file"]); err != nil || len(names) > 0 {
			e.Errorf("attributes of users: %q, %v", names, err)
		}
	}
}
