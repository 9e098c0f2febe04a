package guest

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/rstored/rstored/nfs/client"
	"github.com/rstored/rstored/nfs/dial"
)

// recallsOfKernel is a user of delegations that caches nothing. It returns none while hold is not
// closed.
type recallsOfKernel struct {
	recalled, lost chan *client.Delegation
	hold           chan struct{}
}

func newRecalls(hold chan struct{}) *recallsOfKernel {
	return &recallsOfKernel{make(chan *client.Delegation, 10), make(chan *client.Delegation, 10), hold}
}

func (r *recallsOfKernel) Recalled(_ context.Context, d *client.Delegation) {
	r.recalled <- d
	<-r.hold
}
func (r *recallsOfKernel) Lost(d *client.Delegation)               { r.lost <- d }
func (*recallsOfKernel) Changed(*client.Delegation) (uint64, bool) { return 0, false }

// kernelDelegations has one client, over RDMA and then over TCP, get a delegation for reading from
// the kernel's server, and another client write to the file, so that the server recalls it. Then
// the client does not return delegations any more, and the server revokes them.
func kernelDelegations(ctx context.Context, rdma, tcp string, version client.Version) error {
	for _, urls := range [][2]string{{rdma, tcp}, {tcp, rdma}} {
		if err := kernelRecalls(ctx, urls[0], urls[1], version); err != nil {
			return fmt.Errorf("delegations by %s: %w", urls[0], err)
		}
	}
	// Once, by RDMA: the kernel takes 90 seconds and more for each of the two revocations.
	if err := kernelRevokes(ctx, rdma, tcp, version); err != nil {
		return fmt.Errorf("revoked delegations by %s: %w", rdma, err)
	}
	return nil
}

// delegatedByKernel opens a file until the kernel delegates it. The kernel grants none in the grace
// period, and none for a while of a file whose delegation it has recalled.
func delegatedByKernel(ctx context.Context, c *client.Client, h client.Handle) (*client.Delegation, error) {
	for end := time.Now().Add(100 * time.Second); ; {
		release, err := c.OpenHandle(ctx, h, client.ShareRead)
		if err != nil {
			return nil, err
		}
		if err := release(); err != nil {
			return nil, err
		}
		if d := c.Delegation(h); d != nil {
			return d, nil
		}
		if time.Now().After(end) {
			return nil, fmt.Errorf("the kernel grants none: %+v", c.Stats())
		}
		time.Sleep(200 * time.Millisecond)
	}
}

// kernelRevokes has the kernel revoke two delegations of one client, which renews its lease and
// does not return them. The client has to notice both: it frees the first stateid, or the kernel's
// flag would stay.
func kernelRevokes(ctx context.Context, url, other string, version client.Version) (err error) {
	one, two := &dial.Dialer{Version: version}, &dial.Dialer{Version: version}
	defer func() { err = errors.Join(err, one.Close(), two.Close()) }()
	u, err := client.ParseURL(url)
	if err != nil {
		return err
	}
	hold := make(chan struct{})
	defer close(hold)
	c, r := one.Client(u), newRecalls(hold)
	c.UseDelegations(r)
	n, err := c.Resolve(ctx, u.Path)
	if err != nil {
		return err
	}
	for _, data := range []string{"first..", "second."} {
		d, err := delegatedByKernel(ctx, c, n.Handle)
		if err != nil {
			return err
		}
		f, err := two.Open(ctx, other)
		if err != nil {
			return err
		}
		if _, err := f.WriteAt([]byte(data), 0); err != nil { // waits for the revocation
			return err
		}
		if err := f.Close(); err != nil {
			return err
		}
		if _, err := c.GetAttr(ctx, n.Handle); err != nil { // the reply has the flag
			return err
		}
		select {
		case l := <-r.lost:
			if l != d || !d.Lost() || d.Valid() {
				return fmt.Errorf("lost is %+v instead of %+v", l, d)
			}
		case <-time.After(20 * time.Second):
			return fmt.Errorf("the client does not notice the revocation before %q: %+v", data, c.Stats())
		}
		got := make([]byte, len(data))
		if k, _, err := c.Read(ctx, n.Handle, got, 0); err != nil || string(got[:k]) != data {
			return fmt.Errorf("the file begins with %q, %w", got[:k], err)
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
	hold := make(chan struct{})
	close(hold)
	c, r := one.Client(u), newRecalls(hold)
	c.UseDelegations(r)
	n, err := c.Resolve(ctx, u.Path)
	if err != nil {
		return err
	}
	d, err := delegatedByKernel(ctx, c, n.Handle)
	if err != nil {
		return err
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
	case <-r.recalled:
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
