package rpc

import (
	"bytes"
	"encoding/gob"
	"errors"
	"fmt"
	"net/netip"

	"github.com/rstored/rstored/rpcrdma/xdr"
)

// A snapshot is what a server hands over to its successor: the replies of the reply cache, oldest
// first, and its counters. It is a gob value, to which fields may be added. The journal, which the
// successor has read at its start, has only the short replies.

type snapshot struct {
	Now     int64 // BootTime of the snapshot; versions before 0.2 have none
	Replies []snapReply
	Procs   []snapProc
	Faults  []uint64
}

type snapReply struct {
	XID       uint32
	Key       []byte // the sum of a drcKey; versions before 0.2 have none
	Addr      netip.AddrPort
	Transport Transport
	Conn      int64
	Delivered bool
	Record    int32 // in the journal, counted from 1
	At        int64
	Reply     []byte
	Refs      []snapRef
}

// snapRef is a bulk result and where it belongs.
type snapRef struct {
	At   int
	Data []byte
}

// snapProc are the counts of a procedure.
type snapProc struct {
	Prog, Vers, Proc           uint32
	Calls, Errors, Retransmits uint64
	Nanos, BytesIn, BytesOut   uint64
}

// errBusy means that the server is not quiescent.
var errBusy = errors.New("a call is still being executed")

// Snapshot returns the snapshot. No call is being executed.
func (s *Server) Snapshot() ([]byte, error) {
	var out snapshot
	for i := range s.programs {
		for j := range s.stats[i] {
			p := &s.stats[i][j]
			if n := p.calls.Load(); n > 0 {
				out.Procs = append(out.Procs, snapProc{
					Prog: s.programs[i].Prog, Vers: s.programs[i].Vers, Proc: uint32(j), Calls: n, Errors: p.errors.Load(),
					Retransmits: p.retransmits.Load(),
					Nanos:       p.nanos.Load(), BytesIn: p.bytesIn.Load(), BytesOut: p.bytesOut.Load(),
				})
			}
		}
	}
	for i := range s.faults {
		out.Faults = append(out.Faults, s.faults[i].Load())
	}
	if err := s.cache.snapshot(&out); err != nil {
		return nil, err
	}
	var b bytes.Buffer
	err := gob.NewEncoder(&b).Encode(&out)
	return b.Bytes(), err
}

func (r *replyCache) snapshot(out *snapshot) error {
	r.settle()
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.running > 0 {
		return errBusy
	}
	out.Now = BootTime()
	for e := r.oldest.next; e != &r.oldest; e = e.next {
		x := snapReply{
			XID: e.key.xid, Key: bytes.Clone(e.key.sum[:]), Addr: e.addr, Transport: e.transport, Conn: e.conn,
			Delivered: e.delivered,
			Record:    e.record + 1, At: e.at, Reply: e.reply,
		}
		for _, f := range e.refs {
			x.Refs = append(x.Refs, snapRef{f.At, f.Data})
		}
		out.Replies = append(out.Replies, x)
	}
	return nil
}

// settle makes the connections report which replies were delivered.
func (r *replyCache) settle() {
	ask := make(map[Settler]struct{})
	r.mu.Lock()
	for e := r.oldest.next; e != &r.oldest; e = e.next {
		if e.via != nil {
			ask[e.via] = struct{}{}
		}
	}
	r.mu.Unlock()
	for s := range ask {
		s.Settle()
	}
}

var errSnapshot = errors.New("the replies that were handed over are damaged")

func damaged(format string, args ...any) error {
	return fmt.Errorf("%w: "+format, append([]any{errSnapshot}, args...)...)
}

