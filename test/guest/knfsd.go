package guest

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// knfsd is a case of the Go client on the kernel's server in one version of NFS.
func knfsd(name, version string) Case {
	return Case{
		Name: name, Script: script("knfsd"), Env: env("VERS", version), Timeout: 8 * time.Minute, MemMB: 1400,
		Host: func(ctx context.Context, r *Run) error { return kernelServes(ctx, r, version) },
	}
}

// kernelServes has rstorectl work on the kernel's server: trees and a large file in
// and out over RDMA and over TCP, and everything removed again.
func kernelServes(ctx context.Context, r *Run, version string) error {
	rstorectl := func(args ...string) error {
		return r.Command(ctx, "rstorectl", append([]string{args[0], "--nfs-version", version}, args[1:]...)...)
	}
	if err := r.Await(ctx, "serving"); err != nil {
		return err
	}
	src, back := r.path("src"), r.path("back")
	if err := kernelTree(src); err != nil {
		return err
	}
	dir := "/srv/e/"
	if version != "3" {
		dir = "/e/" // below the root of the pseudo file system
	}
	rdma, tcp := "nfs+rdma://"+guestAddr(0)+dir, "nfs+tcp://"+guestAddr(0)+dir
	steps := [][]string{
		{"put", "-r", filepath.Join(src, "tree"), rdma + "tree"},
		{"put", filepath.Join(src, "big"), rdma + "big"},
		{"ls", "-l", rdma + "tree/sub"},
		{"stat", rdma + "big"},
		{"df", rdma},
	}
	for _, s := range steps {
		if err := rstorectl(s...); err != nil {
			return fmt.Errorf("%v: %w", s, err)
		}
	}
	if err := r.Tell("stored"); err != nil {
		return err
	}
	if err := r.Await(ctx, "summed"); err != nil {
		return err
	}
	if err := sumsAgree(r, src); err != nil {
		return err
	}
	for _, from := range []string{rdma, tcp} {
		if err := errors.Join(os.RemoveAll(back), os.Mkdir(back, 0o755)); err != nil {
			return err
		}
		for _, s := range [][]string{
			{"get", "-r", from + "tree", filepath.Join(back, "tree")},
			{"get", from + "big", filepath.Join(back, "big")},
		} {
			if err := rstorectl(s...); err != nil {
				return err
			}
		}
		if err := sumsAgree(r, back); err != nil {
			return fmt.Errorf("what came back from %s: %w", from, err)
		}
	}
	for _, s := range [][]string{
		{"mkdir", rdma + "dir"},
		{"mv", rdma + "big", rdma + "dir/moved"},
		{"cp", "--verify", rdma + "dir/moved", rdma + "dir/copy"},
		{"put", filepath.Join(src, "sparse"), rdma + "dir/sparse"},
		{"cp", rdma + "dir/sparse", rdma + "dir/sparse-copy"},
		{"get", rdma + "dir/sparse-copy", filepath.Join(back, "sparse")},
		{"rm", "-r", rdma + "tree", rdma + "dir"},
	} {
		if err := rstorectl(s...); err != nil {
			return fmt.Errorf("%v: %w", s, err)
		}
	}
	// The guest's network is that of a namespace, so that it takes another process.
	self, err := os.Executable()
	if err != nil {
		return err
	}
	for _, url := range []string{rdma, tcp} {
		setting := manyEnv + "=" + url + " " + version
		if err := r.Command(ctx, "env", setting, self, "-test.run", "^TestConnectionsOfKernel$"); err != nil {
			return fmt.Errorf("several connections to %s: %w", url, err)
		}
	}
	if version != "3" {
		if err := rstorectl("put", filepath.Join(src, "tree/inline"), rdma+"locked"); err != nil {
			return err
		}
		err := r.Command(ctx, "env", locksEnv+"="+strings.Join([]string{rdma + "locked", tcp + "locked", version}, " "), self,
			"-test.run", "^TestLocksOfKernel$")
		if err == nil {
			err = rstorectl("rm", rdma+"locked")
		}
		if err != nil {
			return err
		}
	}
	want, err := sumOf(filepath.Join(src, "sparse"))
	if err != nil {
		return err
	}
	if got, err := sumOf(filepath.Join(back, "sparse")); err != nil || got != want {
		return fmt.Errorf("the sparse file is %s instead of %s, %w", got, want, err)
	}
	if err := rstorectl("cat", rdma+"nothing"); err == nil {
		return errors.New("a file that does not exist could be read")
	}
	return r.Tell("done")
}

// kernelTree makes what is copied.
func kernelTree(dir string) error {
	rnd := rand.NewChaCha8([32]byte{5})
	write := func(name string, n int, mode fs.FileMode) error {
		b := make([]byte, n)
		_, _ = rnd.Read(b)
		name = filepath.Join(dir, name)
		return errors.Join(os.MkdirAll(filepath.Dir(name), 0o755), os.WriteFile(name, b, mode))
	}
	errs := []error{
		write("big", 200<<20+7, 0o644), write("tree/sub/one", 1, 0o640), write("tree/empty", 0, 0o644),
		write("tree/sub/deeper/odd", 1<<20+1, 0o600), write("tree/inline", 3000, 0o644),
		write("tree/"+strings.Repeat("n", 255), 4097, 0o644),
		os.Symlink("sub/one", filepath.Join(dir, "tree/link")),
	}
	if f, err := os.Create(filepath.Join(dir, "sparse")); err != nil {
		errs = append(errs, err)
	} else {
		_, e := f.WriteAt([]byte("behind a hole"), 40<<20)
		errs = append(errs, e, f.Truncate(64<<20+1), f.Close())
	}
	for i := range 300 {
		errs = append(errs, write(fmt.Sprintf("tree/many/%03d", i), i, 0o644))
	}
	return errors.Join(errs...)
}

// sumsAgree compares a directory's content with the sums that the guest has taken
// of its own, in the format of sha256sum.
func sumsAgree(r *Run, dir string) error {
	var names []string
	err := filepath.WalkDir(filepath.Join(dir, "tree"), func(p string, e fs.DirEntry, err error) error {
		if err == nil && e.Type().IsRegular() {
			rel, _ := filepath.Rel(dir, p)
			names = append(names, rel)
		}
		return err
	})
	if err != nil {
		return err
	}
	slices.Sort(names)
	all := sha256.New()
	for _, n := range names {
		sum, err := sumOf(filepath.Join(dir, n))
		if err != nil {
			return err
		}
		fmt.Fprintf(all, "%s  %s\n", sum, n)
	}
	big, err := sumOf(filepath.Join(dir, "big"))
	if err != nil {
		return err
	}
	for name, got := range map[string]string{"sum.tree": hex.EncodeToString(all.Sum(nil)), "sum.big": big} {
		want, err := os.ReadFile(filepath.Join(r.Share, name))
		if err != nil {
			return err
		}
		if got != strings.TrimSpace(string(want)) {
			return fmt.Errorf("%s is %s, in the guest it is %s", name, got, want)
		}
	}
	return nil
}

func sumOf(name string) (string, error) {
	f, err := os.Open(name)
	if err != nil {
		return "", err
	}
	defer func() { _ = f.Close() }()
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return "", err
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}
