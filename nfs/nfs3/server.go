package nfs3

import (
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rstored/rstored/blockstore"
	"github.com/rstored/rstored/nfs"
	"github.com/rstored/rstored/nfs/clock"
	"github.com/rstored/rstored/nfs/lock"
	"github.com/rstored/rstored/rpcrdma/rpc"
)

// server is shared by all procedures. Its only state is the list of mounts.
type server struct {
	nfs.Config
	mounts  mounts
	waiting atomic.Int32 // MNTs that wait until a name of the client is resolved
	ops     sync.Pool    // of *op
	// inlineWrite is the longest WRITE, in bytes, that a loop serves itself.
	inlineWrite int
}

// op is one procedure being served, by one goroutine: the objects of its handles, and the memory
// for its reply. server.ops reuses it for later calls.
type op struct {
	s    *server
	c    *rpc.Call
	x    *nfs.Export
	rule *nfs.ClientRule
	cred blockstore.Cred
	attr blockstore.Attr // backs the attributes of the reply
	last nfs.Parsed      // kept from call to call
	// changing has the files of which no client gets a delegation until the call ends.
	changing []lock.File

	mayBlock bool
	data     int        // bytes of data that the call moves, for limits
	instead  rpc.Status // replaces the outcome of the procedure, unless it is Done
}

// handler serves one procedure. It decodes all its arguments and then calls resolve, before it does
// anything else. resolve fails if the arguments did not decode; serve then drops the handler's
// result, and the call ends with GARBAGE_ARGS.
type handler func(o *op) rpc.Status

// procs has a row for every procedure of version 3. Those that change something go through the
// duplicate request cache (rpc.Proc.Mutates), because a second execution would fail, as a REMOVE
// with NOENT. WRITE and COMMIT do not need it: they may be executed twice.
var procs = [numProcs]struct {
	name    string
	mutates bool
	do      handler
}{
	ProcNull:        {"NULL", false, null},
	ProcGetAttr:     {"GETATTR", false, getAttr},
	ProcSetAttr:     {"SETATTR", true, setAttr},
	ProcLookup:      {"LOOKUP", false, lookup},
	ProcAccess:      {"ACCESS", false, access},
	ProcReadLink:    {"READLINK", false, readLink},
	ProcRead:        {"READ", false, read},
	ProcWrite:       {"WRITE", false, write},
	ProcCreate:      {"CREATE", true, create},
	ProcMkdir:       {"MKDIR", true, mkdir},
	ProcSymlink:     {"SYMLINK", true, symlink},
	ProcMknod:       {"MKNOD", true, mknod},
	ProcRemove:      {"REMOVE", true, remove},
	ProcRmdir:       {"RMDIR", true, rmdir},
	ProcRename:      {"RENAME", true, rename},
	ProcLink:        {"LINK", true, link},
	ProcReadDir:     {"READDIR", false, readDir},
	ProcReadDirPlus: {"READDIRPLUS", false, readDirPlus},
	ProcFSStat:      {"FSSTAT", false, fsStat},
	ProcFSInfo:      {"FSINFO", false, fsInfo},
	ProcPathConf:    {"PATHCONF", false, pathConf},
	ProcCommit:      {"COMMIT", false, commit},
}

// Programs returns the tables of NFS version 3, MOUNT version 3 and NFSACL version 3.
func Programs(cfg nfs.Config) []rpc.Program {
	cfg.SetDefaults()
	s := &server{Config: cfg, inlineWrite: inlineWrite(runtime.GOMAXPROCS(0))}
	s.ops.New = func() any { return &op{s: s} }
	table := make([]rpc.Proc, numProcs)
	for n, p := range procs {
		table[n] = rpc.Proc{Name: p.name, Mutates: p.mutates, Serve: s.serve(p.do)}
	}
	// Only these never wait on a loop: GETATTR, LOOKUP, READ and WRITE ask the store not to.
	for _, n := range []int{ProcNull, ProcGetAttr, ProcLookup, ProcRead, ProcWrite} {
		table[n].Inline = true
	}
	table[ProcRead].Pace, table[ProcWrite].Pace = s.pace, s.pace
	return []rpc.Program{
		{Name: "nfs3", Prog: Program, Vers: Version, Procs: table},
		{Name: "mount3", Prog: MountProgram, Vers: MountVersion, Procs: s.mountProcs()},
		{Name: "nfsacl", Prog: ACLProgram, Vers: ACLVersion, Procs: s.aclTable()},
	}
}

