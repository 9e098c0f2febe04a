package rpc

import (
	"net/netip"
	"sync"

	"github.com/rstored/rstored/rpcrdma/xdr"
)

// The duplicate request cache has the replies of calls that must not be executed twice (RFC 8881
// section 2.10.6 has the same for sessions). It caches the RPC reply message, never the bytes of a
// transport, because a retransmission may arrive by another transport.
//
// A call is a retransmission of a cached call if both of the following are true:
//
//   - It is the same call of the same caller. The XID, the host's address, the program, version and
//     procedure, the credential, the TLS identity and every byte of the arguments are equal
//     (drcKey).
//   - It comes from the same client, and not from another process of the host that chose the same
//     XID (drcEntry.answers). It arrives on the connection of the cached call; or over TCP from its
//     source port, because kernels reconnect from the same port; or on a newer connection, while
//     the client has not acknowledged the reply. A client that has its reply does not send the call
//     again.
//
// A call can also arrive after its retransmission: over TCP both are in the sockets of a server
// that stood still, and nothing orders two sockets. Such a call is on a connection that is older
// than the cached call's, and has ended. It is dropped. If its connection has not ended, it is a
// call of another process.
//
// An entry lives for as long as a client retransmits, counted from the last arrival of the call:
//
//   - answeredAge after the reply was acknowledged. Then only a client whose host lost the reply
//     after the acknowledgment retransmits, and it does so when it reconnects. One minute is also
//     the time of a TCP port in TIME_WAIT: another process cannot use the port of the cached call
//     before.
//   - lostAge if the reply was not acknowledged. It is the major timeout of Linux over TCP and RDMA
//     by its defaults, 60 + 120 + 180 seconds. Over UDP, where nothing is acknowledged, it is
//     answeredAge.
//
// At most udpMax entries, and half of all, are of calls by UDP: forged ones evict few others.
//
// States of an entry. Only finished entries are in the ring of the oldest, and count against the
// limits:
//
//	begin --> running --finish--> finished --find, evict: too old, or too many--> removed
//	            |                   ^   |
//	            | joined calls      +---+ replay: the call arrived again
//	            +--finish without a reply--> removed
const (
	answeredAge = 60 * 1e9 // ns
	lostAge     = 360 * 1e9
	udpMax      = 512
)

// drcEntry is a call that must not be executed twice. The fields are protected by the cache's
// mutex.
type drcEntry struct {
	key  drcKey
	same *drcEntry // the next entry of the same key, of another client
	// The connection that the reply was sent on last.
	conn      int64
	addr      netip.AddrPort
	transport Transport

	done      bool
	delivered bool    // the client has acknowledged the reply
	via       Settler // the connection to ask for that
	sent      uint32  // how often the reply was sent
	at        int64   // when the call arrived last, see now
	reply     []byte
	refs      []xdr.Ref // bulk results, copied; never changed afterwards
	size      int       // of both
	waiting   *Call     // retransmissions that arrived during the execution
	record    int32     // in the journal, -1 = none
	doubt     []byte    // note of an execution that a crash interrupted
	slot      int       // in replyCache.udp, counted from 1; 0 = none

	prev, next *drcEntry
}

// Settler is a connection whose transport reports delivered replies only when Settle is called.
type Settler interface {
	// Settle reports every reply that the client has acknowledged by now, see Call.Delivery.
	Settle()
	// Ended reports whether the peer has closed its side of the connection, or reset it.
	Ended() bool
}

type drcVerdict uint8

const (
	drcNew       drcVerdict = iota // execute it and call finish
	drcReplay                      // the reply is in c.Res
	drcJoined                      // the execution in progress will answer it
	drcOvertaken                   // its retransmission came first, and nobody waits for this one
)

type replyCache struct {
	mu       sync.Mutex
	entries  map[drcKey]*drcEntry
	oldest   drcEntry // ring of finished entries, oldest first
	count    int      // of finished entries
	running  int      // other entries
	bytes    int
	countMax int
	bytesMax int
	udp      [udpMax]*drcEntry // finished entries that came by UDP, or nil
	udpNext  int               // the slot of the next one
	journal  journal
	doubts   map[drcKey]*drcEntry // begun before the last crash, and not sent again since
}

