package state

import (
	"bytes"
	"encoding/gob"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"net/netip"
	"slices"
	"time"

	"github.com/rstored/rstored/nfs"
	"github.com/rstored/rstored/nfs/lock"
	"github.com/rstored/rstored/rpcrdma/rpc"
)

// A snapshot is all that a server remembers, for the process that takes its place. It is a
// stream of gob values: a head, and the clients. Fields may be added; one that is
// missing is zero. Times are relative to the moment of the snapshot, so that what it takes to
// hand it over is nobody's silence.

// Carry is what the snapshot of a server needs to know of the rooms around it.
type Carry struct {
	// Connection is the number by which the next process will know a connection. ok is
	// false for one that it will not have. nil: it has none.
	Connection func(rpc.Caller) (id uint64, ok bool)
	// Asked describes a callback that a backchannel was given.
	Asked func(what any) Asked
	// Copy describes a copy that goes on after its reply.
	Copy func(*Offload) ([]byte, error)
}

// Carried is the other side of Carry.
type Carried struct {
	// Connection finds a connection by its number; nil: it is not there.
	Connection func(id uint64) rpc.Caller
	// Asked makes a callback. r is the delegation that it asks for, if that is still there.
	Asked func(a *Asked, r *Recall) any
	// Copy goes on with a copy.
	Copy func(*Offload, []byte) error
	// Leased has the store tell of what others do with a delegated file, as it did for the
	// process of before. leave is what Client.Leased is given; nil: nobody tells.
	Leased func(f lock.File, write bool) (leave func())
	// Connect makes the Caller of a client of version 4.0.
	Connect func(netip.AddrPort) rpc.Caller
}

// Asked is a callback of which it is not known whether it has arrived: it is sent again as it
// was.
type Asked struct {
	Recall uint32 // number of the delegation that it asks for; 0: of none
	Op     uint32 // 0: it asks for nothing
	Args   []byte
	Origin *Origin
}

// Number is that of a recalled delegation among the states of its client.
func (r *Recall) Number() uint32 { return r.d.num }

// never is a time, relative, that was not.
const never = math.MinInt64

type snapHead struct {
	Boot, Next, Confirms uint32
	Lapsed               []uint32
	Swept                int64
	Clients              int
	Possible             bool // delegations
	Given, Recalls       uint64
	Denied, Revoked      uint64
	Grace                snapGrace
	Foreign              []snapForeign
	Cool                 []snapCool
}

type snapGrace struct {
	On             bool
	Until          int64
	Known, Waiting []string
	Here, Gone     []string // of the list: with state of this start, or without
}

type snapFile struct {
	Export uint32
	Handle []byte
}

type snapForeign struct {
	File         snapFile
	Client, ID   string
	Host         netip.Addr
	Access, Deny uint8
}

type snapCool struct {
	File snapFile
	At   int64
}

type snapClient struct {
	ID                      uint64
	Owner                   string
	Verifier                []byte
	Principal               Principal
	Bound                   *snapBound // nil: the process of before did not note it
	Confirmed, Known        bool
	Stranger                bool
	Listed, Complete        bool
	Renewed, Relieved       int64
	NState                  uint32
	CreateSeq, CreateStatus uint32
	Create                  snapCreated
	Sessions                []snapSession
	Opens                   []snapOpen
	Locks                   []snapLocks
	Delegs                  []snapDeleg
	Offloads                []snapOffload
	V40                     *snapV40
}

type snapBound struct {
	Security  uint8
	Name      string
	Partition uint16
	Hosts     []netip.Addr
}

func boundSnap(b *binding) *snapBound {
	if b == nil {
		return nil
	}
	return &snapBound{uint8(b.identity.Security), b.identity.Name, b.identity.Partition, b.hosts}
}

func bindingOf(b *snapBound) *binding {
	if b == nil {
		return nil
	}
	return &binding{Identity{rpc.Security(b.Security), b.Name, b.Partition}, b.Hosts}
}

type snapCreated struct {
	ID       []byte
	Sequence uint32
	Fore     Channel
	Bound    bool
}

type snapSession struct {
	ID    []byte
	Minor uint32
	Fore  Channel
	Slots []snapSlot
	Back  *snapBack
}

type snapSlot struct {
	Seq    uint32
	Digest uint64
	Cached bool
	Reply  []byte
}