func (s *server) serve(h handler) func(*rpc.Call, bool) rpc.Status {
	return func(c *rpc.Call, mayBlock bool) rpc.Status {
		o := s.ops.Get().(*op)
		o.c, o.mayBlock, o.instead, o.data = c, mayBlock, rpc.Done, c.Args.Remaining()
		base := len(c.Res.B)
		returned := false
		defer func() {
			if !returned { // the handler panicked; otherwise o may serve another call by now
				o.endChanges()
			}
		}()
		st := h(o)
		o.endChanges()
		returned = true
		switch {
		case o.bad():
			s.Counters.Garbage.Add(1)
			c.Res.Truncate(base)
			st = rpc.Garbage
		case o.instead != rpc.Done:
			st = o.instead
		}
		c.Meta.Store += time.Duration(o.cred.Spent)
		o.cred.Spent = 0
		o.c, o.x, o.rule, o.attr = nil, nil, nil, blockstore.Attr{}
		s.ops.Put(o)
		return st
	}
}

func null(*op) rpc.Status { return rpc.Done }

// bad reports whether the arguments did not decode.
func (o *op) bad() bool { return o.c.Args.Err() != nil }

// resolve finds the object of a file handle, enters its export, and takes on the identity of the
// caller there. It fails if the arguments did not decode. A handle that does not have the form of
// this server, or has a wrong code, is BADHANDLE. A handle of an export that is no longer served is
// STALE. Both are counted.
func (o *op) resolve(fh []byte) (blockstore.Handle, nfs.Status) {
	if o.bad() {
		return blockstore.Handle{}, nfs.ErrBadXDR // no client gets this status: serve answers GARBAGE_ARGS
	}
	id, h, err := o.s.Codec.ParseNext(&o.last, fh)
	if err != nil {
		if err == nfs.ErrHandleCode {
			o.s.Counters.ForgedHandles.Add(1)
		} else {
			o.s.Counters.BadHandles.Add(1)
		}
		return h, nfs.ErrBadHandle
	}
	none := blockstore.Handle{} // a handle is of no use without its export
	if o.x != nil && o.x.ID == id {
		return h, nfs.OK
	}
	x := o.s.Exports.ByID(id)
	if x == nil {
		o.s.Counters.GoneExports.Add(1)
		return none, nfs.ErrStale
	}
	if st := o.enter(x); st != nfs.OK {
		return none, st
	}
	return h, nfs.OK
}

// enter checks whether the caller may use an export: by the rule, the protection of the connection,
// the flavor, and the limits. Then it takes on the caller's identity there.
func (o *op) enter(x *nfs.Export) nfs.Status {
	rule, st := o.admit(x)
	if st != nfs.OK {
		return st
	}
	if !rule.Protects(&o.c.Peer) {
		o.s.Counters.UnprotectedClients.Add(1)
		o.noteDenial(x)
		return nfs.ErrAcces
	}
	if !rule.Flavors.Has(o.c.Cred.Flavor) {
		o.noteDenial(x)
		o.instead = rpc.BadCred
		return nfs.ErrAcces
	}
	if x.Limited(rule) && !o.c.Paid {
		if st := o.pay(x, rule); st != nfs.OK {
			return st
		}
	}
	return o.assume(x, rule)
}

// admit finds the rule for the client in an export.
func (o *op) admit(x *nfs.Export) (*nfs.ClientRule, nfs.Status) {
	rule, st := x.Admits(&o.c.Peer)
	if st == nfs.ErrAcces {
		o.deny(x)
	}
	return rule, st
}

// deny counts a call that the rules of an export have denied, and records its client in Denials.
func (o *op) deny(x *nfs.Export) {
	o.s.Counters.DeniedClients.Add(1)
	o.noteDenial(x)
}

func (o *op) noteDenial(x *nfs.Export) {
	o.s.Denials.Add(x, &o.c.Peer, o.c.Cred.Flavor, clock.Now(), o.s.Logger)
}

// assume takes on the caller's identity.
func (o *op) assume(x *nfs.Export, rule *nfs.ClientRule) nfs.Status {
	if !rule.Identity(&o.c.Cred, o.s.Groups, o.mayBlock, &o.cred) {
		o.instead = rpc.Again
		return nfs.ErrJukebox
	}
	o.x, o.rule = x, rule
	o.c.Meta.Export = x.ID
	return nfs.OK
}

// pay counts the call against the limits of the client in the export. A call that has to wait
// leaves its worker (rpc.Call.Defer) and is served later. If too many calls wait, or the wait would
// be too long, the status is JUKEBOX.
func (o *op) pay(x *nfs.Export, rule *nfs.ClientRule) nfs.Status {
	wait, ok := x.Reserve(rule, clock.Now(), o.host(), o.data)
	if !ok {
		o.s.Counters.ThrottledAway.Add(1)
		return nfs.ErrJukebox
	}
	o.c.Paid = true
	if wait <= 0 {
		return nfs.OK
	}
	if !o.c.Defer(wait) {
		o.s.Counters.ThrottledAway.Add(1)
		return nfs.ErrJukebox
	}
	o.s.Counters.Throttled.Add(1)
	o.instead = rpc.Later
	return nfs.ErrJukebox
}

