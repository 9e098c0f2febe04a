package nfs4

import (
	"slices"
	"sync"
	"sync/atomic"

	"github.com/rstored/rstored/nfs"
	"github.com/rstored/rstored/nfs/lock"
	"github.com/rstored/rstored/nfs/state"
	"github.com/rstored/rstored/rpcrdma/xdr"
)

// A client that has a directory delegated learns of changes by CB_NOTIFY (RFC 8881 section 20.4).
// The client may execute two callbacks in any order. So the server sends the notifications of one
// delegation one callback after another. Changes during a callback go into the next one:
//
//	other client     server                         client with the delegation
//	CREATE a  ---->  CB_NOTIFY{add a}         --->
//	CREATE b  ---->  queued
//	REMOVE a  ---->  queued
//	                                          <---  OK
//	                 CB_NOTIFY{add b,
//	                           remove a}      --->
//
// If a notification cannot be sent, or the client does not acknowledge it, the server recalls the
// delegation, and the client reads the directory again.

// Bounds of notifications that wait: for one delegation, and for all. If one is exceeded, the
// delegation is recalled. noticeBytes bounds one callback; no single notification is as long.
const (
	noticesOne  = 32
	noticesAll  = 8192
	noticeBytes = 1536
)

// dirNotices are the notifications that wait or are being sent.
type dirNotices struct {
	sent atomic.Uint64 // CB_NOTIFYs

	mu      sync.Mutex // taken last
	queues  map[state.Stateid]*noticeQueue
	waiting int // in all queues

	// restored are the directories whose delegations were handed over. Pause(false) recalls them.
	restored []lock.File
}

// noticeQueue has the encoded notifications of a delegation that wait for the callback under way.
// It exists while a callback is under way.
type noticeQueue struct{ list [][]byte }

// notice is CB_NOTIFY: stateid, nfs_fh4, notify4<>.
type notice struct {
	state.Recall
	n    uint32
	body []byte
}

func (*notice) op() uint32              { return opCBNotify }
func (n *notice) refers() *state.Origin { return &n.Origin }

func (n *notice) encode(s *Server, e *xdr.Encoder) {
	EncodeStateid(e, n.ID)
	s.encodeFile(e, &n.File)
	e.Uint32(n.n)
	e.Fixed(n.body)
}

// answered implements request.
func (n *notice) answered(s *Server, received bool, st nfs.Status, _ *xdr.Decoder) {
	if received && st == nfs.OK {
		s.notifyMore(&n.Recall)
		return
	}
	s.renounce(&n.Recall)
}

// dirChanged notifies the clients that have a directory delegated of a change. It does not wait.
func (s *Server) dirChanged(dir lock.File, v *nfs.DirEvent) {
	list := s.state.Notified(dir, noticesOf(v))
	if len(list) == 0 {
		return
	}
	var e xdr.Encoder
	encodeNotice(&e, v)
	for i := range list {
		r := &list[i]
		switch first, ok := s.dirs.add(r.ID, e.B); {
		case !ok:
			s.renounce(r)
		case first:
			s.notifyMore(r)
		}
	}
}

// add queues a notification. first says that no callback is under way, so the caller has to send
// one. ok is false if too many wait.
func (d *dirNotices) add(id state.Stateid, body []byte) (first, ok bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	q := d.queues[id]
	if q != nil && len(q.list) >= noticesOne || d.waiting >= noticesAll {
		return false, false
	}
	if first = q == nil; first {
		if d.queues == nil {
			d.queues = make(map[state.Stateid]*noticeQueue)
		}
		q = new(noticeQueue)
		d.queues[id] = q
	}
	q.list = append(q.list, body)
	d.waiting++
	return first, true
}

// take removes notifications for one callback from the queue. If there is none, the queue ends.
func (d *dirNotices) take(id state.Stateid) (n uint32, body []byte) {
	d.mu.Lock()
	defer d.mu.Unlock()
	q := d.queues[id]
	if q == nil {
		return 0, nil
	}
	for len(q.list) > 0 && (n == 0 || len(body)+len(q.list[0]) <= noticeBytes) {
		body = append(body, q.list[0]...)
		q.list = q.list[1:]
		d.waiting--
		n++
	}
	if n == 0 {
		delete(d.queues, id)
	}
	return n, body
}

// drop ends a queue.
func (d *dirNotices) drop(id state.Stateid) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if q := d.queues[id]; q != nil {
		d.waiting -= len(q.list)
		delete(d.queues, id)
	}
}

// notifyMore sends the notifications that wait for a client, if there are any. No callback of the
// delegation may be under way.
func (s *Server) notifyMore(r *state.Recall) {
	n, body := s.dirs.take(r.ID)
	if n == 0 {
		return
	}
	what := &notice{Recall: *r, n: n, body: body}
	if slices.ContainsFunc(r.Client.Backchannels(), func(x *state.Session) bool {
		return x.Back.Allows(state.BackRequestMin+len(body)) && s.callBack(x, what)
	}) {
		s.dirs.sent.Add(1)
		return
	}
	s.renounce(r)
}

// renounce recalls a delegation whose client could not be notified.
func (s *Server) renounce(r *state.Recall) {
	s.dirs.drop(r.ID)
	s.state.Renounce(s.cfg.Now(), r)
}
