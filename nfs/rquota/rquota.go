package rquota

import (
	"errors"
	"math"
	"strings"
	"time"

	"github.com/rstored/rstored/blockstore"
	"github.com/rstored/rstored/nfs"
	"github.com/rstored/rstored/nfs/clock"
	"github.com/rstored/rstored/rpcrdma/rpc"
	"github.com/rstored/rstored/rpcrdma/xdr"
)

// Program is the RPC program number of the protocol. Version2 can ask for quotas of groups, too.
const (
	Program  = 100011
	Version1 = 1
	Version2 = 2
)

// Procedures. Those named Active leave out a quota that is not enforced.
const (
	ProcNull      = 0
	ProcGet       = 1
	ProcGetActive = 2
	ProcSet       = 3
	ProcSetActive = 4
)

// Kinds of quotas in version 2.
const (
	KindUser  = 0
	KindGroup = 1
	// KindProject is PRJQUOTA of Linux. The server ignores the number of the project: it takes the
	// project of the directory that the path leads to.
	KindProject = 2
)

// Status is the outcome of a call.
type Status uint32

// Outcomes.
const (
	OK      Status = 1
	NoQuota Status = 2
	Perm    Status = 3
)

// blockSize is the unit of the sizes on the wire, in bytes. A size is 32 bits of such blocks, so 16
// TiB is the largest. A larger size is reported as 16 TiB.
const blockSize = 4096

// Programs returns versions 1 and 2. Of cfg they use the exports and the groups, and record
// denials. wall is the clock of the host.
func Programs(cfg nfs.Config, wall func() time.Time) []rpc.Program {
	cfg.SetDefaults()
	s := &server{cfg, wall}
	null := rpc.Proc{Name: "NULL", Inline: true, Serve: func(*rpc.Call, bool) rpc.Status { return rpc.Done }}
	table := func(kinds bool) []rpc.Proc {
		get := func(c *rpc.Call, _ bool) rpc.Status { return s.get(c, kinds) }
		return []rpc.Proc{
			ProcNull:      null,
			ProcGet:       {Name: "GETQUOTA", Serve: get},
			ProcGetActive: {Name: "GETACTIVEQUOTA", Serve: get},
			ProcSet:       {Name: "SETQUOTA", Inline: true, Serve: refuse},
			ProcSetActive: {Name: "SETACTIVEQUOTA", Inline: true, Serve: refuse},
		}
	}
	return []rpc.Program{
		{Name: "rquota", Prog: Program, Vers: Version1, Procs: table(false)},
		{Name: "rquota2", Prog: Program, Vers: Version2, Procs: table(true)},
	}
}

type server struct {
	nfs.Config
	wall func() time.Time
}

// refuse answers SETQUOTA with Perm, whatever its arguments: nobody may set quotas.
func refuse(c *rpc.Call, _ bool) rpc.Status {
	c.Res.Uint32(uint32(Perm))
	return rpc.Done
}

// get is GETQUOTA and GETACTIVEQUOTA. Quotas of the store are always active.
func (s *server) get(c *rpc.Call, kinds bool) rpc.Status {
	p := c.Args.String(nfs.PathMax)
	kind := uint32(KindUser)
	if kinds {
		kind = c.Args.Uint32()
	}
	id := c.Args.Uint32()
	if c.Args.Err() != nil {
		return rpc.Garbage
	}
	q, st := s.quota(c, p, kind, id)
	if st == statusLater {
		return rpc.Drop // the client sends the call again
	}
	c.Res.Uint32(uint32(st))
	if st == OK {
		Encode(&c.Res, &q, s.wall())
	}
	return rpc.Done
}

// statusLater is in no version of the protocol: the name of the client's host is being resolved,
// and the server drops the call.
const statusLater Status = 0

