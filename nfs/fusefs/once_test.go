package fusefs

import (
	"os"
	"runtime"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rstored/rstored/blockstore"
	"github.com/rstored/rstored/blockstore/posixfs"
	"github.com/rstored/rstored/nfs/client"
)

// stopped is a store that stands still after its first RENAME, which it has done.
type stopped struct {
	*posixfs.FS
	once    sync.Once
	renamed chan struct{} // closed when the RENAME is done
	goOn    chan struct{} // closed when it may return
}

func (s *stopped) Rename(cred *blockstore.Cred, from blockstore.Handle, fromName string, to blockstore.Handle,
	toName string,
) (fromW, toW blockstore.Wcc, err error) {
	fromW, toW, err = s.FS.Rename(cred, from, fromName, to, toName)
	s.once.Do(func() {
		close(s.renamed)
		<-s.goOn
	})
	return fromW, toW, err
}

// TestRenameOnce: a server ends after it has carried out a RENAME, and before the reply has left.
// Meanwhile the program gets a signal that it handles, and repeats calls that end with EINTR, as
// every Go program does. The next server has another boot and the same journal. The RENAME happens
// once.
func TestRenameOnce(t *testing.T) {
	for _, transport := range []string{"tcp", "rdma"} {
		t.Run(transport, func(t *testing.T) {
			s := newHost(t)
			s.stop()
			store := &stopped{renamed: make(chan struct{}), goOn: make(chan struct{})}
			s.wrap = func(f *posixfs.FS) blockstore.FS {
				store.FS = f
				return store
			}
			s.cfg.Calls = make([]byte, 1<<16)
			s.start()
			m := s.mount(transport, client.Version42)
			if err := os.WriteFile(m.path("from"), []byte("content"), 0o600); err != nil {
				t.Fatal(err)
			}
			thread, result := make(chan int, 1), make(chan error, 1)
			go func() {
				runtime.LockOSThread()
				defer runtime.UnlockOSThread()
				thread <- unix.Gettid()
				result <- os.Rename(m.path("from"), m.path("to"))
			}()
			tid := <-thread
			<-store.renamed
			cut := make(chan struct{})
			go func() {
				s.cut() // which waits for the call
				close(cut)
			}()
			time.Sleep(200 * time.Millisecond)
			close(store.goOn)
			<-cut
			s.stop()
			// The signal by which the runtime of Go preempts goroutines.
			if err := unix.Tgkill(os.Getpid(), tid, unix.SIGURG); err != nil {
				t.Fatal(err)
			}
			time.Sleep(2500 * time.Millisecond)
			s.start()
			if err := <-result; err != nil {
				t.Error(err)
			}
			if b, err := os.ReadFile(m.path("to")); err != nil || string(b) != "content" {
				t.Errorf("%q, %v", b, err)
			}
		})
	}
}
