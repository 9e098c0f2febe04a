package state

import (
	"fmt"
	"path/filepath"
	"sync"
	"time"

	"go.etcd.io/bbolt"

	"github.com/rstored/rstored/blockstore/boltfile"
)

// Journal is the list of clients of NFS version 4 that may reclaim their state after the
// next start, by their owner strings. It is a database of its own, as it grows with the
// clients and changes when they come and go. Its methods may be called from any goroutine
// and return when the change is on disk.
type Journal struct {
	// gate is held for writing while another process has the file, or may have it again.
	gate   sync.RWMutex
	db     *bbolt.DB
	damage error
}

const (
	journalFile = "clients.db"
	// journalWait bounds the wait for another process that has the file open. This process has the
	// lock of the state directory, so no other process should.
	journalWait = time.Second
	// ownerPrefix begins every key, as a key may not be empty and an owner string may.
	ownerPrefix = "o"
)

var journalOwners = []byte("nfs4 owners")

func openJournal(dir string) (*Journal, error) {
	db, damage, err := openClients(dir)
	if err != nil {
		return nil, err
	}
	return &Journal{db: db, damage: damage}, nil
}

// openClients opens the database, which has a bucket then.
func openClients(dir string) (_ *bbolt.DB, damage, err error) {
	name := filepath.Join(dir, journalFile)
	db, damage, err := boltfile.Open(name, &bbolt.Options{Timeout: journalWait})
	if err != nil {
		return nil, nil, fmt.Errorf("%s, the list of clients that may reclaim their state: %w", name, err)
	}
	there := false
	err = db.View(func(tx *bbolt.Tx) error {
		there = tx.Bucket(journalOwners) != nil
		return nil
	})
	if err == nil && !there { // a change costs a sync, which an upgrade need not wait for
		err = db.Update(func(tx *bbolt.Tx) error {
			_, err := tx.CreateBucketIfNotExists(journalOwners)
			return err
		})
	}
	if err != nil {
		_ = db.Close()
		return nil, nil, fmt.Errorf("%s: %w", name, err)
	}
	return db, damage, nil
}

// Damage returns what was wrong with the list when it was opened, or nil. After damage the list is
// empty, so no client may reclaim its state.
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
	j.gate.RLock()
	defer j.gate.RUnlock()
	return j.db.Update(func(tx *bbolt.Tx) error {
		return tx.Bucket(journalOwners).Put([]byte(ownerPrefix+owner), nil)
	})
}

// Remove takes clients out of it, all or none.
func (j *Journal) Remove(owners ...string) error {
	j.gate.RLock()
	defer j.gate.RUnlock()
	return j.db.Update(func(tx *bbolt.Tx) error {
		for _, o := range owners {
			if err := tx.Bucket(journalOwners).Delete([]byte(ownerPrefix + o)); err != nil {
				return err
			}
		}
		return nil
	})
}