type snapBack struct {
	Attr               Channel
	Program            uint32
	Cred               *rpc.Cred
	Paths              []uint64
	Slots              []snapBackSlot
	Had, Proven, Fault bool
}

type snapBackSlot struct {
	Seq        uint32
	Lost, Dead bool
	What       *Asked
}

type snapOpen struct {
	Owner             string
	File              snapFile
	Num, Seq          uint32
	Access, Deny      uint8
	Accesses, Denials uint8
	Pinned            bool
}

type snapLocks struct {
	Owner    string
	File     snapFile
	Num, Seq uint32
	Open     uint32
	Any      bool
}

type snapOrigin struct {
	Session        []byte
	Slot, Sequence uint32
}

type snapDeleg struct {
	File              snapFile
	Num, Seq          uint32
	Write             bool
	From              snapOrigin
	Given             int64
	Change, Saw       uint64
	Leased, Pinned    bool
	Revoked, Recalled bool
	Told              bool
	Until, Last       int64
}

type snapOffload struct {
	Num    uint32
	File   snapFile
	Origin snapOrigin
	Copied uint64
	Done   bool
	Status uint32
	What   []byte
}

type snapCallback struct {
	Program, Ident uint32
	Netid, Addr    string
	To             netip.AddrPort
	Cred           *rpc.Cred
}

type snapV40 struct {
	Confirm  []byte
	Callback snapCallback
	Update   *snapUpdate
	Path     *snapPath
	Owners   []snapOwner
	Lockers  []snapOwner
	Reaped   int64
}

type snapUpdate struct {
	Confirm  []byte
	Callback snapCallback
}

type snapPath struct {
	Callback snapCallback
	State    uint8
	Asked    int64
}

type snapOwner struct {
	Name             string
	Seq              uint32
	Digest           uint64
	Status           uint32
	Result           []byte
	File             *snapFile
	Confirmed, Fresh bool
	Closed, Trial    uint32
	Used             int64
}

// errBusy says that the server is not quiet.
var errBusy = errors.New("a request of version 4 is still being executed")

// snapper makes a snapshot.
type snapper struct {
	s   *Server
	now int64
	by  Carry
}

func (p *snapper) rel(at int64) int64 {
	if at == 0 {
		return never
	}
	return at - p.now
}

func fileSnap(f lock.File) snapFile {
	return snapFile{Export: f.Export, Handle: bytes.Clone(f.Handle.Bytes())}
}

func originSnap(o Origin) snapOrigin {
	return snapOrigin{Session: bytes.Clone(o.Session[:]), Slot: o.Slot, Sequence: o.Sequence}
}

func callbackSnap(c *Callback) snapCallback {
	return snapCallback{Program: c.Program, Ident: c.Ident, Netid: c.Netid, Addr: c.Addr, To: c.To, Cred: c.Cred}
}

// Snapshot is what the server remembers. No request is being executed; what clients are being
// asked counts as not arrived. The byte-range locks themselves are not in it.
func (s *Server) Snapshot(now time.Time, by Carry) ([]byte, error) {
	p := &snapper{s: s, now: now.UnixNano(), by: by}
	var b bytes.Buffer
	enc := gob.NewEncoder(&b)
	list := s.sortedClients()
	var clients []*snapClient
	for _, c := range list {
		x, err := p.client(c)
		if err != nil {
			return nil, err
		}
		if x != nil {
			clients = append(clients, x)
		}
	}
	head := p.head()
	head.Clients = len(clients)
	if err := enc.Encode(head); err != nil {
		return nil, err
	}
	for _, c := range clients {
		if err := enc.Encode(c); err != nil {
			return nil, err
		}
	}
	return b.Bytes(), nil
}

