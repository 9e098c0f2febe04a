package lease

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// A lease file is recordLen to recordMax bytes: a Record as JSON, padded with spaces.
const (
	prefix    = "lease."
	recordLen = 256
	recordMax = 512
)

// Peek returns the newest record of a directory, for display. A caller must not claim the lease
// because of it.
func Peek(dir string) (Record, error) { return newest(dir) }

func name(dir string, epoch uint64) string {
	return filepath.Join(dir, prefix+strconv.FormatUint(epoch, 10))
}

// newest reads the file of the last epoch. The error is fs.ErrNotExist if there never was one.
func newest(dir string) (Record, error) {
	// The file is gone if two epochs have passed since the directory was read.
	for {
		last, err := lastEpoch(dir)
		if err != nil {
			return Record{}, err
		}
		if last == 0 {
			return Record{}, fs.ErrNotExist
		}
		if r, err := read(dir, last); !errors.Is(err, fs.ErrNotExist) {
			return r, err
		}
	}
}

// lastEpoch is the epoch of the newest lease file, 0 if there is none.
func lastEpoch(dir string) (last uint64, err error) {
	entries, err := os.ReadDir(dir)
	for _, e := range entries {
		if n, ok := strings.CutPrefix(e.Name(), prefix); ok {
			if epoch, err := strconv.ParseUint(n, 10, 64); err == nil {
				last = max(last, epoch)
			}
		}
	}
	return last, err
}

// read reads a lease file. It tries again if the file is damaged: the holder may be writing it.
func read(dir string, epoch uint64) (r Record, err error) {
	for range 3 {
		if r, err = readOnce(dir, epoch); err == nil || errors.Is(err, fs.ErrNotExist) {
			break
		}
		time.Sleep(time.Millisecond)
	}
	return r, err
}

func readOnce(dir string, epoch uint64) (r Record, err error) {
	f, err := os.Open(name(dir, epoch))
	if err != nil {
		return r, err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, recordMax))
	if err != nil {
		return r, fmt.Errorf("%s: %w", f.Name(), err)
	}
	if err := json.Unmarshal(b, &r); err != nil {
		return r, fmt.Errorf("%s: %w", f.Name(), err)
	}
	if r.Epoch != epoch {
		return r, fmt.Errorf("%s is of epoch %d", f.Name(), r.Epoch)
	}
	return r, nil
}

// write puts a record on the storage.
func write(f *os.File, r Record) error {
	b, err := json.Marshal(r)
	if err != nil {
		return err
	}
	if len(b) > recordMax {
		return fmt.Errorf("the name of the node has %d bytes, which is too long", len(r.Node))
	}
	if _, err := f.WriteAt([]byte(fmt.Sprintf("%-*s", recordLen, b)), 0); err != nil {
		return err
	}
	return unix.Fdatasync(int(f.Fd()))
}

// rewrite puts a record into the file of its epoch, whose holder has ended. It does nothing if the
// file is gone: others have claimed the lease since.
func rewrite(dir string, r Record) error {
	f, err := os.OpenFile(name(dir, r.Epoch), os.O_WRONLY, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	return errors.Join(write(f, r), f.Close())
}

// claim makes the file of a new epoch, which is complete from the first moment. The error is
// fs.ErrExist if another node has made the file.
func claim(dir string, r Record) (*os.File, error) {
	f, err := os.CreateTemp(dir, ".lease.*")
	if err != nil {
		return nil, err
	}
	err = write(f, r)
	if err == nil {
		err = os.Link(f.Name(), name(dir, r.Epoch))
	}
	if err = errors.Join(err, os.Remove(f.Name())); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	if err := syncDir(dir); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	// A claimant that was stopped before the link may come late. Files of old epochs are removed,
	// so the name can be free although others have claimed since.
	if last, err := lastEpoch(dir); err != nil || last != r.Epoch {
		if err == nil {
			err = errors.Join(fs.ErrExist, os.Remove(name(dir, r.Epoch)))
		}
		return nil, errors.Join(err, f.Close())
	}
	// The file of the epoch before stays: its holder may be about to write to it.
	for old := r.Epoch - 1; old > 1 && os.Remove(name(dir, old-1)) == nil; {
		old--
	}
	return f, nil
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
