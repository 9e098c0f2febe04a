package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rstored/rstored/test/bench/compare"
)

// What is copied as a whole, by the programs that users would take: the tree has so many
// directories, and files of one size in each.
const (
	treeDirs = 128
	treeSize = 4096
	// togetherLibnfs is how many nfs-cp run at once: it copies one file.
	togetherLibnfs = 16
)

// copies is an experiment that copies what, "large" or "tree", to a server or back to this host: by
// rstorectl, or by libnfs's nfs-cp, a process for each file, whose directories are there before.
// The other end of each copy is in memory too. What arrives is compared with what was sent.
func copies(name, what string, out bool) experiment {
	return experiment{name: name, run: func(ctx context.Context, m *measurer, v compare.Variant) (s compare.Sample,
		err error,
	) {
		server, carrier, client := v.Split()
		srv := m.get(ctx, server)
		if srv.err != nil {
			return s, srv.err
		}
		from, err := m.source(what)
		if err != nil {
			return s, err
		}
		// The names are new each time: nfs-ganesha caches names that were removed behind its back.
		m.copied++
		name := fmt.Sprintf("copied-%d", m.copied)
		served, back := filepath.Join(m.export(server, "memory"), name), filepath.Join(m.dir, "memory", "back")
		defer func() { err = errors.Join(err, os.RemoveAll(served), os.RemoveAll(back)) }()
		to := served
		if out {
			to = back
			if err := os.CopyFS(served, os.DirFS(from)); err != nil {
				return s, err
			}
		}
		ctx, cancel := context.WithTimeout(ctx, 10*patience)
		defer cancel()
		begin := time.Now()
		if client == "libnfs" {
			begin, err = m.copyByLibnfs(ctx, m.libnfsURL(server, "memory"), served, from, back, out)
		} else {
			url := m.url(server, carrier, "memory") + "/" + name
			args := []string{m.bin("rstorectl"), "--quiet", "put", "-r", from, url}
			if out {
				args = []string{m.bin("rstorectl"), "--quiet", "get", "-r", url, back}
			}
			err = said(m.command(ctx, args...))
		}
		took := time.Since(begin).Seconds()
		if err != nil {
			return s, err
		}
		files, size, err := same(from, to)
		if err != nil {
			return s, err
		}
		return compare.Sample{Rate: float64(size) / took, Ops: float64(files) / took}, nil
	}}
}

// said runs a command, and has what it says in its error.
func said(cmd *exec.Cmd) error {
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%w: %s", err, compare.FirstLine(out))
	}
	return nil
}

// source makes what is copied, once.
func (m *measurer) source(what string) (string, error) {
	dir := filepath.Join(m.dir, "memory", "source", what)
	if _, err := os.Stat(dir); err == nil {
		return dir, nil
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	if what == "large" {
		return dir, os.WriteFile(filepath.Join(dir, "file"), pattern(fileSize, 1), 0o644)
	}
	for i := range m.files {
		sub := filepath.Join(dir, fmt.Sprintf("dir-%03d", i%treeDirs))
		if err := os.MkdirAll(sub, 0o755); err != nil {
			return "", err
		}
		if err := os.WriteFile(filepath.Join(sub, "file-"+strconv.Itoa(i)), pattern(treeSize, i), 0o644); err != nil {
			return "", err
		}
	}
	return dir, nil
}

// pattern is content that differs from file to file.
func pattern(n, seed int) []byte {
	p := make([]byte, n)
	for i := range p {
		p[i] = byte(i*i>>3 + i*seed + seed>>8)
	}
	return p
}

// copyByLibnfs runs nfs-cp for each file, and returns when the first began.
func (m *measurer) copyByLibnfs(ctx context.Context, url, served, from, back string, out bool) (begin time.Time,
	err error,
) {
	tool, err := exec.LookPath("nfs-cp")
	if err != nil {
		return begin, errors.New("libnfs-utils is not installed")
	}
	base, query, _ := bytes.Cut([]byte(url), []byte("?"))
	dirs := served
	if out {
		dirs = back
	}
	var files []string
	err = filepath.WalkDir(from, func(name string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name, err = filepath.Rel(from, name)
		if e.IsDir() {
			return errors.Join(err, os.MkdirAll(filepath.Join(dirs, name), 0o755))
		}
		files = append(files, name)
		return err
	})
	if err != nil {
		return begin, err
	}
	begin = time.Now()
	var next atomic.Int64
	errs := make([]error, togetherLibnfs)
	var wg sync.WaitGroup
	for w := range errs {
		wg.Go(func() {
			for i := next.Add(1) - 1; int(i) < len(files) && errs[w] == nil; i = next.Add(1) - 1 {
				local := filepath.Join(from, files[i])
				remote := fmt.Sprintf("%s/%s/%s?%s", base, filepath.Base(served), files[i], query)
				if out {
					local, remote = remote, filepath.Join(back, files[i])
				}
				errs[w] = said(exec.CommandContext(ctx, tool, local, remote))
			}
		})
	}
	wg.Wait()
	return begin, errors.Join(errs...)
}

// same compares all files of two trees, and counts those and their bytes.
func same(want, got string) (files int, size int64, err error) {
	err = filepath.WalkDir(want, func(name string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		a, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(want, name)
		if err != nil {
			return err
		}
		b, err := os.ReadFile(filepath.Join(got, rel))
		if err != nil {
			return err
		}
		if !bytes.Equal(a, b) {
			return fmt.Errorf("%s was copied wrongly", rel)
		}
		files++
		size += int64(len(b))
		return nil
	})
	return files, size, err
}
