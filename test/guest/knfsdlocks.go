package guest

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/rstored/rstored/nfs"
	"github.com/rstored/rstored/nfs/client"
	"github.com/rstored/rstored/nfs/dial"
)

// locksEnv has the URLs of a file by RDMA and by TCP, and the version of NFS, for the
// process that runs kernelLocks.
const locksEnv = "RSTORED_GUEST_LOCKS"

// kernelLocks has two clients lock bytes of a file of the kernel's server, one over RDMA
// and one over TCP.
func kernelLocks(ctx context.Context, rdma, tcp string, version client.Version) error {
	one, two := &dial.Dialer{Version: version}, &dial.Dialer{Version: version}
	defer func() { _ = errors.Join(one.Close(), two.Close()) }()
	f, err := one.Open(ctx, rdma)
	if err != nil {
		return err
	}
	g, err := two.Open(ctx, tcp)
	if err != nil {
		return err
	}
	denied := func(f *client.File, off, n uint64, exclusive bool, from, length uint64) error {
		var l *client.LockedError
		if err := f.TryLock(off, n, exclusive); !errors.As(err, &l) || !errors.Is(err, nfs.ErrDenied) ||
			l.Holder.Offset != from || l.Holder.Length != length {
			return fmt.Errorf("a lock of %d bytes at %d: %w", n, off, err)
		}
		if h, err := f.TestLock(off, n, exclusive); err != nil || h == nil || h.Offset != from || h.Length != length {
			return fmt.Errorf("a test of %d bytes at %d: %+v, %w", n, off, h, err)
		}
		return nil
	}
	waited := make(chan error, 1)
	for i, step := range []func() error{
		func() error { return f.TryLock(0, 100, true) },
		func() error { return denied(g, 50, 10, false, 0, 100) },
		func() error { return f.Unlock(40, 20) },
		func() error { return g.TryLock(40, 20, true) },
		func() error { return denied(f, 0, 0, false, 40, 20) },
		func() error { return denied(g, 39, 1, true, 0, 40) },
		func() error { return f.TryLock(200, 0, false) },
		func() error { return g.TryLock(300, 5, false) },
		func() error { return denied(g, 300, 5, true, 200, 0) },
		func() error {
			go func() { waited <- g.Lock(ctx, 0, 10, true) }()
			time.Sleep(time.Second) // for the LOCK that is denied
			return f.Unlock(0, 0)
		},
		func() error {
			select {
			case err := <-waited:
				return err
			case <-time.After(20 * time.Second):
				return errors.New("a lock that is free is still waited for")
			}
		},
		func() error {
			if n := statsOf(two, tcp).Notified; n != 1 {
				return fmt.Errorf("the server has ended %d waits for a lock by CB_NOTIFY_LOCK", n)
			}
			return nil
		},
		func() error { return g.Close() },
		func() error { return f.TryLock(0, 0, true) },
		func() error { return f.Close() },
	} {
		if err := step(); err != nil {
			return fmt.Errorf("locks, step %d: %w", i, err)
		}
	}
	return nil
}

// statsOf are the counts of the client for a URL.
func statsOf(d *dial.Dialer, url string) client.Stats {
	u, err := client.ParseURL(url)
	if err != nil {
		return client.Stats{}
	}
	return d.Client(u).Stats()
}
