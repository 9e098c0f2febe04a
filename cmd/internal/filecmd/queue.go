package filecmd

// queued bounds the objects that the walk has found and no goroutine copies yet. While they wait,
// the walk reads the next directories.
const queued = 1024

// start has one of the goroutines that copy run do.
func (k *copier) start(do func()) {
	if k.queue == nil {
		k.queue = make(chan func(), queued)
		for range k.jobs {
			k.wg.Go(func() {
				for do := range k.queue {
					if k.r.ctx.Err() == nil {
						do()
					}
				}
			})
		}
	}
	select {
	case k.queue <- do:
	case <-k.r.ctx.Done():
	}
}

// wait waits for everything that was started.
func (k *copier) wait() {
	k.startGathered()
	if k.queue != nil {
		close(k.queue)
		k.wg.Wait()
		k.queue = nil
	}
}