// Restore makes a server that has served nothing continue from a snapshot. A call of the journal
// that the snapshot has with its reply is no longer in doubt. After an error the server must not be
// used.
//
// moved says that the snapshot is of another host, or of another boot. Its connections have ended,
// and their numbers mean nothing here.
func (s *Server) Restore(data []byte, moved bool) error {
	var in snapshot
	if err := gob.NewDecoder(bytes.NewReader(data)).Decode(&in); err != nil {
		return damaged("%v", err)
	}
	if err := s.cache.restore(&in, moved); err != nil {
		return err
	}
	for i := range in.Procs {
		x := &in.Procs[i]
		for j := range s.programs {
			if p := &s.programs[j]; p.Prog == x.Prog && p.Vers == x.Vers && uint64(x.Proc) < uint64(len(p.Procs)) {
				n := &s.stats[j][x.Proc]
				n.calls.Add(x.Calls)
				n.errors.Add(x.Errors)
				n.retransmits.Add(x.Retransmits)
				n.nanos.Add(x.Nanos)
				n.bytesIn.Add(x.BytesIn)
				n.bytesOut.Add(x.BytesOut)
			}
		}
	}
	for i, n := range in.Faults[:min(len(in.Faults), len(s.faults))] {
		s.faults[i].Add(n)
	}
	return nil
}

func (r *replyCache) restore(in *snapshot, moved bool) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.running > 0 {
		return errors.New("replies can be handed over to a server that has served nothing only")
	}
	// The entries are made anew, with their journal records, so that they have the order of the
	// snapshot.
	loaded := r.entries
	r.entries = make(map[drcKey]*drcEntry)
	r.oldest.next, r.oldest.prev = &r.oldest, &r.oldest
	r.count, r.bytes, r.udp = 0, 0, [udpMax]*drcEntry{}
	shift := in.shift(moved)
	for i := range in.Replies {
		x := &in.Replies[i]
		if x.Key == nil {
			continue // an old version, whose keys match no call of this one
		}
		e := &drcEntry{
			key: drcKey{xid: x.XID}, conn: x.Conn, addr: x.Addr, transport: x.Transport, delivered: x.Delivered,
			reply: x.Reply, size: len(x.Reply), record: -1,
		}
		if copy(e.key.sum[:], x.Key) < len(e.key.sum) || len(x.Key) > len(e.key.sum) {
			return damaged("a key of %d bytes", len(x.Key))
		}
		for o := r.entries[e.key]; o != nil; o = o.same {
			if o.conn == e.conn && o.addr == e.addr && o.transport == e.transport {
				return damaged("a reply twice")
			}
		}
		last := 0
		for _, f := range x.Refs {
			if f.At < last || f.At > len(x.Reply) {
				return damaged("a result behind the end of its reply")
			}
			last = f.At
			e.refs = append(e.refs, xdr.Ref{At: f.At, Data: f.Data})
			e.size += len(f.Data)
		}
		e.record = r.claim(loaded, e.key, x.Record-1)
		r.add(e)
		r.enter(e, x.At+shift)
	}
	if moved {
		r.disconnect()
	}
	for _, e := range loaded {
		for ; e != nil; e = e.same {
			r.forget(e)
		}
	}
	return nil
}

// shift is the difference between the clock of this process and that of the old one. It is counted
// from the snapshot: no server runs between the snapshot and now, so replies do not age.
func (in *snapshot) shift(moved bool) int64 {
	if in.Now == 0 && moved && len(in.Replies) > 0 {
		return BootTime() - in.Replies[len(in.Replies)-1].At // as if the last call had just arrived
	}
	if in.Now == 0 {
		return 0
	}
	return BootTime() - in.Now
}

// disconnect sets the connection of all entries to 0, so that every new connection is newer. Some
// entries of one client may then differ in nothing. The youngest of them stays.
func (r *replyCache) disconnect() {
	for e := r.oldest.next; e != &r.oldest; {
		this := e
		e = e.next
		this.conn = 0
		for o := r.entries[this.key]; o != nil; o = o.same {
			if o != this && o.addr == this.addr && o.transport == this.transport {
				r.evict(this)
				break
			}
		}
	}
}

// claim takes record i of the journal for an entry of the key. It returns -1 if the record is not
// of a call of this key.
func (r *replyCache) claim(loaded map[drcKey]*drcEntry, k drcKey, i int32) int32 {
	if i < 0 {
		return -1
	}
	for l := loaded[k]; l != nil; l = l.same {
		if l.record == i {
			l.record = -1
			return i
		}
	}
	if d := r.doubts[k]; d != nil && d.record == i { // its reply was too long for the journal
		delete(r.doubts, k)
		return i
	}
	return -1
}
