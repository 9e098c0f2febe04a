package exports

import (
	"errors"
	"os"
	"time"

	"go.uber.org/zap"
)

// retire closes a store that is no longer served, once the calls inside it have ended. No caller
// waits for that. If the data is gone for good, retire removes the directory of its state too.
func (s *Set) retire(e *Export, gone bool) {
	s.Log.Info("no longer exporting", zap.String("path", e.Path), zap.String("was", e.Pseudo))
	// The next store of the export may end this one in its cluster. The server goes on then.
	if x, ok := e.store.fs.(interface{ Retire() }); ok {
		x.Retire()
	}
	closed := make(chan struct{})
	s.closing.Store(e.ID, closed)
	go func() {
		defer close(closed)
		err := e.store.Close()
		if gone {
			err = errors.Join(err, os.RemoveAll(s.State.ExportDir(e.ID)))
		}
		if err != nil {
			s.Log.Warn("closing a store", zap.String("path", e.Path), zap.Error(err))
		}
	}()
}

// closeWait is how long a store that is opened waits for the one that was retired before.
const closeWait = 10 * time.Second

// awaitClosed waits until the retired store of an export is closed. After the limit it does not: the
// calls inside fail when the new store ends the old one.
func (s *Set) awaitClosed(id uint32, limit time.Duration) {
	x, ok := s.closing.Load(id)
	if !ok {
		return
	}
	t := time.NewTimer(limit)
	defer t.Stop()
	select {
	case <-x.(chan struct{}):
		s.closing.CompareAndDelete(id, x)
	case <-t.C:
	}
}
