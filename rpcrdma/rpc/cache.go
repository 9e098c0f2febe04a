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
	record     int32     // in the journal, -1 = none
	doubt      []byte    // note of an execution that a crash cut off
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
	journal  journal
	doubts   map[drcKey]doubt // begun before the last crash, and not asked for since
}

// init sets the limits and takes over what mem, the journal, knows. A journal
// holds a record for each reply that is kept, and some for calls in progress.
func (r *replyCache) init(entries, bytes int, mem []byte, now int64) {
	r.entries = make(map[drcKey]*drcEntry)
	r.oldest.next, r.oldest.prev = &r.oldest, &r.oldest
	r.countMax, r.bytesMax = entries, bytes
	if len(mem) < recordLen {
		return
	}
	r.countMax = min(entries, max(len(mem)/recordLen*3/4, 1))
	r.doubts = make(map[drcKey]doubt)
	r.journal.load(mem, func(k drcKey, i int32, at int64, note, reply []byte) {
		_, doubted := r.doubts[k]
		switch {
		case at > now || at < now-replyAge || doubted || r.entries[k] != nil:
			r.journal.release(i)
		case reply == nil:
			r.doubts[k] = doubt{note, at, i}
		default:
			e := &drcEntry{key: k, reply: reply, size: len(reply), record: i}
			r.entries[k] = e
			r.enter(e, at)
		}
	})
}

// enter adds an entry to those that are done.
func (r *replyCache) enter(e *drcEntry, at int64) {
	e.done, e.at = true, at
	last := r.oldest.prev
	last.next, e.prev, e.next, r.oldest.prev = e, last, &r.oldest, e
	r.count++
	r.bytes += e.size
	for r.count > r.countMax || r.bytes > r.bytesMax || r.oldest.next.at < at-replyAge {
		r.evict(r.oldest.next)
	}
}

// intend notes in the journal that a call is about to change something.
func (r *replyCache) intend(c *Call, note []byte) {
	e := c.entry
	r.mu.Lock()
	defer r.mu.Unlock()
	if e.record >= 0 {
		return // of the execution that was cut off; what it intended still holds
	}
	if len(r.journal.free) == 0 {
		for k, d := range r.doubts {
			if c.start-d.at > replyAge {
				delete(r.doubts, k)
				r.journal.release(d.record)
			}
		}
	}
	e.record = r.journal.begin(&e.key, c.start, note)
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
		e = &drcEntry{key: k, record: -1}
		r.entries[k] = e
		if d, ok := r.doubts[k]; ok {
			delete(r.doubts, k)
			if c.start-d.at <= replyAge {
				e.doubt, e.record = d.note, d.record
			} else {
				r.journal.release(d.record)
			}
		}
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
		if e.record >= 0 && len(e.refs) == 0 {
			r.journal.finish(e.record, e.reply)
		}
		r.enter(e, at)
	} else {
		delete(r.entries, e.key)
		r.forget(e)
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
	r.forget(e)
}

// forget gives an entry's record back.
func (r *replyCache) forget(e *drcEntry) {
	if e.record >= 0 {
		r.journal.release(e.record)
		e.record = -1
	}
}