// init sets the limits, and loads the journal mem. A quarter of the journal's records is for calls
// in progress, the rest for cached replies.
func (r *replyCache) init(entries, bytes int, mem []byte, now int64) {
	r.entries = make(map[drcKey]*drcEntry)
	r.oldest.next, r.oldest.prev = &r.oldest, &r.oldest
	r.countMax, r.bytesMax = entries, bytes
	if len(mem) < recordLen {
		return
	}
	r.countMax = min(entries, max(len(mem)/recordLen*3/4, 1))
	r.doubts = make(map[drcKey]*drcEntry)
	list := r.journal.load(mem)
	if len(list) == 0 {
		return
	}
	// Replies age only while a server runs: clients wait for it, however long that takes.
	last := list[0].at
	for _, e := range list {
		last = max(last, e.at)
	}
	// The server before may have had the clock of another host, or of an earlier boot. Then the
	// records get times of this one: the next start compares them with those of new calls.
	other := last > now || now-last > answeredAge
	for _, e := range list {
		if other {
			r.journal.date(e.record, now)
		}
		known := false
		for o := r.entries[e.key]; o != nil; o = o.same {
			known = known || o.addr == e.addr && o.transport == e.transport
		}
		switch {
		case known || !e.lives(last):
			r.journal.release(e.record)
		case e.reply == nil:
			if older := r.doubts[e.key]; older != nil {
				r.journal.release(older.record)
			}
			e.at = now
			r.doubts[e.key] = e
		default:
			r.add(e)
			r.enter(e, now)
		}
	}
}

// answers reports whether a call of the entry's key from p is a retransmission of the entry's call.
// Otherwise p is another process of the same host.
func (e *drcEntry) answers(p *Peer) bool { return e.ofClient(p) || !e.delivered && p.Conn > e.conn }

// ofClient reports whether p is the entry's connection, or comes from its port.
func (e *drcEntry) ofClient(p *Peer) bool {
	return p.Addr == e.addr && p.Transport == e.transport && (p.Conn == e.conn || p.Transport != TransportRDMA)
}

// lives reports whether a client may still retransmit.
func (e *drcEntry) lives(now int64) bool {
	if e.delivered || e.transport == TransportUDP {
		return now-e.at <= answeredAge
	}
	return now-e.at <= lostAge
}

// find returns the entry that a call from p at the time now retransmits, or nil. An entry of the
// same connection goes before others.
func (r *replyCache) find(k drcKey, p *Peer, now int64) (found *drcEntry) {
	for e := r.entries[k]; e != nil; {
		this := e
		e = e.same
		switch {
		case this.done && !this.lives(now):
			r.evict(this)
		case this.ofClient(p):
			return this
		case this.answers(p) && (found == nil || this.conn > found.conn):
			found = this
		}
	}
	return found
}

// unsettled returns the connection to ask before find, or nil: it may know that the reply of an
// entry was delivered.
func (r *replyCache) unsettled(k drcKey, p *Peer) Settler {
	for e := r.entries[k]; e != nil; e = e.same {
		if e.done && !e.delivered && !e.ofClient(p) && e.via != nil {
			return e.via
		}
	}
	return nil
}

// overtaken reports whether a retransmission of the call has overtaken it: an entry of the key came
// on a newer connection than p. If an entry is of p's own connection or port, the call is not
// overtaken.
func (r *replyCache) overtaken(k drcKey, p *Peer) bool {
	for e := r.entries[k]; e != nil; e = e.same {
		if e.ofClient(p) {
			return false
		}
		if e.conn > p.Conn {
			return true
		}
	}
	return false
}

func (r *replyCache) add(e *drcEntry) {
	e.same = r.entries[e.key]
	r.entries[e.key] = e
}

func (r *replyCache) remove(e *drcEntry) {
	first := r.entries[e.key]
	if first == e {
		if e.same == nil {
			delete(r.entries, e.key)
		} else {
			r.entries[e.key] = e.same
		}
		return
	}
	for ; first != nil; first = first.same {
		if first.same == e {
			first.same = e.same
			return
		}
	}
}

// enter adds a finished entry, and evicts what is too old or too much.
func (r *replyCache) enter(e *drcEntry, at int64) {
	e.done = true
	r.count++
	r.bytes += e.size
	r.link(e, at)
	if e.transport == TransportUDP {
		if old := r.udp[r.udpNext]; old != nil {
			r.evict(old)
		}
		r.udp[r.udpNext] = e
		e.slot = r.udpNext + 1
		r.udpNext = e.slot % min(udpMax, r.countMax/2+1)
	}
	for r.count > 0 && (r.count > r.countMax || r.bytes > r.bytesMax || !r.oldest.next.lives(at)) {
		r.evict(r.oldest.next)
	}
}