func (p *snapper) head() *snapHead {
	s, h := p.s, new(snapHead)
	s.mu.RLock()
	h.Boot, h.Next, h.Confirms, h.Lapsed = s.cfg.Boot, s.next, s.confirms, slices.Clone(s.lapsed)
	h.Swept = p.rel(s.swept.Load())
	s.mu.RUnlock()
	n := &s.delegs
	h.Possible = n.possible.Load()
	h.Given, h.Recalls, h.Denied, h.Revoked = n.given.Load(), n.recalls.Load(), n.denied.Load(), n.revoked.Load()
	for i := range s.files {
		sh := &s.files[i]
		sh.mu.Lock()
		for f, list := range sh.foreign {
			for i := range list {
				x := &list[i]
				h.Foreign = append(h.Foreign, snapForeign{File: fileSnap(f), Client: x.owner.Client, ID: x.owner.ID, Host: x.host, Access: x.access, Deny: x.deny})
			}
		}
		for f, at := range sh.deleg.cool {
			h.Cool = append(h.Cool, snapCool{fileSnap(f), p.rel(at)})
		}
		sh.mu.Unlock()
	}
	g := &s.grace
	g.mu.Lock()
	defer g.mu.Unlock()
	h.Grace.On, h.Grace.Until = g.on.Load(), never
	if !g.until.IsZero() {
		h.Grace.Until = p.rel(g.until.UnixNano())
	}
	for o := range g.known {
		h.Grace.Known = append(h.Grace.Known, o)
	}
	for o := range g.waiting {
		h.Grace.Waiting = append(h.Grace.Waiting, o)
	}
	for o, c := range g.list {
		if c != nil {
			h.Grace.Here = append(h.Grace.Here, o)
		} else {
			h.Grace.Gone = append(h.Grace.Gone, o)
		}
	}
	return h
}

// client is nil for one that is gone.
func (p *snapper) client(c *Client) (*snapClient, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.dead {
		return nil, nil
	}
	r := c.create.result
	x := &snapClient{
		ID: c.ID, Owner: c.owner, Verifier: bytes.Clone(c.verifier[:]), Principal: c.principal,
		Confirmed: c.confirmed.Load(), Known: c.known, Listed: c.listed.Load(), Complete: c.complete,
		Renewed: c.renewed.Load() - p.now, Relieved: p.rel(c.relieved), NState: c.nstate, Bound: boundSnap(c.bound.Load()), Stranger: c.stranger,
		CreateSeq: c.create.seq, CreateStatus: uint32(c.create.status),
		Create: snapCreated{ID: bytes.Clone(r.ID[:]), Sequence: r.Sequence, Fore: r.Fore, Bound: r.Bound},
	}
	for _, s := range c.sessions {
		y, err := p.session(s)
		if err != nil {
			return nil, err
		}
		x.Sessions = append(x.Sessions, *y)
	}
	for _, o := range c.opens {
		x.Opens = append(x.Opens, snapOpen{
			Owner: o.key.owner, File: fileSnap(o.key.file), Num: o.num, Seq: o.seq,
			Access: o.access, Deny: o.deny, Accesses: o.accesses, Denials: o.denials,
			Pinned: o.pinned,
		})
		// In the order in which CLOSE ends them.
		for _, l := range o.locks {
			x.Locks = append(x.Locks, snapLocks{
				Owner: l.key.owner, File: fileSnap(l.key.file), Num: l.num, Seq: l.seq, Open: o.num, Any: l.any,
			})
		}
	}
	for _, what := range c.states {
		switch w := what.(type) {
		case *deleg:
			x.Delegs = append(x.Delegs, p.deleg(w))
		case *Offload:
			y, err := p.offload(w)
			if err != nil {
				return nil, err
			}
			x.Offloads = append(x.Offloads, *y)
		}
	}
	if c.v40 == nil {
		return x, nil
	}
	var err error
	x.V40, err = p.v40(c.v40)
	return x, err
}

func (p *snapper) session(x *Session) (*snapSession, error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	out := &snapSession{ID: bytes.Clone(x.ID[:]), Minor: x.Minor, Fore: x.Fore}
	for i := range x.slots {
		k := &x.slots[i]
		if k.busy {
			return nil, errBusy
		}
		out.Slots = append(out.Slots, snapSlot{Seq: k.seq, Digest: k.digest, Cached: k.cached, Reply: bytes.Clone(k.reply)})
	}
	if x.Back != nil {
		out.Back = p.back(x.Back)
	}
	return out, nil
}

func (p *snapper) back(b *Backchannel) *snapBack {
	b.mu.Lock()
	defer b.mu.Unlock()
	out := &snapBack{Attr: b.attr, Program: b.program, Cred: b.cred, Had: b.had, Proven: b.proven, Fault: b.fault}
	for _, path := range b.paths {
		if !path.Alive() || p.by.Connection == nil {
			continue
		}
		if id, ok := p.by.Connection(path); ok {
			out.Paths = append(out.Paths, id)
		}
	}
	for i := range b.slots {
		k := &b.slots[i]
		y := snapBackSlot{Seq: k.seq, Lost: k.state == backLost || k.state == backBusy, Dead: k.state == backDead}
		if y.Lost {
			y.What = new(Asked)
			if p.by.Asked != nil {
				*y.What = p.by.Asked(k.what)
			}
		}
		out.Slots = append(out.Slots, y)
	}
	return out
}

