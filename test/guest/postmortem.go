package guest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
)

// left is what the server has left of a connection, as far as it is looked at.
type left struct {
	Device   string
	Provider string
	Outcome  string
	Reason   string
	Hint     string
	Events   struct {
		CM    string
		Async string
	}
	Request *struct {
		Port    int
		QPN     uint32
		Private *struct{ Send int } `json:"rpcrdma_private"`
	}
	Connection *struct {
		Established bool
		RemoteQPN   uint32 `json:"remote_qpn"`
		Failed      *struct {
			Op     string
			Status int
		}
		Work struct {
			Posted   uint64
			Received uint64
		}
		Requests []struct{ Did, Op string }
	}
	RPC *struct{ Calls int }
}

// buried waits until the server in guest s has left something of a connection that fits.
func (r *Run) buried(ctx context.Context, what string, fits func(*left) bool) (*left, error) {
	for until := time.Now().Add(2 * time.Minute); ; {
		out, err := r.order(ctx, "ctl clients --failed -o json")
		if err != nil {
			return nil, err
		}
		var list []left
		if err := json.Unmarshal([]byte(out), &list); err != nil {
			return nil, fmt.Errorf("%w in %q", err, out)
		}
		if i := slices.IndexFunc(list, func(p left) bool { return fits(&p) }); i >= 0 {
			return &list[i], nil
		}
		if time.Now().After(until) {
			return nil, fmt.Errorf("nothing is left of %s: %s", what, out)
		}
		if err := r.Sleep(ctx, time.Second); err != nil {
			return nil, err
		}
	}
}

// buries has the client of a server on rxe go without a word, then the server's device.
func buries(ctx context.Context, r *Run) error {
	if err := r.Await(ctx, "loaded"); err != nil {
		return err
	}
	if err := errors.Join(r.Sleep(ctx, 2*time.Second), r.Tell("cut"), r.Await(ctx, "down")); err != nil {
		return err
	}
	p, err := r.buried(ctx, "a client that is gone", func(p *left) bool { return p.Outcome == "broken" })
	if err != nil {
		return err
	}
	c := p.Connection
	switch {
	case p.Provider != "verbs", !strings.HasPrefix(p.Device, "rxe0/"), !strings.Contains(p.Hint, "stopped answering"),
		!strings.Contains(p.Reason, "retry counter exceeded"),
		p.Events.CM != "RDMA_CM_EVENT_ESTABLISHED", p.RPC == nil, p.RPC.Calls == 0,
		p.Request == nil, p.Request.Port != 20049, p.Request.QPN == 0, p.Request.Private == nil, p.Request.Private.Send == 0,
		c == nil, !c.Established, c.RemoteQPN != p.Request.QPN, c.Failed == nil, c.Failed.Status != 12, c.Work.Posted == 0,
		c.Work.Received == 0,
		!slices.ContainsFunc(c.Requests,
			func(q struct{ Did, Op string }) bool { return q.Did == "posted" && q.Op == "WRITE" }):
		return fmt.Errorf("a client that is gone: %+v, %+v, %+v", p, p.Request, c)
	}
	text, err := r.order(ctx, "ctl clients --failed")
	if err != nil {
		return err
	}
	r.Logf("%s", text)
	if !strings.Contains(text, "failed request: ") || !strings.Contains(text, "last requests:") {
		return fmt.Errorf("in words: %s", text)
	}
	if err := r.Tell("restore"); err != nil {
		return err
	}
	// It is back when it reads again.
	for until := time.Now().Add(2 * time.Minute); ; {
		n, err := r.order(ctx, "connections")
		if err != nil {
			return err
		}
		if strings.TrimSpace(n) != "0" {
			break
		}
		if time.Now().After(until) {
			return errors.New("the client does not come back")
		}
		if err := r.Sleep(ctx, time.Second); err != nil {
			return err
		}
	}
	if err := r.Sleep(ctx, 3*time.Second); err != nil {
		return err
	}
	if _, err := r.order(ctx, "timeout 30 rdma link delete rxe0"); err != nil {
		return err
	}
	if p, err = r.buried(ctx, "a device that is gone",
		func(p *left) bool { return strings.Contains(p.Reason, "the device was removed") }); err != nil {
		return err
	}
	if c := p.Connection; p.Outcome != "broken" || !strings.Contains(p.Hint, "rstorectl device list") || c == nil ||
		!c.Established || c.Work.Posted == 0 {
		return fmt.Errorf("a device that is gone: %+v, %+v", p, c)
	}
	if _, err := r.order(ctx, "rdma link add rxe0 type rxe netdev eth0"); err != nil {
		return err
	}
	if text, err = r.order(ctx, "ctl clients --failed"); err != nil {
		return err
	}
	r.Logf("%s", text)
	return errors.Join(r.Sleep(ctx, 5*time.Second), r.Tell("stop"), r.Tell("removed"))
}

// postMortems is a case of connections that end badly on a device of the kernel.
func postMortems() Case {
	c := onVerbs("rxe", "port-removed")[0]
	c.Name, c.Script, c.Host, c.Timeout = "verbs-rxe-post-mortem", script("post-mortem"), buries, 6*time.Minute
	return c
}
