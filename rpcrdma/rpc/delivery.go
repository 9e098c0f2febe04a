package rpc

import (
	"bytes"

	"github.com/rstored/rstored/rpcrdma/xdr"
)

// store copies a reply into the entry. Bulk results stay apart, because the transport of a
// retransmission may have a chunk for each of them.
func (e *drcEntry) store(res *xdr.Encoder) {
	e.reply, e.size = bytes.Clone(res.B), res.Len()
	for _, r := range res.Refs {
		e.refs = append(e.refs, xdr.Ref{At: r.At, Data: bytes.Clone(r.Data)})
	}
}

// replay answers c with the entry's reply.
func (r *replyCache) replay(e *drcEntry, c *Call) {
	c.Res.B = append(c.Res.B, e.reply...)
	c.Res.Refs = append(c.Res.Refs, e.refs...)
	r.sending(e, c)
}

// sending notes that the transport sends the entry's reply to c. An earlier delivery does not count
// any more: the client that has its reply does not send the call again.
func (r *replyCache) sending(e *drcEntry, c *Call) {
	e.over(c)
	e.via = c.Settler
	e.sent++
	if e.delivered {
		e.delivered = false
		r.journal.deliver(e.record, false)
	}
	c.delivery = Delivery{r, e, e.sent}
}

// Delivery is a cached reply that a transport sends. The transport reports by it that the client
// has the reply.
type Delivery struct {
	cache *replyCache
	entry *drcEntry
	sent  uint32 // only the last transmission counts
}

// Wanted reports whether the reply is cached.
func (d Delivery) Wanted() bool { return d.entry != nil }

// Delivered reports that the client has acknowledged the reply. The entry then lives for
// answeredAge. An acknowledgement of an earlier transmission does not count: the client has sent
// the call again since, so it may still wait for the reply.
func (d Delivery) Delivered() {
	e := d.entry
	if e == nil {
		return
	}
	d.cache.mu.Lock()
	defer d.cache.mu.Unlock()
	if e.sent == d.sent {
		e.delivered, e.via = true, nil
		d.cache.journal.deliver(e.record, true)
	}
}
