package boltfile

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"runtime/debug"
	"syscall"

	"go.etcd.io/bbolt"
	bolterrors "go.etcd.io/bbolt/errors"
)

// suffix is added to the name of a file that is set aside.
const suffix = ".damaged"

// Open opens the database in the file path, which is made if it is not there. A damaged file
// is renamed to path with ".damaged" at its end, in the place of an older one, and an empty
// database is opened instead; damage then says what was wrong, and what was in it is lost. All of
// the database is read once. The errors are those of bbolt.Open.
func Open(path string, opts *bbolt.Options) (db *bbolt.DB, damage, err error) {
	damage, err = inspect(path, opts)
	if err != nil {
		return nil, nil, err
	}
	if damage != nil {
		if err := os.Rename(path, path+suffix); err != nil {
			return nil, nil, fmt.Errorf("%w, and it could not be set aside: %w", damage, err)
		}
	}
	db, err = bbolt.Open(path, 0o600, opts)
	return db, damage, err
}

// inspect reads all of a database. An error that is not damage says that it could not.
func inspect(path string, opts *bbolt.Options) (damage, err error) {
	fi, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) || err == nil && fi.Size() == 0 {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	// What is mapped and not in the file is a fault, which is a panic here; so is much of
	// what bbolt finds where it should not be.
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if p := recover(); p != nil {
			damage, err = fmt.Errorf("%s is damaged: %v", path, p), nil
		}
	}()
	probe := *opts
	probe.ReadOnly = true
	db, err := bbolt.Open(path, 0o600, &probe)
	var failed syscall.Errno // what the system says is not about what stands in the file
	switch {
	case errors.Is(err, bolterrors.ErrTimeout), errors.As(err, &failed):
		return nil, err
	case err != nil:
		return fmt.Errorf("%s is damaged: %w", path, err), nil
	}
	// A fault inside the transaction leaves that open; Close would wait for it.
	tx, err := db.Begin(false)
	if err != nil {
		return nil, errors.Join(err, db.Close())
	}
	if has := fi.Size(); tx.Size() > has {
		damage = fmt.Errorf("%s is damaged: it has %d bytes of %d", path, has, tx.Size())
	} else if err := tx.ForEach(func(_ []byte, b *bbolt.Bucket) error { return walk(b) }); err != nil {
		damage = fmt.Errorf("%s is damaged: %w", path, err)
	}
	return damage, errors.Join(tx.Rollback(), db.Close())
}

func walk(b *bbolt.Bucket) error {
	return b.ForEach(func(k, v []byte) error {
		if v == nil {
			if inner := b.Bucket(k); inner != nil {
				return walk(inner)
			}
		}
		return nil
	})
}