func (p *snapper) deleg(d *deleg) snapDeleg {
	sh := p.s.shardOfFile(d.file)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	x := snapDeleg{
		File: fileSnap(d.file), Num: d.num, Seq: d.seq, Write: d.write, From: originSnap(d.from), Given: d.given.UnixNano() - p.now,
		Change: d.change, Saw: d.saw, Leased: d.leave != nil, Pinned: d.pinned, Revoked: d.revoked, Recalled: d.recalled, Told: d.told, Until: never, Last: never,
	}
	if d.recalled {
		x.Until, x.Last = d.until.Load()-p.now, d.last-p.now
	}
	return x
}

func (p *snapper) offload(o *Offload) (*snapOffload, error) {
	n, done, st := o.Progress()
	x := &snapOffload{Num: o.num, File: fileSnap(o.File), Origin: originSnap(o.Origin), Copied: n, Done: done, Status: uint32(st)}
	if p.by.Copy == nil {
		return nil, errors.New("a copy that goes on after its reply cannot be handed over")
	}
	var err error
	x.What, err = p.by.Copy(o)
	return x, err
}

func (p *snapper) v40(v *v40) (*snapV40, error) {
	x := &snapV40{Confirm: bytes.Clone(v.confirm[:]), Callback: callbackSnap(&v.callback), Reaped: p.rel(v.reaped)}
	if u := v.update; u != nil {
		x.Update = &snapUpdate{Confirm: bytes.Clone(u.confirm[:]), Callback: callbackSnap(&u.callback)}
	}
	if t := v.path; t != nil {
		t.mu.Lock()
		x.Path = &snapPath{Callback: callbackSnap(&t.Callback), State: uint8(t.state), Asked: never}
		if !t.asked.IsZero() {
			x.Path.Asked = t.asked.UnixNano() - p.now
		}
		t.mu.Unlock()
	}
	for _, m := range []struct {
		from map[string]*seqOwner
		to   *[]snapOwner
	}{{v.openOwners, &x.Owners}, {v.lockOwners, &x.Lockers}} {
		for _, o := range m.from {
			if o.busy > 0 {
				return nil, errBusy
			}
			y := snapOwner{
				Name: o.name, Seq: o.seq, Digest: o.digest, Status: uint32(o.last.Status), Result: bytes.Clone(o.last.Result),
				Confirmed: o.confirmed, Fresh: o.fresh, Closed: o.closed, Used: p.rel(o.used),
			}
			if o.last.File != (lock.File{}) {
				f := fileSnap(o.last.File)
				y.File = &f
			}
			if o.trial != nil {
				y.Trial = o.trial.num
			}
			*m.to = append(*m.to, y)
		}
	}
	return x, nil
}

// errSnapshot is what all is that a snapshot cannot be.
var errSnapshot = errors.New("the state of version 4 that was handed over is damaged")

func damaged(format string, args ...any) error {
	return fmt.Errorf("%w: "+format, append([]any{errSnapshot}, args...)...)
}

// restorer restores a snapshot.
type restorer struct {
	s   *Server
	now int64
	by  Carried
}

func (r *restorer) abs(rel int64) int64 {
	if rel == never {
		return 0
	}
	return r.now + rel
}

func (r *restorer) time(rel int64) time.Time {
	if rel == never {
		return time.Time{}
	}
	return time.Unix(0, r.now+rel)
}

func fileOf(f *snapFile) (lock.File, error) {
	out := lock.File{Export: f.Export}
	n := len(f.Handle)
	if n == 0 || n > len(out.Handle.B) {
		return lock.File{}, damaged("a handle of %d bytes", n)
	}
	out.Handle.Len = uint8(n)
	copy(out.Handle.B[:], f.Handle)
	return out, nil
}

// fixed copies what has a length of its own.
func fixed(to, from []byte) error {
	if len(from) != len(to) {
		return damaged("%d bytes where %d are to be", len(from), len(to))
	}
	copy(to, from)
	return nil
}

