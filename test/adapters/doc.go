// Package adapters has examples that pass a directory of an NFS server to programs which work on
// file systems of other packages: afero and go-billy. They are short, because client.FS has the
// methods of os.Root.
package adapters

import (
	"errors"
	"io/fs"
	"os"
	"path"
	"strings"
)

// rel is a name as client.FS has it: relative to its directory.
func rel(name string) string {
	if name = strings.TrimPrefix(path.Clean("/"+name), "/"); name == "" {
		return "."
	}
	return name
}

// plain makes errors that os.IsNotExist and its like know: they see no wrapped errors, and both
// packages use them.
func plain(err error) error {
	for _, known := range []error{fs.ErrNotExist, fs.ErrExist, fs.ErrPermission} {
		if !errors.Is(err, known) {
			continue
		}
		var link *os.LinkError
		var p *fs.PathError
		switch {
		case errors.As(err, &link):
			return &os.LinkError{Op: link.Op, Old: link.Old, New: link.New, Err: known}
		case errors.As(err, &p):
			return &fs.PathError{Op: p.Op, Path: p.Path, Err: known}
		}
		return known
	}
	return err
}
