package posixfs

import (
	"os"
	"runtime"
	"strconv"
	"strings"

	"github.com/rstored/rstored/blockstore"
	"golang.org/x/sys/unix"
)

// identityThread is a thread that runs functions with the identities of clients, and nothing else.
type identityThread chan func() (restored bool)

// idleThreads are the identity threads that run nothing now. All stores of the process share them.
// There is one thread for each call in progress. At most 64 stay when they are idle.
var idleThreads = make(chan identityThread, 64)

// runOnIdentityThread runs fn on an identity thread and waits for it. A panic of fn continues in
// the caller.
func runOnIdentityThread(fn func() (restored bool)) {
	var t identityThread
	select {
	case t = <-idleThreads:
	default:
		t = make(identityThread)
		go t.run()
	}
	ended := make(chan any, 1)
	t <- func() (restored bool) {
		defer func() { ended <- recover() }()
		return fn()
	}
	if v := <-ended; v != nil {
		panic(v)
	}
}

// run serves calls until one has not restored the credentials, or enough threads are idle.
func (t identityThread) run() {
	runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
	for fn := range t {
		if !fn() {
			return
		}
		select {
		case idleThreads <- t:
		default:
			return
		}
	}
}

// makers are threads that create objects with a umask of 0, because the client has already applied
// its umask to the mode in a request. The store must not change the umask of the process. Each
// maker has a umask of its own: it calls unshare(CLONE_FS).
type makers struct {
	work chan func()
	quit chan struct{}
	// own says that the umask of the process is 0, so that no threads are needed.
	own bool
	// umask still applies if a thread cannot have a umask of its own. finish corrects the modes then.
	umask uint32
}

const makerThreads = 4

// startMakers starts the threads, unless the umask of the process is 0.
func startMakers(own bool) *makers {
	m := &makers{work: make(chan func()), quit: make(chan struct{}), own: own}
	if m.own {
		return m
	}
	unshared := make(chan bool)
	for range makerThreads {
		go func() {
			runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
			ok := unix.Unshare(unix.CLONE_FS) == nil
			if ok {
				unix.Umask(0)
			}
			unshared <- ok
			for {
				select {
				case fn := <-m.work:
					fn()
				case <-m.quit:
					return
				}
			}
		}()
	}
	for range makerThreads {
		if !<-unshared {
			m.umask = processUmask()
		}
	}
	return m
}

// as runs fn, which creates an object, with the identity of c.
func (m *makers) as(k *caller, c *blockstore.Cred, fn func() error) error {
	if m.own {
		return k.as(c, fn)
	}
	here := *k
	here.ownThreads = false // the maker's thread runs nothing else, and an identity thread has another umask
	done := make(chan error, 1)
	select {
	case m.work <- func() { done <- here.as(c, fn) }:
		return <-done
	case <-m.quit:
		return errClosed
	}
}

func (m *makers) stop() { close(m.quit) }

// processUmask returns the umask of the process. It does not call umask(2): each call
// of umask(2) replaces the umask of all threads, if only for a moment.
func processUmask() uint32 {
	// This thread has the umask of the process. The first thread may be a maker, so that
	// /proc/self/status could show another one.
	status, _ := os.ReadFile("/proc/thread-self/status")
	for line := range strings.Lines(string(status)) {
		if v, ok := strings.CutPrefix(line, "Umask:"); ok {
			if u, err := strconv.ParseUint(strings.TrimSpace(v), 8, 32); err == nil {
				return uint32(u)
			}
		}
	}
	return 0o777
}
