package main

import (
	"bufio"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
)

// content describes a tree: what a file is, by its path.
type content map[string]string

// scan reads a tree: the SHA-256 of every file, the target of every symbolic
// link, and that a directory is one. bytes is the size of all files.
func scan(ctx context.Context, root string) (c content, bytes int64, err error) {
	c = make(content)
	buf := make([]byte, 1<<20)
	err = filepath.WalkDir(root, func(name string, d fs.DirEntry, err error) error {
		if err == nil {
			err = ctx.Err()
		}
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(root, name)
		if err != nil {
			return err
		}
		switch {
		case d.IsDir():
			c[rel] = "directory"
		case d.Type() == fs.ModeSymlink:
			to, err := os.Readlink(name)
			if err != nil {
				return err
			}
			c[rel] = "link to " + to
		case d.Type().IsRegular():
			sum, n, err := hash(name, buf)
			if err != nil {
				return err
			}
			c[rel] = sum
			bytes += n
		}
		return nil
	})
	return c, bytes, err
}

func hash(name string, buf []byte) (sum string, n int64, err error) {
	f, err := os.Open(name)
	if err != nil {
		return "", 0, err
	}
	defer func() { _ = f.Close() }()
	h := sha256.New()
	// The wrapper hides ReadFrom and WriteTo, so that buf is used.
	n, err = io.CopyBuffer(struct{ io.Writer }{h}, struct{ io.Reader }{f}, buf)
	return hex.EncodeToString(h.Sum(nil)), n, err
}

// same compares a copy with what it should be and names the first difference.
func same(want, got content) error {
	for name, w := range want {
		if g, ok := got[name]; !ok {
			return fmt.Errorf("%s is missing", name)
		} else if g != w {
			return fmt.Errorf("%s differs: %s instead of %s", name, g, w)
		}
	}
	for name := range got {
		if _, ok := want[name]; !ok {
			return fmt.Errorf("%s should not exist", name)
		}
	}
	return nil
}

// random writes a file of random bytes.
func random(name string, size int64) error {
	f, err := os.Create(name)
	if err != nil {
		return err
	}
	w := bufio.NewWriterSize(f, 1<<20)
	if _, err := io.CopyN(w, rand.Reader, size); err != nil {
		_ = f.Close()
		return err
	}
	if err := w.Flush(); err != nil {
		_ = f.Close()
		return err
	}
	return f.Close()
}
