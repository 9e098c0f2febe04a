package rpc

import (
	"bytes"
	"sync"

	"github.com/rstored/rstored/rpcrdma/xdr"
)

// The duplicate request cache keeps the replies of calls that must not be
// executed twice. A client that lost its connection sends its calls again on a
// new one, from another port, with the same XIDs: so the key holds the
// client's address without the port. What is kept is the RPC reply message,
// never the bytes of a transport: the retry may come by another one.

// replyAge is how long a reply is kept, in nanoseconds. A retry later than that
// is no longer told from a new call that has the same XID by chance.
const replyAge = 10 * 60 * 1e9

type drcKey struct {
	peer                  [16]byte
	xid, prog, vers, proc uint32
	size                  int    // of the arguments
	sum                   uint64 // over their first bytes
}

type drcEntry struct {
	key        drcKey
	done       bool
	at         int64 // when the call arrived, ns
	reply      []byte
	refs       []xdr.Ref // bulk results, copied; never changed afterwards
	size       int       // of both
	waiting    *Call     // retransmissions that arrived during the execution
	prev, next *drcEntry
}

type drcVerdict uint8

const (
	drcNew    drcVerdict = iota // execute it and call finish
	drcReplay                   // the reply is in c.Res
	drcJoined                   // the execution in progress will answer it
)

type replyCache struct {
	mu       sync.Mutex
	entries  map[drcKey]*drcEntry
	oldest   drcEntry // ring of finished entries, oldest first
	count    int
	bytes    int
	countMax int
	bytesMax int
}

func (r *replyCache) init(entries, bytes int) {
	r.entries = make(map[drcKey]*drcEntry)
	r.oldest.next, r.oldest.prev = &r.oldest, &r.oldest
	r.countMax, r.bytesMax = entries, bytes
}

func (r *replyCache) begin(k drcKey, c *Call) (*drcEntry, drcVerdict) {
	r.mu.Lock()
	defer r.mu.Unlock()
	e := r.entries[k]
	if e != nil && e.done && c.start-e.at > replyAge {
		r.evict(e)
		e = nil
	}
	switch {
	case e == nil:
		e = &drcEntry{key: k}
		r.entries[k] = e
		return e, drcNew
	case e.done:
		e.replay(c)
		return nil, drcReplay
	default:
		c.Detach()
		c.next = e.waiting
		e.waiting = c
		return nil, drcJoined
	}
}

// finish stores the reply in c.Res, or forgets the call if keep is false, and
// answers the retransmissions that waited for it.
func (r *replyCache) finish(c *Call, keep bool, at int64) {
	e := c.entry
	c.entry = nil
	r.mu.Lock()
	waiting := e.waiting
	e.waiting = nil
	if keep {
		e.keep(&c.Res)
		e.done, e.at = true, at
		last := r.oldest.prev
		last.next, e.prev, e.next, r.oldest.prev = e, last, &r.oldest, e
		r.count++
		r.bytes += e.size
		for r.count > r.countMax || r.bytes > r.bytesMax || r.oldest.next.at < at-replyAge {
			r.evict(r.oldest.next)
		}
	} else {
		delete(r.entries, e.key)
	}
	r.mu.Unlock()
	for w := waiting; w != nil; {
		next := w.next
		w.next = nil
		if keep {
			e.replay(w)
		}
		w.Reply(w, !keep)
		w = next
	}
}

// keep copies a reply. Bulk results stay apart, for a carrier may have a place
// of their own for them the next time, too.
func (e *drcEntry) keep(res *xdr.Encoder) {
	e.reply, e.size = bytes.Clone(res.B), res.Len()
	for _, r := range res.Refs {
		e.refs = append(e.refs, xdr.Ref{At: r.At, Data: bytes.Clone(r.Data)})
	}
}

func (e *drcEntry) replay(c *Call) {
	c.Res.B = append(c.Res.B, e.reply...)
	c.Res.Refs = append(c.Res.Refs, e.refs...)
}

func (r *replyCache) evict(e *drcEntry) {
	e.prev.next, e.next.prev = e.next, e.prev
	delete(r.entries, e.key)
	r.count--
	r.bytes -= e.size
}
