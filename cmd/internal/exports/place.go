package exports

import (
	"path"
	"slices"
	"strings"

	"github.com/rstored/rstored/blockstore"
	"github.com/rstored/rstored/cmd/internal/config"
	"github.com/rstored/rstored/cmd/internal/desired"
	"github.com/rstored/rstored/nfs"
)

// place is the position of an export inside another one. The other one is the nearest export around
// it on the host, if clients see both in the same position too.
func place(s *Export, list []*Export) *nfs.Place {
	if s.Type != config.TypePosix {
		return nil
	}
	var over *Export
	for _, o := range list {
		if _, ok := desired.Within(o.Path, s.Path); ok && o.store != nil && o.Type == config.TypePosix &&
			(over == nil || len(o.Path) > len(over.Path)) {
			over = o
		}
	}
	if over == nil {
		return nil
	}
	rest, _ := desired.Within(over.Path, s.Path)
	same := slices.ContainsFunc(append([]string{over.Pseudo}, over.Aliases...), func(n string) bool {
		at := path.Join(n, rest)
		return at == s.Pseudo || slices.Contains(s.Aliases, at)
	})
	if !same {
		return nil
	}
	h, err := over.store.Root()
	if dir := path.Dir(rest); err == nil && dir != "." {
		for name := range strings.SplitSeq(dir, "/") {
			if h, _, err = over.store.Lookup(nil, h, name); err != nil {
				break
			}
		}
	}
	if err != nil || h == (blockstore.Handle{}) {
		return nil // something lies between them that is no directory of the export
	}
	return &nfs.Place{Export: over.ID, Dir: h, Name: path.Base(rest)}
}
