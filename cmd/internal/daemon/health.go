package daemon

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"sync"
	"time"

	"github.com/rstored/rstored/blockstore"
	"github.com/rstored/rstored/cmd/internal/config"
	"github.com/rstored/rstored/cmd/internal/control"
	"github.com/rstored/rstored/cmd/internal/exports"
)

// health has the problems of exports that are served: a file system that is full or does not
// answer, a directory that cannot be read. The zero value has none.
type health struct {
	mu    sync.Mutex
	busy  map[string]bool // exports that are being looked at, by name
	found map[string]string
}

// probeTime is how long a file system may take to answer.
const probeTime = 2 * time.Second

// check looks at all exports at once, and returns after probeTime at most. While a file system has
// not answered the last probe, check does not send it another.
func (h *health) check(list []*exports.Export) {
	h.mu.Lock()
	if h.busy == nil {
		h.busy, h.found = make(map[string]bool), make(map[string]string)
	}
	served := make(map[string]bool)
	var asked sync.WaitGroup
	for _, e := range list {
		served[e.Pseudo] = e.Open()
		if !e.Open() || h.busy[e.Pseudo] {
			continue
		}
		h.busy[e.Pseudo] = true
		asked.Go(func() {
			what := probe(e)
			h.mu.Lock()
			defer h.mu.Unlock()
			delete(h.busy, e.Pseudo)
			h.found[e.Pseudo] = what
		})
	}
	maps.DeleteFunc(h.found, func(name string, _ string) bool { return !served[name] })
	h.mu.Unlock()
	done := make(chan struct{})
	go func() { asked.Wait(); close(done) }()
	select {
	case <-done:
	case <-time.After(probeTime):
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	for name := range h.busy {
		h.found[name] = fmt.Sprintf("its file system does not answer (for more than %v)", probeTime)
	}
}

// of returns the problem of an export, or an empty string.
func (h *health) of(name string) string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.found[name]
}

// probe asks the store of an export for its size, and reads a name in its directory.
func probe(e *exports.Export) string {
	st, err := e.Volume()
	if err != nil {
		return fmt.Sprintf("its file system cannot be asked: %v", err)
	}
	if e.Type == config.TypePosix {
		if err := readable(e.Path); err != nil {
			return fmt.Sprintf("its directory cannot be read: %v", err)
		}
	}
	if e.Quota != "" {
		return "" // that its clients have used it up is no fault of this host
	}
	return full(&st)
}

func readable(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer f.Close()
	if _, err := f.Readdirnames(1); err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	return nil
}

// full returns a problem if only root of the host can still write, or nearly so. The limit is a
// hundredth of the file system, and a GiB at most.
func full(st *blockstore.Stat) string {
	const most = 1 << 30
	switch {
	case st.TotalBytes > 0 && st.AvailBytes < min(st.TotalBytes/100, most), st.TotalBytes > 0 && st.AvailBytes == 0:
		return fmt.Sprintf("its file system is full: %d of %d MiB are left", st.AvailBytes>>20, st.TotalBytes>>20)
	case st.TotalFiles > 0 && st.AvailFiles == 0:
		return fmt.Sprintf("its file system is full: all its %d inodes are in use", st.TotalFiles)
	}
	return ""
}

// Exports implements control.Backend.
func (d *Daemon) Exports() []control.Export {
	list := d.Reconciler.Exports()
	for i := range list {
		list[i].Warning = d.monitor.health.of(list[i].Pseudo)
	}
	return list
}

// watchHealth looks at the exports every monitorTick until end is closed.
func (d *Daemon) watchHealth(end <-chan struct{}) {
	t := time.NewTicker(monitorTick)
	defer t.Stop()
	for {
		d.monitor.health.check(d.ExportSet.All())
		select {
		case <-end:
			return
		case <-t.C:
		}
	}
}
