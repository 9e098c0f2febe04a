package guest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// tableFile is the export table of a run.
func tableFile(r *Run) string { return r.Exports + ".table" }

// writeExports writes the table with options for its first export.
func writeExports(r *Run, options string) error {
	text := fmt.Sprintf(`# Exports of a case.
%[1]s/top -insecure,no_root_squash *(crossmnt,%[2]s)
"%[1]s/top/sub/own" *(insecure,fsid=4711) \
	192.0.2.0/255.255.255.0(rw,insecure)
%[1]s/fast *(rw,insecure,no_root_squash,transport=rdma) # not by TCP
`, r.Exports, options)
	return os.WriteFile(tableFile(r), []byte(text), 0o644)
}

// tableFS makes the directories of the table, with a file system mounted in one.
func tableFS(r *Run) (func() error, error) {
	for _, d := range []string{"plain", "top/a/mnt", "top/sub/own", "fast"} {
		if err := os.MkdirAll(filepath.Join(r.Exports, d), 0o755); err != nil {
			return nil, err
		}
	}
	mnt := filepath.Join(r.Exports, "top/a/mnt")
	if err := unix.Mount("tmpfs", mnt, "tmpfs", 0, "size=4m"); err != nil {
		return nil, err
	}
	undo := func() error { return errors.Join(unix.Unmount(mnt, unix.MNT_DETACH), os.Remove(tableFile(r))) }
	err := errors.Join(
		os.WriteFile(filepath.Join(mnt, "inside"), []byte("on another file system\n"), 0o644),
		os.WriteFile(filepath.Join(r.Exports, "top/sub/own/file"), []byte("made on the host\n"), 0o644),
		os.WriteFile(filepath.Join(r.Share, "top"), []byte(r.Exports+"\n"), 0o644),
		writeExports(r, "rw"))
	if err != nil {
		return nil, errors.Join(err, undo())
	}
	return undo, nil
}

// tableChanges changes the table under a guest's mount.
func tableChanges(ctx context.Context, r *Run) error {
	for _, s := range []struct{ when, options, then string }{
		{"mounted", "ro", "readonly"},
		{"refused", "rw", "writable"},
		{"wrote", "rw,transport=tcp", "gone"},
		{"denied", "rw", "back"},
	} {
		if err := r.Await(ctx, s.when); err != nil {
			return err
		}
		if s.when == "wrote" { // one that is wrong first: nothing changes
			if err := writeExports(r, "rw,nonsense"); err != nil {
				return err
			}
			if r.Ctl("reload") == nil {
				return errors.New("a bad export table was taken")
			}
		}
		if err := writeExports(r, s.options); err != nil {
			return err
		}
		if err := r.Ctl("reload"); err != nil {
			return err
		}
		if err := r.Tell(s.then); err != nil {
			return err
		}
	}
	return nil
}