func originOf(o *snapOrigin) (out Origin, err error) {
	out.Slot, out.Sequence = o.Slot, o.Sequence
	return out, fixed(out.Session[:], o.Session)
}

func callbackOf(c *snapCallback) Callback {
	return Callback{Program: c.Program, Ident: c.Ident, Netid: c.Netid, Addr: c.Addr, To: c.To, Cred: c.Cred}
}

// Restore makes a server without clients one that goes on from a snapshot, with its start,
// its grace period and its clients. The lock table has been restored before. After an error the
// server is of no use.
func (s *Server) Restore(data []byte, now time.Time, by Carried) (err error) {
	if len(s.clients) > 0 {
		return errors.New("state of version 4 can be handed over to a server without clients only")
	}
	defer func() {
		if p := recover(); p != nil {
			err = damaged("%v", p)
		}
	}()
	r := &restorer{s: s, now: now.UnixNano(), by: by}
	dec := gob.NewDecoder(bytes.NewReader(data))
	var h snapHead
	if err := dec.Decode(&h); err != nil {
		return damaged("%v", err)
	}
	if err := r.head(&h); err != nil {
		return err
	}
	for range h.Clients {
		var c snapClient
		if err := dec.Decode(&c); err != nil {
			return damaged("%v", err)
		}
		if err := r.client(&c); err != nil {
			return fmt.Errorf("client %#016x: %w", c.ID, err)
		}
	}
	if err := dec.Decode(new(snapClient)); err != io.EOF {
		return damaged("more than it says")
	}
	return nil
}

func (r *restorer) head(h *snapHead) error {
	s := r.s
	if h.Boot == 0 || h.Boot == 1<<32-1 || len(h.Lapsed) > lapsedMax {
		return damaged("start %#x, %d lapsed clients", h.Boot, len(h.Lapsed))
	}
	s.cfg.Boot, s.next, s.confirms, s.lapsed = h.Boot, h.Next, h.Confirms, h.Lapsed
	s.swept.Store(r.abs(h.Swept))
	n := &s.delegs
	n.possible.Store(h.Possible)
	n.given.Store(h.Given)
	n.recalls.Store(h.Recalls)
	n.denied.Store(h.Denied)
	n.revoked.Store(h.Revoked)
	for i := range h.Foreign {
		x := &h.Foreign[i]
		f, err := fileOf(&x.File)
		if err != nil {
			return err
		}
		sh := s.shardOfFile(f)
		if sh.foreign == nil {
			sh.foreign = make(map[lock.File][]foreign)
		}
		y := foreign{owner: lock.Owner{Client: x.Client, ID: x.ID}, host: x.Host, access: x.Access & Both, deny: x.Deny & Both}
		sh.foreign[f] = append(sh.foreign[f], y)
		s.shares.foreign.Add(1)
		s.shares.changed(0, y.deny)
	}
	for i := range h.Cool {
		f, err := fileOf(&h.Cool[i].File)
		if err != nil {
			return err
		}
		s.shardOfFile(f).deleg.chill(f, r.abs(h.Cool[i].At))
	}
	g := &s.grace
	g.until = r.time(h.Grace.Until)
	g.known, g.waiting, g.list = make(map[string]bool), make(map[string]bool), make(map[string]*Client)
	for _, o := range h.Grace.Known {
		g.known[o] = true
	}
	for _, o := range h.Grace.Waiting {
		g.waiting[o] = true
	}
	for _, o := range h.Grace.Here {
		g.list[o] = new(Client) // until the client itself is restored, if it is there
	}
	for _, o := range h.Grace.Gone {
		g.list[o] = nil
	}
	g.on.Store(h.Grace.On)
	return nil
}

