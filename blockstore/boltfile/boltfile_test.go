package boltfile

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
	"time"

	"go.etcd.io/bbolt"
	bolterrors "go.etcd.io/bbolt/errors"
)

var options = bbolt.Options{
	Timeout: 50 * time.Millisecond, NoSync: true, NoFreelistSync: true,
	FreelistType: bbolt.FreelistMapType,
}

// filled is a database with n keys.
func filled(t *testing.T, n int) []byte {
	path := filepath.Join(t.TempDir(), "db")
	db, damage, err := Open(path, &options)
	if err != nil || damage != nil {
		t.Fatal(damage, err)
	}
	for at := 0; at < n; at += 500 { // so that pages are split and freed
		err := db.Update(func(tx *bbolt.Tx) error {
			b, err := tx.CreateBucketIfNotExists([]byte("bucket"))
			for i := at; i < min(n, at+500) && err == nil; i++ {
				err = b.Put(fmt.Appendf(nil, "key %d", i), bytes.Repeat([]byte{byte(i)}, i%200))
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// use does what its owner would.
func use(t *testing.T, db *bbolt.DB) (keys int) {
	t.Helper()
	err := db.Update(func(tx *bbolt.Tx) error {
		b, err := tx.CreateBucketIfNotExists([]byte("bucket"))
		if err != nil {
			return err
		}
		return errors.Join(b.ForEach(func(_, _ []byte) error { keys++; return nil }), b.Put([]byte("new"), []byte("value")))
	})
	if err = errors.Join(err, db.Close()); err != nil {
		t.Error(err)
	}
	return keys
}

// TestTruncated: a file that was cut off anywhere opens, with all that was in it or with
// nothing, and in that case says so and is still there under another name.
func TestTruncated(t *testing.T) {
	for _, n := range []int{0, 10, 3000} {
		whole := filled(t, n)
		for size := 0; size <= len(whole); size += max(512, len(whole)/40/512*512) {
			path := filepath.Join(t.TempDir(), "db")
			if err := os.WriteFile(path, whole[:size], 0o600); err != nil {
				t.Fatal(err)
			}
			db, damage, err := Open(path, &options)
			if err != nil {
				t.Errorf("%d keys, %d of %d bytes: %v", n, size, len(whole), err)
				continue
			}
			aside, _ := os.ReadFile(path + suffix)
			keys := use(t, db)
			switch {
			case damage == nil && size > 0 && keys != n, damage != nil && keys != 0, size == len(whole) && damage != nil:
				t.Errorf("%d of %d bytes: %d of %d keys are left, damage %v", size, len(whole), keys, n, damage)
			case damage != nil && !bytes.Equal(aside, whole[:size]):
				t.Errorf("%d of %d bytes: %d were set aside", size, len(whole), len(aside))
			}
		}
	}
}

// TestOverwritten: nor does a file in which something else stands end the process.
func TestOverwritten(t *testing.T) {
	whole := filled(t, 3000)
	for seed := range uint64(60) {
		rnd := rand.New(rand.NewPCG(seed, 0))
		b := bytes.Clone(whole)
		page := b[rnd.IntN(len(b)/4096)*4096:][:4096]
		for i := range page {
			page[i] = byte(rnd.Uint32()) & byte(rnd.IntN(2)*255)
		}
		path := filepath.Join(t.TempDir(), "db")
		if err := os.WriteFile(path, b, 0o600); err != nil {
			t.Fatal(err)
		}
		if db, _, err := Open(path, &options); err != nil {
			t.Errorf("seed %d: %v", seed, err)
		} else {
			use(t, db)
		}
	}
}

// TestBusy: a file that somebody else has open is not damaged.
func TestBusy(t *testing.T) {
	path := filepath.Join(t.TempDir(), "db")
	db, _, err := Open(path, &options)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	if _, damage, err := Open(path, &options); damage != nil || !errors.Is(err, bolterrors.ErrTimeout) {
		t.Errorf("damage %v, error %v", damage, err)
	}
}
