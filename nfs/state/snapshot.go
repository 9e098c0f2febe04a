package state

import (
	"bytes"
	"encoding/gob"
	"errors"
	"maps"
	"slices"
	"time"

	"github.com/rstored/rstored/nfs"
	"github.com/rstored/rstored/nfs/lock"
	"github.com/rstored/rstored/rpcrdma/rpc"
)

// A snapshot is the whole state of a server, for the process that takes over from it. It is one gob
// stream:
//
//	savedServer     once
//	savedClient     once for each client
//	savedClient{}   the end: without it the stream was cut
//
//	old process                             successor
//	requests stopped, Freeze(true)
//	Snapshot  ----------------------------> Restore
//	                                        on an error it exits, and the old process resumes
//	                                        serves, sends lost callbacks again
//
// Snapshot changes nothing in the old process, so the old process can resume at any time before the
// successor serves.
//
// gob writes the exported fields of a struct and skips the others. So the structs of this package
// export what a successor needs (open, locks, delegRecord, seqOwner, v40, slot, ...), and links
// between them are unexported; Restore makes the links again. A struct named saved... stands for
// one that gob cannot write: with atomics, connections, or a lock of its own.
//
// The successor may be a newer build. Fields may be added: a field that the stream does not have is
// zero, and an unknown one is skipped. A field whose type has changed makes Restore fail. So the
// zero value of a new field must mean what the older build did.
//
// Times are those of the old process's clock; savedServer.Now says what time it was. Restore moves
// them to the clock of the new process, so that the duration of the handover does not count as
// silence of a client.

// SnapshotFuncs describe what belongs to other packages. A nil function says that there is nothing
// of its kind. They are called with the mu of a client held; Connection and Callback also with that
// of a session and of its Backchannel. So they must not call what takes a lock of this package.
// Offload.Progress, Offload.ID and Recall.Number take none.
type SnapshotFuncs struct {
	// Connection returns the number by which the successor knows a connection. ok is false if the
	// successor does not get the connection.
	Connection func(rpc.Caller) (id uint64, ok bool)
	// Callback describes a request that was given to Backchannel.Begin.
	Callback func(what any) PendingCallback
	// Copy describes a copy that goes on after its reply. The copy stands still until the process
	// resumes or ends: bytes copied later would not be in Progress.
	Copy func(*Offload) ([]byte, error)
}

// RestoreFuncs are the counterpart of SnapshotFuncs, in the successor. If Callback or Copy is nil,
// a snapshot that needs it fails. Without the copy the client would wait for CB_OFFLOAD in vain. A
// lost callback would occupy its slot for good.
type RestoreFuncs struct {
	// Connection finds a connection by its number. It returns nil if the connection is gone.
	Connection func(id uint64) rpc.Caller
	// Callback makes a request for Backchannel.Begin, with the same bytes as before. r is the
	// delegation that it recalls, if the client still has that.
	Callback func(p *PendingCallback, r *Recall) any
	// Copy continues a copy.
	Copy func(*Offload, []byte) error
	// Leased takes a lease of the host's kernel on a delegated file again. leave gives it up, see
	// Client.Leased; nil: there is no lease. For a directory it notes that the delegation has to be
	// recalled: notifications of the old process are lost, and so are changes by the host.
	Leased func(f lock.File, write, dir bool) (leave func())
	// Connect makes the connection for callbacks to a client of version 4.0.
	Connect func(*Callback) rpc.Caller
}

// PendingCallback is a callback whose reply the old process has not seen. The successor sends it
// again, unchanged, with the same slot and sequence number (RFC 8881 section 2.10.6.2).
type PendingCallback struct {
	Recall uint32  // number of the delegation that it recalls; 0: none
	Op     uint32  // 0: no operation but CB_SEQUENCE
	Args   []byte  // of the operation, encoded
	Origin *Origin // the referring call; nil: none
}

// Number is the number of the recalled delegation among the states of its client.
func (r *Recall) Number() uint32 { return r.d.Num }

// savedServer is what belongs to no client. Next and Confirms must go on: a client ID or verifier
// that is given out twice would let one client confirm or use the record of another.
type savedServer struct {
	Now                  int64 // Unix nanoseconds
	Boot, Next, Confirms uint32
	Expired              []uint32 // low halves of client IDs
	Swept                int64    // Unix nanoseconds; 0: never
	Possible             bool     // delegations
	Delegations          DelegCounts
	Grace                savedGrace
	Foreign              []savedForeign
	Recalls              []savedRecall
}

// savedGrace is the grace period. The strings are owner strings with the identity in front.
type savedGrace struct {
	On                   bool
	Until                time.Time
	Known, Waiting, List []string
}

