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

// Open opens the database in the file path. It makes the file if there is none. Open reads the
// whole database once. If the file is damaged, Open renames it to path with ".damaged" at its end,
// replaces an older file of that name, and opens an empty database. damage then says what was
// wrong. err is an error of the system or of bbolt.Open.
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

// inspect reads all of a database. damage says what is wrong with the database, err why inspect
// could not read it.
func inspect(path string, opts *bbolt.Options) (damage, err error) {
	fi, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) || err == nil && fi.Size() == 0 {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	// A read of a mapped page behind the end of the file is a fault. SetPanicOnFault makes a panic
	// of it. bbolt itself panics at much of what it does not expect in the file.
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if p := recover(); p != nil {
			damage, err = fmt.Errorf("%s is damaged: %v", path, p), nil
		}
	}()
	probe := *opts
	probe.ReadOnly = true
	db, err := bbolt.Open(path, 0o600, &probe)
	var failed syscall.Errno // an error of a system call says nothing about the contents
	switch {
	case errors.Is(err, bolterrors.ErrTimeout), errors.As(err, &failed):
		return nil, err
	case err != nil:
		return fmt.Errorf("%s is damaged: %w", path, err), nil
	}
	// After a fault the transaction stays open, and db is not closed: Close would wait for the
	// transaction.
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
