package service

import (
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/rstored/rstored/nfs/state"
)

// repeatInterval is the time after which a failure that lasts is logged again.
const repeatInterval = time.Minute

// loggedJournal logs when the list of the clients of version 4 cannot be written, and when it can
// be written again. New clients have to wait meanwhile, because a client that is not on the list
// could not reclaim its state after a restart.
type loggedJournal struct {
	state.Journal
	log *zap.Logger

	mu     sync.Mutex
	failed time.Time // of the last log line about a failure; zero after a success
}

func (j *loggedJournal) Add(owner string) error { return j.logChange(j.Journal.Add(owner)) }
func (j *loggedJournal) Remove(owners ...string) error {
	return j.logChange(j.Journal.Remove(owners...))
}

func (j *loggedJournal) logChange(err error) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	switch now := time.Now(); {
	case err == nil && !j.failed.IsZero():
		j.failed = time.Time{}
		j.log.Info("the list of the clients of NFS version 4 can be written again")
	case err != nil && now.Sub(j.failed) > repeatInterval:
		j.failed = now
		j.log.Error("the list of the clients of NFS version 4 cannot be written: new clients have to wait, as "+
			"they could not be remembered; make room in the state directory, or make it writable",
			zap.Error(err))
	}
	return err
}