func (r *restorer) client(x *snapClient) error {
	s := r.s
	n := uint32(x.ID)
	if uint32(x.ID>>32) != s.cfg.Boot || n == 0 || s.clients[n] != nil {
		return damaged("it is of another start, or there twice")
	}
	c := &Client{
		ID: x.ID, s: s, name: lockClient(x.ID), owner: x.Owner, principal: x.Principal, known: x.Known, complete: x.Complete,
		nstate: x.NState, relieved: r.abs(x.Relieved),
		sessions: make(map[SessionID]*Session), opens: make(map[openKey]*open), locks: make(map[openKey]*locks), states: make(map[uint32]any),
	}
	if err := fixed(c.verifier[:], x.Verifier); err != nil {
		return err
	}
	c.bound.Store(bindingOf(x.Bound))
	var host netip.Addr
	if x.Bound != nil && len(x.Bound.Hosts) > 0 {
		host = x.Bound.Hosts[0]
	}
	c.account, c.stranger = s.mem.enter(host, math.MaxInt64), x.Stranger
	c.charge(int64(clientCost + len(c.owner)))
	c.confirmed.Store(x.Confirmed)
	if c.listed.Store(x.Listed); x.Listed {
		s.grace.list[c.owner] = c
	}
	c.renewed.Store(r.now + x.Renewed)
	c.create.seq, c.create.status = x.CreateSeq, nfs.Status(x.CreateStatus)
	c.create.result = Created{Sequence: x.Create.Sequence, Fore: x.Create.Fore, Bound: x.Create.Bound}
	if err := fixed(c.create.result.ID[:], x.Create.ID); err != nil {
		return err
	}
	rec := s.owners[c.owner]
	if rec == nil {
		rec = new(records)
		s.owners[c.owner] = rec
	}
	place := &rec.unconfirmed
	if x.Confirmed {
		place = &rec.confirmed
	}
	if *place != nil {
		return damaged("its owner string is another client's, too")
	}
	*place = c
	s.clients[n] = c
	if !c.stranger {
		c.admitted()
	}
	if x.V40 != nil {
		if err := r.v40(c, x.V40); err != nil {
			return err
		}
	}
	for i := range x.Opens {
		if err := r.open(c, &x.Opens[i]); err != nil {
			return err
		}
	}
	for i := range x.Locks {
		if err := r.locks(c, &x.Locks[i]); err != nil {
			return err
		}
	}
	for i := range x.Delegs {
		if err := r.deleg(c, &x.Delegs[i]); err != nil {
			return err
		}
	}
	if x.V40 != nil {
		if err := r.owners(c, x.V40); err != nil {
			return err
		}
	}
	for i := range x.Sessions {
		if err := r.session(c, &x.Sessions[i]); err != nil {
			return err
		}
	}
	for i := range x.Offloads {
		if err := r.offload(c, &x.Offloads[i]); err != nil {
			return err
		}
	}
	return nil
}

// enter gives a state the number that it has.
func (c *Client) enter(num uint32, what any) error {
	if num == 0 || c.states[num] != nil {
		return damaged("state number %d twice", num)
	}
	c.states[num] = what
	c.charge(costOf(what))
	return nil
}

func (r *restorer) open(c *Client, x *snapOpen) error {
	f, err := fileOf(&x.File)
	if err != nil {
		return err
	}
	o := &open{c: c, key: openKey{x.Owner, f}, num: x.Num, seq: x.Seq, pinned: x.Pinned && r.s.cfg.Unpin != nil}
	o.reservation = reservation{access: x.Access & Both, deny: x.Deny & Both, accesses: x.Accesses, denials: x.Denials}
	if c.opens[o.key] != nil {
		return damaged("an open twice")
	}
	if err := c.enter(o.num, o); err != nil {
		return err
	}
	if c.v40 != nil {
		if o.by = c.v40.openOwners[x.Owner]; o.by == nil {
			return damaged("an open of nobody")
		}
		c.use(o.by)
	}
	c.opens[o.key] = o
	sh := r.s.shardOfFile(f)
	sh.m[f] = append(sh.m[f], o)
	r.s.shares.changed(0, o.deny)
	return nil
}

func (r *restorer) locks(c *Client, x *snapLocks) error {
	f, err := fileOf(&x.File)
	if err != nil {
		return err
	}
	o, ok := c.states[x.Open].(*open)
	l := &locks{c: c, key: openKey{x.Owner, f}, num: x.Num, seq: x.Seq, open: o, any: x.Any}
	if !ok || o.key.file != f || c.locks[l.key] != nil {
		return damaged("a lock stateid without its open, or twice")
	}
	if err := c.enter(l.num, l); err != nil {
		return err
	}
	if c.v40 != nil {
		if l.by = c.v40.lockOwners[x.Owner]; l.by == nil {
			return damaged("a lock stateid of nobody")
		}
		l.by.locks[l] = struct{}{}
		c.use(l.by)
	}
	c.locks[l.key] = l
	o.locks = append(o.locks, l)
	return nil
}

