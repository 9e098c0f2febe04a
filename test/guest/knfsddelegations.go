package guest

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/rstored/rstored/nfs/client"
	"github.com/rstored/rstored/nfs/dial"
)

// recallsOfKernel is a user of delegations that caches nothing.
type recallsOfKernel chan *client.Delegation

func (r recallsOfKernel) Recalled(_ context.Context, d *client.Delegation) { r <- d }
func (recallsOfKernel) Lost(*client.Delegation)                            {}
func (recallsOfKernel) Changed(*client.Delegation) (uint64, bool)          { return 0, false }

// kernelDelegations has one client, over RDMA and then over TCP, get a delegation for reading from
// the kernel's server, and another client write to the file, so that the server recalls it.
func kernelDelegations(ctx context.Context, rdma, tcp string, version client.Version) error {
	for _, urls := range [][2]string{{rdma, tcp}, {tcp, rdma}} {
		if err := kernelRecalls(ctx, urls[0], urls[1], version); err != nil {
			return fmt.Errorf("delegations by %s: %w", urls[0], err)
		}
	}
	return nil
}

func kernelRecalls(ctx context.Context, url, other string, version client.Version) (err error) {
	one, two := &dial.Dialer{Version: version}, &dial.Dialer{Version: version}
	defer func() { err = errors.Join(err, one.Close(), two.Close()) }()
	u, err := client.ParseURL(url)
	if err != nil {
		return err
	}
	c, r := one.Client(u), make(recallsOfKernel, 10)
	c.UseDelegations(r)
	n, err := c.Resolve(ctx, u.Path)
	if err != nil {
		return err
	}
	// The kernel grants none in the grace period, and none for a while of a file whose delegation it
	// has recalled.
	var d *client.Delegation
	for end := time.Now().Add(100 * time.Second); d == nil; {
		release, err := c.OpenHandle(ctx, n.Handle, client.ShareRead)
		if err != nil {
			return err
		}
		if err := release(); err != nil {
			return err
		}
		if d = c.Delegation(n.Handle); d != nil {
			break
		}
		if time.Now().After(end) {
			return fmt.Errorf("the kernel grants none: %+v", c.Stats())
		}
		time.Sleep(200 * time.Millisecond)
	}
	before := c.Stats()
	release, err := c.OpenHandle(ctx, n.Handle, client.ShareRead) // without a call
	if err != nil || d.Write() {
		return fmt.Errorf("for writing: %t, %w", d.Write(), err)
	}
	began := time.Now()
	f, err := two.Open(ctx, other)
	if err != nil {
		return err
	}
	if _, err := f.WriteAt([]byte("changed"), 0); err != nil {
		return err
	}
	if err := f.Close(); err != nil {
		return err
	}
	select {
	case <-r:
	case <-time.After(10 * time.Second):
		return errors.New("the delegation was not recalled")
	}
	st := c.Stats()
	if d.Valid() || d.Lost() || st.Recalled != before.Recalled+1 || st.Returned != before.Returned+1 {
		return fmt.Errorf("after a recall: %+v", st)
	}
	if took := time.Since(began); took > 30*time.Second {
		return fmt.Errorf("the other client waited for %v", took)
	}
	got := make([]byte, 7)
	if k, _, err := c.Read(ctx, n.Handle, got, 0); err != nil || string(got[:k]) != "changed" {
		return fmt.Errorf("the file begins with %q, %w", got[:k], err)
	}
	return release()
}
