package fusefs

import (
	"context"

	"github.com/rstored/rstored/blockstore"
	"github.com/rstored/rstored/nfs/nfs3"
)

// flush sends what was written, and waits until the server has it. It does not wait for data that
// is written meanwhile.
func (w *writer) flush(ctx context.Context) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.flushLocked(ctx)
}

func (w *writer) flushLocked(ctx context.Context) error {
	for w.rewriting {
		if err := w.await(ctx); err != nil {
			return err
		}
	}
	w.send()
	for last := w.launched; len(w.flights) > 0 && w.oldest() <= last; {
		if err := w.await(ctx); err != nil {
			return err
		}
	}
	return nil
}

// oldest returns the lowest number among the chunks in flight. mu is held.
func (w *writer) oldest() uint64 {
	least := w.launched
	for _, c := range w.flights {
		least = min(least, c.number)
	}
	return least
}

// commit makes everything stable that was written before. If the data is a single chunk, commit
// sends it as a stable WRITE, which saves the COMMIT.
func (w *writer) commit(ctx context.Context) error {
	w.mu.Lock()
	if len(w.flights) == 0 && len(w.unstable) == 0 && !w.rewriting {
		w.launch(blockstore.FileSync)
	}
	err := w.flushLocked(ctx)
	w.mu.Unlock()
	if err != nil {
		return err
	}
	return w.stabilize(ctx)
}

func (w *writer) settleLater() { _ = w.stabilize(w.f.ctx) } // if it fails, the chunks stay for the next

// stabilize makes the unstable chunks stable.
func (w *writer) stabilize(ctx context.Context) error {
	select {
	case w.committing <- struct{}{}:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	defer func() { <-w.committing }()
	w.mu.Lock()
	list, identity := w.unstable, w.ctx
	w.mu.Unlock()
	if len(list) == 0 {
		return nil
	}
	w.f.stats.commits.Add(1)
	ctx = withIdentity(ctx, identity)
	verifier, err := w.f.c.Commit(ctx, w.n.handle, 0, 0)
	if err != nil {
		return err
	}
	for i, c := range list {
		if c.verifier != verifier {
			w.settle(i)
			return w.rewrite(ctx, verifier)
		}
	}
	w.settle(len(list))
	return nil
}

// rewrite sends again the unstable chunks whose verifier differs from that of a COMMIT, and the
// chunks that were written over them later. No other WRITE is in flight meanwhile. The caller has
// committing.
func (w *writer) rewrite(ctx context.Context, verifier [nfs3.VerifierLen]byte) error {
	w.mu.Lock()
	w.rewriting = true
	defer func() {
		w.mu.Lock()
		w.rewriting = false
		w.wake()
		w.mu.Unlock()
	}()
	for len(w.flights) > 0 {
		if err := w.await(ctx); err != nil {
			w.mu.Unlock()
			return err
		}
	}
	list := w.unstable
	w.mu.Unlock()
	var again, left []*chunk
	var err error
	for i, c := range list {
		over := c.verifier != verifier
		for _, x := range again {
			over = over || x.overlaps(c.off, c.end())
		}
		if !over {
			left = append(left, c) // a later COMMIT covers it
			continue
		}
		w.f.stats.resent.Add(1)
		_, failed := w.put(ctx, c, blockstore.FileSync)
		if failed != nil && ctx.Err() != nil {
			left, err = append(left, list[i:]...), failed
			break
		}
		again = append(again, c)
		if failed != nil {
			err = failed
			w.mu.Lock()
			w.failed(c, failed)
			w.mu.Unlock()
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, c := range again {
		w.waiting -= len(c.data)
		w.free(c)
	}
	w.unstable = left
	w.clean()
	return err
}

// settle frees the first n unstable chunks, which are stable now.
func (w *writer) settle(n int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, c := range w.unstable[:n] {
		w.waiting -= len(c.data)
		w.free(c)
	}
	w.unstable = append([]*chunk(nil), w.unstable[n:]...)
	w.clean()
	w.wake()
}