// pace counts a READ or a WRITE before it is served (rpc.Proc.Pace). The arguments of both begin
// with handle, offset and count.
func (s *server) pace(c *rpc.Call, bulk int, take bool) (limit uint32, wait time.Duration, ok bool) {
	size := c.Args.Remaining() + bulk
	fh := DecodeHandle(&c.Args)
	c.Args.Uint64()
	if n := c.Args.Uint32(); bulk == 0 {
		size += int(min(n, nfs.MaxIO))
	}
	if c.Args.Err() != nil {
		return 0, 0, true
	}
	limit, wait, ok = s.Exports.Pace(s.Codec, c, fh, size, take, clock.Now())
	if take && wait > 0 && ok {
		s.Counters.Throttled.Add(1)
	}
	return limit, wait, ok
}

// resolveForChange is resolve for a procedure that changes something.
func (o *op) resolveForChange(fh []byte) (blockstore.Handle, nfs.Status) {
	h, st := o.resolve(fh)
	if st == nfs.OK && o.readOnly() {
		st = nfs.ErrROFS
	}
	return h, st
}

func (o *op) readOnly() bool { return o.x.ReadOnly || o.rule.RO }

// status appends the status of the reply and counts it.
func (o *op) status(st nfs.Status) {
	if o.bad() {
		return
	}
	o.s.Counters.Status(st)
	o.c.Meta.Outcome = uint32(st)
	o.c.Res.Uint32(uint32(st))
}

// postOp appends the present attributes of an object. If the handle was invalid there is no export,
// and postOp appends no attributes.
func (o *op) postOp(h *blockstore.Handle) {
	var a *blockstore.Attr
	if o.x != nil && h.Len > 0 {
		var err error
		if o.attr, err = o.x.FS.GetAttr(&o.cred, *h); err == nil {
			a = &o.attr
		}
	}
	o.putPostOp(a)
}

func (o *op) putPostOp(a *blockstore.Attr) {
	var fsid uint64
	if a != nil {
		fsid = o.x.FSID()
	}
	EncodePostOp(&o.c.Res, a, fsid)
}

// wcc appends the attributes that the store has returned for an object around a change. If the
// store has returned none, it appends the present ones.
func (o *op) wcc(w *blockstore.Wcc, h *blockstore.Handle) {
	if !w.Post.Known && o.x != nil && h.Len > 0 {
		if a, err := o.x.FS.GetAttr(&o.cred, *h); err == nil {
			w.Post = blockstore.Known(&a)
		}
	}
	var fsid uint64
	if o.x != nil {
		fsid = o.x.FSID()
	}
	EncodeWcc(&o.c.Res, w, fsid)
}

// failPost ends a procedure whose failure carries one object's attributes.
func (o *op) failPost(st nfs.Status, h *blockstore.Handle) rpc.Status {
	o.status(st)
	o.postOp(h)
	return rpc.Done
}

// failWcc ends a procedure whose failure carries one object's wcc_data.
func (o *op) failWcc(st nfs.Status, w *blockstore.Wcc, h *blockstore.Handle) rpc.Status {
	o.status(st)
	o.wcc(w, h)
	return rpc.Done
}

// putHandle appends an nfs_fh3 of an object of the export.
func (o *op) putHandle(h *blockstore.Handle) {
	var b [nfs.HandleMax]byte
	EncodeHandle(&o.c.Res, o.s.Codec.Append(b[:0], o.x.ID, h))
}

// checkName refuses a name that cannot be one component of a path. It accepts "." and "..".
func checkName(name string) nfs.Status {
	switch {
	case name == "":
		return nfs.ErrInval
	case len(name) > blockstore.NameMax:
		return nfs.ErrNameTooLong
	case strings.ContainsAny(name, "/\x00"):
		return nfs.ErrInval
	}
	return nfs.OK
}

// checkNewName is checkName for a name to be made. "." and ".." exist always.
func checkNewName(name string) nfs.Status {
	if name == "." || name == ".." {
		return nfs.ErrExist
	}
	return checkName(name)
}

// checkOldName is checkName for a name to be removed.
func checkOldName(name string) nfs.Status {
	if name == "." || name == ".." {
		return nfs.ErrInval
	}
	return checkName(name)
}
