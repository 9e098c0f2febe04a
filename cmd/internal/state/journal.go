package state

import (
	"fmt"
	"path/filepath"
	"time"

	"go.etcd.io/bbolt"

	"github.com/rstored/rstored/blockstore/boltfile"
)

// Journal is the list of clients of NFS version 4 that may reclaim their state after the
// next start, by their owner strings. It is a database of its own, as it grows with the
// clients and changes when they come and go. Its methods may be called from any goroutine
// and return when the change is on disk.
type Journal struct {
	db     *bbolt.DB
	damage error
}

const (
	journalFile = "clients.db"
	// journalWait bounds the wait for another process that has the file; the lock of the
	// state directory is held by then, so that there is none that should.
	journalWait = time.Second
	// ownerPrefix begins every key, as a key may not be empty and an owner string may.
	ownerPrefix = "o"
)

var journalOwners = []byte("nfs4 owners")

func openJournal(dir string) (*Journal, error) {
	name := filepath.Join(dir, journalFile)
	db, damage, err := boltfile.Open(name, &bbolt.Options{Timeout: journalWait})
	if err != nil {
		return nil, fmt.Errorf("%s, the list of clients that may reclaim their state: %w", name, err)
	}
	err = db.Update(func(tx *bbolt.Tx) error {
		_, err := tx.CreateBucketIfNotExists(journalOwners)
		return err
	})
	if err != nil {
		_ = db.Close()
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return &Journal{db: db, damage: damage}, nil
}

// Damage says what was wrong with the list when it was opened, if it had to be begun anew: nobody
// may reclaim what he had before.
func (j *Journal) Damage() error { return j.damage }

// Owners lists the clients.
func (j *Journal) Owners() ([]string, error) {
	var out []string
	err := j.db.View(func(tx *bbolt.Tx) error {
		return tx.Bucket(journalOwners).ForEach(func(k, _ []byte) error {
			out = append(out, string(k[len(ownerPrefix):]))
			return nil
		})
	})
	return out, err
}

// Add puts a client into the list.
func (j *Journal) Add(owner string) error {
	return j.db.Update(func(tx *bbolt.Tx) error {
		return tx.Bucket(journalOwners).Put([]byte(ownerPrefix+owner), nil)
	})
}

// Remove takes clients out of it, all or none.
func (j *Journal) Remove(owners ...string) error {
	return j.db.Update(func(tx *bbolt.Tx) error {
		for _, o := range owners {
			if err := tx.Bucket(journalOwners).Delete([]byte(ownerPrefix + o)); err != nil {
				return err
			}
		}
		return nil
	})
}