// quota looks up the quota of a user in the file system of an export. A caller may look up its own
// quota, and root those of all users. The rules of the export decide whether a caller is root.
func (s *server) quota(c *rpc.Call, p string, kind, id uint32) (q blockstore.Quota, st Status) {
	x, rest := s.Exports.ByPath(p)
	if x == nil || kind != KindUser && kind != KindProject {
		return q, NoQuota
	}
	rule, nst := x.Admits(&c.Peer)
	switch {
	case nst == nfs.ErrJukebox:
		return q, statusLater
	case nst != nfs.OK, !rule.Protects(&c.Peer), !rule.Flavors.Has(c.Cred.Flavor):
		s.Denials.Add(x, &c.Peer, c.Cred.Flavor, clock.Now(), s.Logger)
		return q, Perm
	}
	var who blockstore.Cred
	if !rule.Identity(&c.Cred, s.Groups, true, &who) {
		return q, statusLater
	}
	if kind == KindProject {
		return project(x, &who, rest)
	}
	switch {
	case id == c.Cred.UID: // its own quota: that of the user to whom the rule maps it
	case who.UID == 0:
		who = blockstore.Cred{UID: id, GID: who.GID}
	default:
		return q, Perm
	}
	store, ok := x.FS.(blockstore.Quotas)
	if !ok || !x.FS.Limits().Quotas {
		return q, NoQuota
	}
	root, err := x.FS.Root()
	if err == nil {
		q, err = store.Quota(&who, root)
	}
	switch {
	case errors.Is(err, blockstore.ErrPerm), errors.Is(err, blockstore.ErrAccess):
		return q, Perm
	case err != nil, q == blockstore.Quota{}:
		return q, NoQuota
	}
	return q, OK
}

// project looks up the quota of the project of a directory below an export. Every caller that may
// reach the directory may see it, because statfs(2) shows the same numbers.
func project(x *nfs.Export, who *blockstore.Cred, rest string) (q blockstore.Quota, st Status) {
	store, ok := x.FS.(blockstore.ProjectQuotas)
	if !ok {
		return q, NoQuota
	}
	dir, err := x.FS.Root()
	for name := range strings.SplitSeq(rest, "/") {
		if err != nil || rest == "" {
			break
		}
		dir, _, err = x.FS.Lookup(who, dir, name)
	}
	if err == nil {
		q, err = store.ProjectQuota(dir)
	}
	switch {
	case errors.Is(err, blockstore.ErrPerm), errors.Is(err, blockstore.ErrAccess):
		return q, Perm
	case err != nil, q == blockstore.Quota{}:
		return q, NoQuota
	}
	return q, OK
}

// Encode appends an rquota. now is the time of the wall clock. The last two fields are the seconds
// that are left until an exceeded soft limit is enforced. All fields are uint32:
//
//	bsize | active | bhardlimit | bsoftlimit | curblocks
//	fhardlimit | fsoftlimit | curfiles | btimeleft | ftimeleft
func Encode(e *xdr.Encoder, q *blockstore.Quota, now time.Time) {
	blocks := func(n uint64) uint32 { return clamp((n + blockSize - 1) / blockSize) }
	left := func(until int64) uint32 {
		if until == 0 {
			return 0
		}
		return clamp(uint64(max(until-now.Unix(), 0)))
	}
	e.Uint32(blockSize)
	e.Bool(true)
	e.Uint32s(blocks(q.Hard), blocks(q.Soft), blocks(q.Used),
		clamp(q.FilesHard), clamp(q.FilesSoft), clamp(q.Files), left(q.Until), left(q.FilesUntil))
}

func clamp(n uint64) uint32 { return uint32(min(n, math.MaxUint32)) }

// EncodeKindArgs appends the arguments of GETQUOTA of version 2.
func EncodeKindArgs(e *xdr.Encoder, p string, kind, id uint32) {
	e.String(p)
	e.Uint32s(kind, id)
}

// EncodeArgs appends the arguments of GETQUOTA of version 1: the quota of a user in the file system
// that a path leads to.
func EncodeArgs(e *xdr.Encoder, p string, uid uint32) {
	e.String(p)
	e.Uint32(uid)
}

// Decode reads the result of GETQUOTA: a status, and an rquota after OK. now is the time of the
// wall clock at which the result came.
func Decode(d *xdr.Decoder, now time.Time) (q blockstore.Quota, st Status, err error) {
	if st = Status(d.Uint32()); st != OK {
		if d.Err() == nil && st != NoQuota && st != Perm {
			err = errors.New("the server's answer about a quota has an unknown status")
		}
		return q, st, errors.Join(err, d.Err())
	}
	unit := uint64(d.Uint32())
	d.Bool()
	for _, n := range []*uint64{&q.Hard, &q.Soft, &q.Used} {
		*n = uint64(d.Uint32()) * unit // does not overflow: both factors have 32 bits
	}
	for _, n := range []*uint64{&q.FilesHard, &q.FilesSoft, &q.Files} {
		*n = uint64(d.Uint32())
	}
	for _, at := range []*int64{&q.Until, &q.FilesUntil} {
		if left := d.Uint32(); left != 0 {
			*at = now.Unix() + int64(left)
		}
	}
	return q, st, d.Err()
}