// link makes a finished entry the youngest.
func (r *replyCache) link(e *drcEntry, at int64) {
	e.at = at
	last := r.oldest.prev
	last.next, e.prev, e.next, r.oldest.prev = e, last, &r.oldest, e
}

func (e *drcEntry) unlink() { e.prev.next, e.next.prev = e.next, e.prev }

// intend writes to the journal that a call is about to change something. A call in doubt has a
// record already, with the intent of its interrupted execution.
func (r *replyCache) intend(c *Call, note []byte) {
	e := c.entry
	r.mu.Lock()
	defer r.mu.Unlock()
	if e.record >= 0 {
		return // the record of the interrupted execution
	}
	if len(r.journal.free) == 0 {
		for k, d := range r.doubts {
			if !d.lives(c.start) {
				delete(r.doubts, k)
				r.journal.release(d.record)
			}
		}
	}
	e.record = r.journal.begin(e, c.start, note)
}

// begin looks a call up. The connection that may know of a delivery is settled first, without the
// mutex, because Settle calls Delivered.
func (r *replyCache) begin(k drcKey, c *Call) (*drcEntry, drcVerdict) {
	p := &c.Peer
	r.mu.Lock()
	defer r.mu.Unlock()
	if via := r.unsettled(k, p); via != nil {
		r.mu.Unlock()
		via.Settle()
		r.mu.Lock()
	}
	if c.Settler != nil && r.overtaken(k, p) {
		r.mu.Unlock()
		ended := c.Settler.Ended()
		r.mu.Lock()
		if ended {
			return nil, drcOvertaken
		}
	}
	e := r.find(k, p, c.start)
	switch {
	case e == nil:
		e = &drcEntry{key: k, record: -1}
		e.over(c)
		if d := r.doubts[k]; d != nil && (d.answers(p) || !d.lives(c.start)) {
			delete(r.doubts, k)
			if d.lives(c.start) {
				e.doubt, e.record = d.doubt, d.record
			} else {
				r.journal.release(d.record)
			}
		}
		r.add(e)
		r.running++
		return e, drcNew
	case e.done:
		e.unlink()
		r.link(e, c.start)
		r.replay(e, c)
		return nil, drcReplay
	default:
		e.over(c)
		c.Detach()
		c.next = e.waiting
		e.waiting = c
		return nil, drcJoined
	}
}

// over notes that the connection of c leads to the client, unless a newer one is known.
func (e *drcEntry) over(c *Call) {
	if c.Peer.Conn >= e.conn {
		e.conn, e.addr, e.transport = c.Peer.Conn, c.Peer.Addr, c.Peer.Transport
	}
}

// finish caches the reply in c.Res, or forgets the call if done is false. It answers the
// retransmissions that arrived during the execution, in their order.
func (r *replyCache) finish(c *Call, done bool, at int64) {
	e := c.entry
	c.entry = nil
	r.mu.Lock()
	var waiting *Call
	for w := e.waiting; w != nil; {
		next := w.next
		w.next, waiting = waiting, w
		w = next
	}
	e.waiting = nil
	r.running--
	if done {
		e.store(&c.Res)
		if e.record >= 0 && len(e.refs) == 0 {
			r.journal.finish(e.record, e.reply)
		}
		r.sending(e, c)
		for w := waiting; w != nil; w = w.next {
			r.replay(e, w)
		}
		r.enter(e, at)
	} else {
		r.remove(e)
		r.forget(e)
	}
	r.mu.Unlock()
	for w := waiting; w != nil; {
		next := w.next
		w.next = nil
		w.send(!done)
		w = next
	}
}

func (r *replyCache) evict(e *drcEntry) {
	e.unlink()
	r.remove(e)
	r.count--
	r.bytes -= e.size
	if e.slot > 0 {
		r.udp[e.slot-1] = nil
	}
	r.forget(e)
}

// forget frees the record of an entry.
func (r *replyCache) forget(e *drcEntry) {
	if e.record >= 0 {
		r.journal.release(e.record)
		e.record = -1
	}
}
