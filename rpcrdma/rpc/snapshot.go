package rpc

import (
	"bytes"
	"encoding/gob"
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/rstored/rstored/rpcrdma/xdr"
)

// A snapshot is what a server must tell the one that takes its place: the replies that it
// keeps for retransmissions, oldest first, as a gob value to which fields may be added. The
// journal, which the next server has found at its start, knows only those that are short.

type snapshot struct {
	Replies []snapReply
	Procs   []snapProc
	Faults  []uint64
}

type snapReply struct {
	Peer                  []byte
	XID, Prog, Vers, Proc uint32
	Size                  int
	Sum                   uint64
	At                    int64
	Reply                 []byte
	Refs                  []snapRef
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

// errBusy says that the server is not quiet.
var errBusy = errors.New("a call is still being executed")

func (f *faultCounters) list() []*atomic.Uint64 {
	return []*atomic.Uint64{
		&f.notCalls, &f.rpcMismatch, &f.badCred, &f.progUnavail, &f.progMismatch, &f.procUnavail, &f.garbage, &f.system, &f.panics, &f.dropped,
	}
}

// Snapshot is what the server must not forget. No call is being executed.
func (s *Server) Snapshot() ([]byte, error) {
	var out snapshot
	for i := range s.programs {
		for j := range s.stats[i] {
			p := &s.stats[i][j]
			if n := p.calls.Load(); n > 0 {
				out.Procs = append(out.Procs, snapProc{
					Prog: s.programs[i].Prog, Vers: s.programs[i].Vers, Proc: uint32(j), Calls: n, Errors: p.errors.Load(), Retransmits: p.retransmits.Load(),
					Nanos: p.nanos.Load(), BytesIn: p.bytesIn.Load(), BytesOut: p.bytesOut.Load(),
				})
			}
		}
	}
	for _, n := range s.faults.list() {
		out.Faults = append(out.Faults, n.Load())
	}
	if err := s.cache.snapshot(&out); err != nil {
		return nil, err
	}
	var b bytes.Buffer
	err := gob.NewEncoder(&b).Encode(&out)
	return b.Bytes(), err
}

func (r *replyCache) snapshot(out *snapshot) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.entries) != r.count {
		return errBusy
	}
	for e := r.oldest.next; e != &r.oldest; e = e.next {
		k := &e.key
		x := snapReply{
			Peer: bytes.Clone(k.peer[:]), XID: k.xid, Prog: k.prog, Vers: k.vers, Proc: k.proc, Size: k.size, Sum: k.sum, At: e.at, Reply: e.reply,
		}
		for _, f := range e.refs {
			x.Refs = append(x.Refs, snapRef{f.At, f.Data})
		}
		out.Replies = append(out.Replies, x)
	}
	return nil
}

var errSnapshot = errors.New("the replies that were handed over are damaged")

func damaged(format string, args ...any) error {
	return fmt.Errorf("%w: "+format, append([]any{errSnapshot}, args...)...)
}

// Restore has a server that has served nothing go on from a snapshot. What its journal knows
// of the same calls is in doubt no more. After an error the server is of no use.
func (s *Server) Restore(data []byte) error {
	var in snapshot
	if err := gob.NewDecoder(bytes.NewReader(data)).Decode(&in); err != nil {
		return damaged("%v", err)
	}
	if err := s.cache.restore(&in); err != nil {
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
	for i, n := range s.faults.list() {
		if i < len(in.Faults) {
			n.Add(in.Faults[i])
		}
	}
	return nil
}

func (r *replyCache) restore(in *snapshot) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, e := range r.entries {
		if !e.done {
			return errors.New("replies can be handed over to a server that has served nothing only")
		}
	}
	// The order is that of the snapshot: the entries are made anew, with their records.
	loaded := r.entries
	r.entries = make(map[drcKey]*drcEntry)
	r.oldest.next, r.oldest.prev = &r.oldest, &r.oldest
	r.count, r.bytes = 0, 0
	for i := range in.Replies {
		x := &in.Replies[i]
		k := drcKey{xid: x.XID, prog: x.Prog, vers: x.Vers, proc: x.Proc, size: x.Size, sum: x.Sum}
		if len(x.Peer) != len(k.peer) {
			return damaged("an address of %d bytes", len(x.Peer))
		}
		copy(k.peer[:], x.Peer)
		if r.entries[k] != nil {
			return damaged("a reply twice")
		}
		e := &drcEntry{key: k, reply: x.Reply, size: len(x.Reply), record: -1}
		last := 0
		for _, f := range x.Refs {
			if f.At < last || f.At > len(x.Reply) {
				return damaged("a result behind the end of its reply")
			}
			last = f.At
			e.refs = append(e.refs, xdr.Ref{At: f.At, Data: f.Data})
			e.size += len(f.Data)
		}
		switch l := loaded[k]; {
		case l != nil:
			e.record = l.record
			delete(loaded, k)
		case r.doubts != nil:
			if d, ok := r.doubts[k]; ok {
				e.record = d.record // its reply was too long to be kept there
				delete(r.doubts, k)
			}
		}
		r.entries[k] = e
		r.enter(e, x.At)
	}
	for _, e := range loaded {
		r.forget(e)
	}
	return nil
}