type savedForeign struct {
	File lock.File
	List []foreign
}

// savedRecall is an entry of delegShard.recent.
type savedRecall struct {
	File lock.File
	At   int64 // Unix nanoseconds
}

// savedClient is a client record, confirmed or not, with all of its states. Lock stateids are in
// the Locks of their opens. An ID of 0, which no client has, marks the end of the stream.
type savedClient struct {
	ID                         uint64
	Owner                      string
	Verifier                   Verifier
	Principal                  Principal
	Protected                  *Protection
	Bound                      *binding
	Confirmed, Known, NoExport bool
	Listed, Complete           bool
	Renewed, RecalledAny       int64
	NState                     uint32
	Create                     createSlot
	Sessions                   []savedSession
	Opens                      []*open
	Delegs                     []savedDeleg
	Offloads                   []savedOffload
	Notices                    []savedNotice
	V40                        *savedV40
}

// savedSession is a session. Slots are those used so far, with their cached replies: the largest
// part of most snapshots.
type savedSession struct {
	ID    SessionID
	Minor uint32
	Fore  Channel
	Slots []slot
	Back  *savedBack
	Conns []int64 // of Session.conns; the successor's connections have the same numbers
}

type savedBack struct {
	Attr               Channel
	Program            uint32
	Cred               *rpc.Cred
	Paths              []uint64 // numbers of SnapshotFuncs.Connection, the newest last
	Slots              []savedBackSlot
	Had, Proven, Fault bool
}

// savedBackSlot is a slot of a backchannel. Dead and Lost exclude each other.
type savedBackSlot struct {
	Seq  uint32
	Dead bool
	Lost *PendingCallback // nil: none
}

type savedDeleg struct {
	Record delegRecord
	Until  int64 // Unix nanoseconds; 0: not recalled
	Leased bool  // the old process had a lease of the host's kernel
}

type savedOffload struct {
	Num    uint32
	File   lock.File
	Origin Origin
	Copied uint64     // bytes
	Done   bool       // only CB_OFFLOAD is left to do
	Status nfs.Status // if Done
	What   []byte     // of SnapshotFuncs.Copy
}

type savedV40 struct {
	V40                    *v40
	Path                   *savedPath
	OpenOwners, LockOwners []*seqOwner
}

type savedPath struct {
	Callback Callback
	State    pathState
	ProbedAt time.Time
}

// errBusy is the error of Snapshot while a request is executed. The effect of the request may be on
// disk, but its reply is in no cache yet. The client would send it to the successor again, which
// would execute it a second time.
var errBusy = errors.New("a request of version 4 is still being executed")

// Snapshot returns the state of the server. The caller has stopped all requests before: a request
// in execution makes Snapshot fail. A callback in flight is described as one whose reply was lost.
// The byte-range locks themselves are in the snapshot of the lock table.
func (s *Server) Snapshot(now time.Time, funcs SnapshotFuncs) ([]byte, error) {
	var b bytes.Buffer
	enc := gob.NewEncoder(&b)
	if err := enc.Encode(s.saved(now)); err != nil {
		return nil, err
	}
	for _, c := range s.sortedClients() {
		if err := c.encode(enc, &funcs); err != nil {
			return nil, err
		}
	}
	err := enc.Encode(new(savedClient))
	return b.Bytes(), err
}

// saved takes one lock at a time. That gives one consistent state only because all requests stand
// still.
func (s *Server) saved(now time.Time) *savedServer {
	x := &savedServer{
		Now: now.UnixNano(), Boot: s.cfg.Boot, Swept: s.swept.Load(),
		Possible: s.delegs.possible.Load(), Delegations: s.Delegations(),
	}
	s.mu.RLock()
	x.Next, x.Confirms, x.Expired = s.next, s.confirms, slices.Clone(s.expired)
	s.mu.RUnlock()
	for i := range s.files {
		sh := &s.files[i]
		sh.mu.Lock()
		for f, list := range sh.foreign {
			x.Foreign = append(x.Foreign, savedForeign{f, slices.Clone(list)})
		}
		for f, at := range sh.deleg.recent {
			x.Recalls = append(x.Recalls, savedRecall{f, at})
		}
		sh.mu.Unlock()
	}
	g := &s.grace
	g.mu.Lock()
	defer g.mu.Unlock()
	x.Grace = savedGrace{
		On: g.on.Load(), Until: g.until, Known: slices.Collect(maps.Keys(*g.known.Load())),
		Waiting: slices.Collect(maps.Keys(g.waiting)), List: slices.Collect(maps.Keys(g.list)),
	}
	return x
}

