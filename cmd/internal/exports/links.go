package exports

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/rstored/rstored/cmd/internal/config"
	"github.com/rstored/rstored/cmd/internal/control"
	"github.com/rstored/rstored/cmd/internal/desired"
)

// linksMax is how many symbolic links a path may lead through, as in the kernel.
const linksMax = 40

// resolveAmong returns the directory that the path of an export leads to. A symbolic link in the
// directory of another export is an error: a client of that export could have made the link, and so
// have any directory of the host exported.
func resolveAmong(e *config.Export, list []control.Export) (string, error) {
	var around []*config.Export
	var dirs []string
	for i := range list {
		o := &list[i].Export
		if o.Type != config.TypePosix || o.Path == e.Path {
			continue
		}
		if dir, err := filepath.EvalSymlinks(o.Path); err == nil {
			around, dirs = append(around, o), append(dirs, dir)
		}
	}
	parts := func(p string) []string {
		return slices.DeleteFunc(strings.Split(p, "/"), func(s string) bool { return s == "" || s == "." })
	}
	at, rest := "/", parts(e.Path)
	for links := 0; len(rest) > 0; {
		name := rest[0]
		rest = rest[1:]
		if name == ".." {
			at = filepath.Dir(at)
			continue
		}
		p := filepath.Join(at, name)
		st, err := os.Lstat(p)
		if err != nil {
			return "", err
		}
		if st.Mode().Type() != fs.ModeSymlink {
			at = p
			continue
		}
		if links++; links > linksMax {
			return "", &fs.PathError{Op: "open", Path: e.Path, Err: syscall.ELOOP}
		}
		for i, dir := range dirs {
			if _, in := desired.Within(dir, p); in {
				return "", fmt.Errorf("%s is a symbolic link in export %s, whose clients could have made it; if "+
					"it is meant, export the directory that it leads to by its own path", p, around[i].Pseudo)
			}
		}
		to, err := os.Readlink(p)
		if err != nil {
			return "", err
		}
		if filepath.IsAbs(to) {
			at = "/"
		}
		rest = append(parts(to), rest...)
	}
	return at, nil
}

// located is a store that can name the directory that it has opened.
type located interface{ Dir() string }

// checkLinks returns an error if clients of another export can have chosen the directory that a
// store has opened.
func checkLinks(e *config.Export, store any, list []control.Export) error {
	s, ok := store.(located)
	if !ok {
		return nil
	}
	dir, err := resolveAmong(e, list)
	if err != nil {
		return err
	}
	if dir != s.Dir() { // it has changed meanwhile
		return fmt.Errorf("%s led to %s and leads to %s now", e.Path, s.Dir(), dir)
	}
	return nil
}