func (r *restorer) deleg(c *Client, x *snapDeleg) error {
	s := r.s
	f, err := fileOf(&x.File)
	if err != nil {
		return err
	}
	d := &deleg{
		c: c, file: f, num: x.Num, seq: x.Seq, write: x.Write, given: time.Unix(0, r.now+x.Given), change: x.Change, saw: x.Saw,
		pinned: x.Pinned && r.s.cfg.Unpin != nil, revoked: x.Revoked, recalled: x.Recalled, told: x.Told, last: r.abs(x.Last),
	}
	// Whoever wants it has the client called anew, unless it has said that it knows.
	d.until.Store(r.abs(x.Until))
	if d.from, err = originOf(&x.From); err != nil {
		return err
	}
	if err := c.enter(d.num, d); err != nil {
		return err
	}
	if d.revoked {
		c.revoked++
		c.anyRevoked.Store(true)
		return nil
	}
	sh := s.shardOfFile(f)
	for _, o := range sh.deleg.m[f] {
		if o.c == c || o.write || d.write {
			return damaged("two delegations that exclude each other")
		}
	}
	if c.delegs == nil {
		c.delegs = make(map[lock.File]*deleg)
	}
	c.delegs[f] = d
	if sh.deleg.m == nil {
		sh.deleg.m = make(map[lock.File][]*deleg)
	}
	sh.deleg.m[f] = append(sh.deleg.m[f], d)
	s.delegs.all.Add(1)
	if d.write {
		s.delegs.writes.Add(1)
	}
	if x.Leased && r.by.Leased != nil {
		d.leave = r.by.Leased(f, d.write)
	}
	return nil
}

// Bounds of what a session may say of itself.
const (
	snapSlotsMax = 1 << 16
	snapReplyMax = 1 << 24
)

func (r *restorer) session(c *Client, x *snapSession) error {
	s := &Session{Client: c, Minor: x.Minor, Fore: x.Fore}
	if err := fixed(s.ID[:], x.ID); err != nil {
		return err
	}
	if r.s.Session(s.ID) != nil || x.Fore.MaxSlots > snapSlotsMax || len(x.Slots) > int(x.Fore.MaxSlots) {
		return damaged("a session twice, or with %d slots", len(x.Slots))
	}
	for i := range x.Slots {
		k := &x.Slots[i]
		if len(k.Reply) > snapReplyMax {
			return damaged("a reply of %d bytes", len(k.Reply))
		}
		s.slots = append(s.slots, slot{seq: k.Seq, digest: k.Digest, cached: k.Cached, reply: k.Reply})
	}
	if x.Back != nil {
		var err error
		if s.Back, err = r.back(c, x.Back); err != nil {
			return err
		}
	}
	c.sessions[s.ID] = s
	c.charge(s.Fore.cost())
	r.s.shardOf(s.ID).m[s.ID] = s
	return nil
}

func (r *restorer) back(c *Client, x *snapBack) (*Backchannel, error) {
	if len(x.Slots) > backSlotsMax || len(x.Paths) > pathsMax {
		return nil, damaged("a backchannel of %d slots and %d connections", len(x.Slots), len(x.Paths))
	}
	b := NewBackchannel(x.Attr, x.Program, x.Cred)
	if len(b.slots) != len(x.Slots) {
		return nil, damaged("a backchannel with %d slots of %d", len(x.Slots), len(b.slots))
	}
	b.had, b.fault = x.Had, x.Fault
	for _, id := range x.Paths {
		if r.by.Connection == nil {
			break
		}
		if p := r.by.Connection(id); p != nil {
			b.paths = append(b.paths, p)
		}
	}
	b.proven = x.Proven && len(b.paths) > 0
	for i := range x.Slots {
		k := &x.Slots[i]
		b.slots[i].seq = k.Seq
		switch {
		case k.Dead:
			b.slots[i].state = backDead
		case k.Lost:
			if k.What == nil || r.by.Asked == nil {
				return nil, damaged("a callback of which nothing is known")
			}
			var recall *Recall
			if d, ok := c.states[k.What.Recall].(*deleg); ok && !d.revoked {
				y := d.recall()
				recall = &y
			}
			b.slots[i].state, b.slots[i].what = backLost, r.by.Asked(k.What, recall)
		}
	}
	return b, nil
}