// encode appends the client, unless it has ended. It holds mu until gob has read the structs.
func (c *Client) encode(enc *gob.Encoder, funcs *SnapshotFuncs) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.dead {
		return nil
	}
	x := savedClient{
		ID: c.ID, Owner: c.owner, Verifier: c.verifier, Principal: c.principal, Protected: c.protected,
		Bound:     c.bound.Load(),
		Confirmed: c.confirmed.Load(), Known: c.known, NoExport: c.noExport, Listed: c.listed.Load(), Complete: c.complete,
		Renewed: c.renewed.Load(), RecalledAny: c.recalledAny, NState: c.nstate, Create: c.create,
		Opens: slices.Collect(maps.Values(c.opens)),
	}
	for _, s := range c.sessions {
		y, err := s.saved(funcs)
		if err != nil {
			return err
		}
		x.Sessions = append(x.Sessions, y)
	}
	for _, what := range c.states {
		switch w := what.(type) {
		case *deleg:
			x.Delegs = append(x.Delegs, w.saved())
		case *Offload:
			y, err := w.saved(funcs)
			if err != nil {
				return err
			}
			x.Offloads = append(x.Offloads, y)
		}
	}
	for _, n := range c.notices {
		x.Notices = append(x.Notices, n.saved())
	}
	if c.v40 != nil {
		v := c.v40
		opens, lockers := slices.Collect(maps.Values(v.openOwners)), slices.Collect(maps.Values(v.lockOwners))
		if slices.ContainsFunc(slices.Concat(opens, lockers), func(o *seqOwner) bool { return o.busy > 0 }) {
			return errBusy
		}
		x.V40 = &savedV40{V40: v, Path: v.path.saved(), OpenOwners: opens, LockOwners: lockers}
	}
	return enc.Encode(&x)
}

func (x *Session) saved(funcs *SnapshotFuncs) (savedSession, error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	out := savedSession{ID: x.ID, Minor: x.Minor, Fore: x.Fore, Slots: slices.Clone(x.slots)}
	if slices.ContainsFunc(x.slots, func(k slot) bool { return k.busy }) {
		return out, errBusy
	}
	if list := x.conns.Load(); list != nil {
		out.Conns = *list
	}
	if x.Back != nil {
		out.Back = x.Back.saved(funcs)
	}
	return out, nil
}

func (b *Backchannel) saved(funcs *SnapshotFuncs) *savedBack {
	b.mu.Lock()
	defer b.mu.Unlock()
	out := &savedBack{Attr: b.attr, Program: b.program, Cred: b.cred, Had: b.had, Proven: b.proven, Fault: b.fault}
	for _, path := range b.paths {
		if path.Connected() && funcs.Connection != nil {
			if id, ok := funcs.Connection(path); ok {
				out.Paths = append(out.Paths, id)
			}
		}
	}
	for i := range b.slots {
		k := &b.slots[i]
		y := savedBackSlot{Seq: k.seq, Dead: k.state == backDead}
		if k.state == backLost || k.state == backBusy {
			y.Lost = new(PendingCallback)
			if funcs.Callback != nil {
				*y.Lost = funcs.Callback(k.what)
			}
		}
		out.Slots = append(out.Slots, y)
	}
	return out
}

func (d *deleg) saved() savedDeleg {
	sh := d.c.s.shardOfFile(d.File)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	return savedDeleg{d.delegRecord, d.until.Load(), d.leave != nil}
}

func (o *Offload) saved(funcs *SnapshotFuncs) (x savedOffload, err error) {
	x = savedOffload{Num: o.num, File: o.File, Origin: o.Origin}
	x.Copied, x.Done, x.Status = o.Progress()
	if funcs.Copy == nil {
		return x, errors.New("a copy that goes on after its reply cannot be handed over")
	}
	x.What, err = funcs.Copy(o)
	return x, err
}

func (p *Path) saved() *savedPath {
	if p == nil {
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return &savedPath{p.Callback, p.state, p.probedAt}
}

// Exports lists the exports on which there is an open, a delegation or a reservation.
func (s *Server) Exports() []uint32 {
	set := make(map[uint32]bool)
	for i := range s.files {
		sh := &s.files[i]
		sh.mu.Lock()
		for f := range sh.m {
			set[f.Export] = true
		}
		for f := range sh.deleg.m {
			set[f.Export] = true
		}
		for f := range sh.foreign {
			set[f.Export] = true
		}
		sh.mu.Unlock()
	}
	return slices.Sorted(maps.Keys(set))
}
