package filecmd

import (
	"fmt"
	"os"
	"sync/atomic"
	"time"
)

// spent is where the time of a copy goes, summed over everything that is under way at once: into
// files of this host, or into calls to servers. The larger share limits the copy.
type spent struct {
	here    *atomic.Int64 // nanoseconds
	servers []*remote
	before  time.Duration // in calls before the copy
}

func newSpent(src, dst side) spent {
	s := spent{here: new(atomic.Int64)}
	for _, on := range []side{src, dst} {
		if r, ok := on.(*remote); ok && (len(s.servers) == 0 || s.servers[0].c != r.c) {
			s.servers = append(s.servers, r)
		}
	}
	s.before = s.there()
	return s
}

// there is the time in calls.
func (s *spent) there() (d time.Duration) {
	for _, r := range s.servers {
		d += r.c.Stats().Waited
	}
	return d - s.before
}

// on counts the time since begin if a side is this host. The clients count that of servers.
func (s *spent) on(at side, begin time.Time) {
	if _, ok := at.(*remote); !ok {
		s.here.Add(int64(time.Since(begin)))
	}
}

// shares says what share of the time went where.
func (s *spent) shares() string { return shares(time.Duration(s.here.Load()), s.there()) }

func shares(here, there time.Duration) string {
	if here+there <= 0 {
		return ""
	}
	n := int(100 * here / (here + there))
	return fmt.Sprintf("%d %% of the time in calls, %d %% in files of this host", 100-n, n)
}

// timedFile is a file whose reads and writes are counted in nanoseconds.
type timedFile struct {
	f    *os.File
	here *atomic.Int64
}

// ReadAt implements io.ReaderAt.
func (t timedFile) ReadAt(p []byte, off int64) (int, error) {
	begin := time.Now()
	n, err := t.f.ReadAt(p, off)
	t.here.Add(int64(time.Since(begin)))
	return n, err
}

// WriteAt implements io.WriterAt.
func (t timedFile) WriteAt(p []byte, off int64) (int, error) {
	begin := time.Now()
	n, err := t.f.WriteAt(p, off)
	t.here.Add(int64(time.Since(begin)))
	return n, err
}