func (r *restorer) offload(c *Client, x *snapOffload) error {
	f, err := fileOf(&x.File)
	if err != nil {
		return err
	}
	o := &Offload{Client: c, File: f, num: x.Num, gone: make(chan struct{}), done: make(chan struct{})}
	if o.Origin, err = originOf(&x.Origin); err != nil {
		return err
	}
	o.copied.Store(x.Copied)
	if err := c.enter(o.num, o); err != nil {
		return err
	}
	if c.offloads == nil {
		c.offloads = make(map[uint32]*Offload)
	}
	c.offloads[o.num] = o
	r.s.offloads.Add(1)
	if x.Done {
		o.Finish(nfs.Status(x.Status))
	}
	if r.by.Copy == nil {
		return errors.New("a copy cannot go on here")
	}
	return r.by.Copy(o, x.What)
}

func (r *restorer) v40(c *Client, x *snapV40) error {
	v := &v40{
		callback: callbackOf(&x.Callback), closed: make(map[uint32]*seqOwner), reaped: r.abs(x.Reaped),
		openOwners: make(map[string]*seqOwner), lockOwners: make(map[string]*seqOwner),
		idle: make(map[*seqOwner]struct{}), pending: make(map[*seqOwner]struct{}),
	}
	c.v40 = v
	if err := fixed(v.confirm[:], x.Confirm); err != nil {
		return err
	}
	if u := x.Update; u != nil {
		v.update = &update{callback: callbackOf(&u.Callback)}
		if err := fixed(v.update.confirm[:], u.Confirm); err != nil {
			return err
		}
	}
	if t := x.Path; t != nil && r.by.Connect != nil && t.Callback.To.IsValid() && t.State <= uint8(pathDown) {
		v.path = &Path{Callback: callbackOf(&t.Callback), Caller: r.by.Connect(t.Callback.To), state: pathState(t.State), asked: r.time(t.Asked)}
	}
	for i := range x.Owners {
		o, err := r.owner(c, &x.Owners[i])
		if err != nil {
			return err
		}
		if v.openOwners[o.name] != nil {
			return damaged("an open-owner twice")
		}
		o.open = true
		v.openOwners[o.name] = o
		c.charge(o.cost())
		v.idle[o] = struct{}{}
		if o.closed != 0 {
			if v.closed[o.closed] != nil {
				return damaged("two owners closed one stateid last")
			}
			v.closed[o.closed] = o
		}
	}
	for i := range x.Lockers {
		o, err := r.owner(c, &x.Lockers[i])
		if err != nil {
			return err
		}
		if v.lockOwners[o.name] != nil {
			return damaged("a lock-owner twice")
		}
		o.locks = make(map[*locks]struct{})
		v.lockOwners[o.name] = o
		c.charge(o.cost())
	}
	return nil
}

func (r *restorer) owner(c *Client, x *snapOwner) (*seqOwner, error) {
	o := &seqOwner{
		c: c, name: x.Name, seq: x.Seq, digest: x.Digest, confirmed: x.Confirmed, fresh: x.Fresh, closed: x.Closed, used: r.abs(x.Used),
		last: Answer{Status: nfs.Status(x.Status), Result: x.Result},
	}
	if x.File != nil {
		f, err := fileOf(x.File)
		if err != nil {
			return nil, err
		}
		o.last.File = f
	}
	return o, nil
}

// owners ends the restoration of owners, when there is what they have.
func (r *restorer) owners(c *Client, x *snapV40) error {
	for i := range x.Owners {
		o := c.v40.openOwners[x.Owners[i].Name]
		if n := x.Owners[i].Trial; n != 0 {
			t, ok := c.states[n].(*open)
			if !ok || t.by != o || o.confirmed {
				return damaged("an unconfirmed open that is none")
			}
			o.trial = t
		}
	}
	for _, o := range c.v40.lockOwners {
		if o.uses == 0 {
			return damaged("a lock-owner without a lock stateid")
		}
	}
	return nil
}

// Exports are those that anybody has something of.
func (s *Server) Exports() []uint32 {
	seen := make(map[uint32]bool)
	for i := range s.files {
		sh := &s.files[i]
		sh.mu.Lock()
		for f := range sh.m {
			seen[f.Export] = true
		}
		for f := range sh.deleg.m {
			seen[f.Export] = true
		}
		for f := range sh.foreign {
			seen[f.Export] = true
		}
		sh.mu.Unlock()
	}
	return slices.Sorted(maps.Keys(seen))
}
