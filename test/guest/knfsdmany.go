package guest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"

	"github.com/rstored/rstored/nfs/client"
	"github.com/rstored/rstored/nfs/dial"
)

// manyEnv has the URL of a directory and the version of NFS, for the process that runs
// kernelConnections.
const manyEnv = "RSTORED_GUEST_MANY"

// connections is how many one client makes.
const connections = 4

// kernelConnections has one client with several connections write, read and rename at the kernel's
// server, with many calls at once in one piece of registered memory.
func kernelConnections(ctx context.Context, url string, version client.Version) (err error) {
	d := &dial.Dialer{Version: version, Connections: connections}
	defer func() { err = errors.Join(err, d.Close()) }()
	u, err := client.ParseURL(url)
	if err != nil {
		return err
	}
	c := d.Client(u)
	dir, err := c.Resolve(ctx, u.Path)
	if err != nil {
		return err
	}
	const files, size = 8, 6 << 20
	m, err := c.Register(make([]byte, files*size))
	if err != nil {
		return err
	}
	defer m.Close()
	one := func(i int) error {
		data := make([]byte, size)
		_, _ = rand.NewChaCha8([32]byte{byte(i)}).Read(data)
		name := fmt.Sprintf("%s/many-%d", u.Path, i)
		f, err := c.CreateFile(ctx, name, 0o644)
		if err != nil {
			return err
		}
		part := m.Bytes()[i*size:][:size]
		copy(part, data)
		_, err = f.WriteAt(part, 0)
		clear(part)
		if err == nil {
			_, err = f.ReadAt(part, 0)
		}
		if err == nil && !bytes.Equal(part, data) {
			err = errors.New("other data came back")
		}
		if err = errors.Join(err, f.Close()); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		base := fmt.Sprint("many-", i)
		for j := range 20 { // each is executed once, or it fails
			next := fmt.Sprintf("many-%d-%d", i, j)
			if err := c.Rename(ctx, dir.Handle, base, dir.Handle, next); err != nil {
				return err
			}
			base = next
		}
		return c.Remove(ctx, dir.Handle, base)
	}
	errs := make([]error, files)
	// A connection is made when a call finds the others in use, which is up to the scheduler.
	for c.Stats().Links < connections && errors.Join(errs...) == nil {
		var wg sync.WaitGroup
		for i := range files {
			wg.Go(func() { errs[i] = one(i) })
		}
		wg.Wait()
	}
	if n := c.Stats().Resent; n > 0 {
		errs = append(errs, fmt.Errorf("%d calls were sent again", n))
	}
	return errors.Join(errs...)
}
