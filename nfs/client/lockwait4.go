package client

import (
	"context"
	"errors"
	"time"
)

// If a LOCK of type READW or WRITEW is denied, it gets a place in the server's queue. When the lock
// is free the server sends CB_NOTIFY_LOCK (RFC 8881 section 20.11), and the client asks again. The
// client also asks again after lockWaitNotified: CB_NOTIFY_LOCK is a hint, which can get lost.
const lockWaitNotified = 10 * time.Second

// waiterKey is a lock-owner that waits for a lock of a file.
type waiterKey struct{ h, owner string }

// await is lock, but waits for the lock until ctx ends.
func (l *locks4) await(ctx context.Context, r lockRange) error {
	o := l.opens
	// A notification can arrive before the reply that denies the lock.
	free := make(chan struct{}, 1)
	o.mu.Lock()
	o.waiters[free] = waiterKey{string(l.f.h), l.owner}
	o.mu.Unlock()
	defer func() {
		o.mu.Lock()
		delete(o.waiters, free)
		o.mu.Unlock()
	}()
	for wait := lockWaitFirst; ; wait = min(2*wait, lockWaitMax) {
		err := l.lock(ctx, r, true)
		if errors.As(err, new(*LockedError)) {
			err = o.waitFree(ctx, l, free, wait)
			if err == nil {
				continue
			}
		}
		return err
	}
}

// waitFree waits until a lock may be free.
func (o *opens) waitFree(ctx context.Context, l *locks4, free <-chan struct{}, wait time.Duration) error {
	o.mu.Lock()
	if l.f.notifies {
		wait = lockWaitNotified
	}
	o.mu.Unlock()
	t := time.NewTimer(wait)
	defer t.Stop()
	select {
	case <-free:
		o.notified.Add(1)
	case <-t.C:
	case <-ctx.Done():
		return ctx.Err()
	}
	return nil
}

// lockFree is CB_NOTIFY_LOCK.
func (o *opens) lockFree(h Handle, owner string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for free, key := range o.waiters {
		if key != (waiterKey{string(h), owner}) {
			continue
		}
		select {
		case free <- struct{}{}:
		default:
		}
	}
}
