package nfs3

import (
	"context"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/rstored/rstored/blockstore"
	"github.com/rstored/rstored/nfs"
	"github.com/rstored/rstored/rpcrdma/rpc"
)

// MountProgram is the RPC program number of MOUNT, and MountVersion is its version for NFS version
// 3 (RFC 1813 appendix I).
const (
	MountProgram = 100005
	MountVersion = 3
)

// Procedures of MOUNT.
const (
	MountNull    = 0
	MountMnt     = 1
	MountDump    = 2
	MountUmnt    = 3
	MountUmntAll = 4
	MountExport  = 5
)

// MountNameMax bounds a client's name in DUMP (MNTNAMLEN).
const MountNameMax = 255

// maxMounts bounds the list for DUMP. A full list drops its oldest entry. Nothing depends on the
// list: it is for display and may be wrong (appendix I section 5.2.2).
const maxMounts = 1024

type mountEntry struct {
	host netip.Addr
	path string
}

type mounts struct {
	mu   sync.Mutex
	list []mountEntry
}

func (m *mounts) add(e mountEntry) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if slices.Contains(m.list, e) {
		return
	}
	if len(m.list) == maxMounts {
		m.list = slices.Delete(m.list, 0, 1)
	}
	m.list = append(m.list, e)
}

func (m *mounts) remove(gone func(mountEntry) bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.list = slices.DeleteFunc(m.list, gone)
}

func (m *mounts) all() []mountEntry {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.list)
}

func (s *server) mountProcs() []rpc.Proc {
	return []rpc.Proc{
		MountNull:    {Name: "NULL", Inline: true, Serve: s.serve(null)},
		MountMnt:     {Name: "MNT", Serve: s.serve(mountMnt)},
		MountDump:    {Name: "DUMP", Serve: s.serve(mountDump)},
		MountUmnt:    {Name: "UMNT", Serve: s.serve(mountUmnt)},
		MountUmntAll: {Name: "UMNTALL", Serve: s.serve(mountUmntAll)},
		MountExport:  {Name: "EXPORT", Serve: s.serve(mountExport)},
	}
}

func (o *op) host() netip.Addr { return o.c.Peer.Addr.Addr().Unmap() }

// audit writes a line about the client and a path into the audit log.
func (o *op) audit(event, path string, more ...any) {
	export := ""
	if o.x != nil {
		export = o.x.Pseudo
	}
	o.s.Audit.Info(event, append(append(nfs.AuditCaller(o.c), "path", path, "export", export), more...)...)
}

// mountMnt is MNT (appendix I section 5.2.1): it returns the handle of an export, or of a directory
// below one. The handle is no permission: LOOKUP would lead to the same object, and each later call
// is checked by itself.
func mountMnt(o *op) rpc.Status {
	p := o.c.Args.String(nfs.PathMax)
	if o.bad() {
		return rpc.Garbage
	}
	h, st := o.mountPoint(p)
	if st == nfs.ErrJukebox { // mountstat3 has no such status: the client sends the call again
		return rpc.Drop
	}
	o.status(st)
	o.audit("mount", p, "result", st.String(), "reason", o.why(p, st))
	if st != nfs.OK {
		// At debug level only: a peer that is refused could fill a log.
		o.s.Logger.Debug("a mount was refused", "client", o.host().String(), "path", p, "why", st.Error())
		return rpc.Done
	}
	o.s.Logger.Info("mounted", "client", o.host().String(), "path", p, "export", o.x.Pseudo)
	o.s.mounts.add(mountEntry{o.host(), p})
	o.putHandle(&h)
	flavors := o.rule.Flavors.List()
	if o.rule.Flavors == 0 {
		flavors = flavors[:1] // a rule for all flavors names only the preferred one
	}
	o.c.Res.Uint32(uint32(len(flavors)))
	for _, f := range flavors {
		o.c.Res.Uint32(uint32(f))
	}
	return rpc.Done
}

// why returns the reason for which the rules of an export deny a MNT.
func (o *op) why(p string, st nfs.Status) string {
	x, _ := o.s.Exports.ByPath(p)
	if st != nfs.ErrAcces || x == nil || o.x != nil {
		return ""
	}
	return x.Why(&o.c.Peer, o.c.Cred.Flavor)
}

// mountPoint finds the directory of a path. Below the export it looks names up as the caller, so a
// mount reaches nothing that LOOKUP would not. The statuses are those of mountstat3, whose numbers
// are the same as in nfsstat3.
func (o *op) mountPoint(p string) (h blockstore.Handle, st nfs.Status) {
	if strings.ContainsRune(p, 0) {
		return h, nfs.ErrInval
	}
	x, rest := o.s.Exports.ByPath(p)
	if x == nil {
		return h, nfs.ErrNoEnt
	}
	if st := o.enterMount(x); st != nfs.OK {
		return h, st
	}
	h, err := x.FS.Root()
	if err != nil {
		return h, mountStatus(err)
	}
	if rest == "" {
		return h, nfs.OK
	}
	for name := range strings.SplitSeq(rest, "/") {
		if st := checkName(name); st != nfs.OK {
			return h, st
		}
		var a blockstore.Attr
		if h, a, err = x.FS.Lookup(&o.cred, h, name); err != nil {
			return h, mountStatus(err)
		}
		if a.Type != blockstore.TypeDir {
			return h, nfs.ErrNotDir
		}
	}
	return h, nfs.OK
}

// A MNT from a client whose name is not resolved yet waits, for at most whoWait. At most whoWaits
// of them wait at one time, so that such clients cannot occupy all workers. Further ones are
// dropped, and the client sends them again.
const (
	whoWait  = 3 * time.Second
	whoWaits = 4
)

// enterMount is enter for MNT. The client has not chosen a flavor yet, and no limit applies.
func (o *op) enterMount(x *nfs.Export) nfs.Status {
	rule, st := o.admitted(x, &o.c.Peer)
	if st == nfs.ErrAcces {
		o.deny(x)
	}
	if st != nfs.OK {
		return st
	}
	return o.assume(x, rule)
}

// admitted is AdmitsMount. It waits until the client's name is resolved, for whoWait at most.
func (o *op) admitted(x *nfs.Export, p *rpc.Peer) (*nfs.ClientRule, nfs.Status) {
	rule, st := x.AdmitsMount(p)
	if st == nfs.ErrJukebox {
		if o.s.waiting.Add(1) <= whoWaits {
			ctx, cancel := context.WithTimeout(context.Background(), whoWait)
			for st == nfs.ErrJukebox && ctx.Err() == nil {
				o.s.Exports.Hosts().Wait(o.host(), ctx.Done())
				rule, st = x.AdmitsMount(p)
			}
			cancel()
		}
		o.s.waiting.Add(-1)
	}
	return rule, st
}

// mountStatus is StatusOf, reduced to the statuses of mountstat3.
func mountStatus(err error) nfs.Status {
	switch st := nfs.StatusOf(err); st {
	case nfs.ErrPerm, nfs.ErrNoEnt, nfs.ErrIO, nfs.ErrAcces, nfs.ErrNotDir, nfs.ErrInval, nfs.ErrNameTooLong,
		nfs.ErrNotSupp:
		return st
	case nfs.ErrStale:
		return nfs.ErrNoEnt // the export was removed meanwhile
	}
	return nfs.ErrServerFault
}

// mountDump is DUMP.
func mountDump(o *op) rpc.Status {
	e := &o.c.Res
	all, host := o.s.ShowAll(), o.host()
	for _, m := range o.s.mounts.all() {
		if !all && m.host != host {
			continue
		}
		e.Bool(true)
		e.String(m.host.String())
		e.String(m.path)
	}
	e.Bool(false)
	return rpc.Done
}

// mountUmnt is UMNT. It removes an entry of the list for DUMP. Handles stay valid.
func mountUmnt(o *op) rpc.Status {
	p := o.c.Args.String(nfs.PathMax)
	if o.bad() {
		return rpc.Garbage
	}
	gone := mountEntry{o.host(), p}
	o.s.mounts.remove(func(m mountEntry) bool { return m == gone })
	o.audit("unmount", p)
	return rpc.Done
}

// mountUmntAll is UMNTALL.
func mountUmntAll(o *op) rpc.Status {
	host := o.host()
	o.s.mounts.remove(func(m mountEntry) bool { return m.host == host })
	o.audit("unmount_all", "")
	return rpc.Done
}

// mountExport is EXPORT: the exports, each with the clients that may use it. Without ShowAll, a
// client sees only the exports that it may mount from a port below 1024, and of their rules only
// the one that applies to it.
func mountExport(o *op) rpc.Status {
	e := &o.c.Res
	all, peer := o.s.ShowAll(), o.c.Peer
	const reserved = 1
	peer.Addr = netip.AddrPortFrom(peer.Addr.Addr(), reserved) // showmount may run without privilege
	for _, x := range o.s.Exports.Exports() {
		rules := x.Clients
		if !all {
			rule, st := o.admitted(x, &peer)
			if st != nfs.OK {
				continue
			}
			rules = []nfs.ClientRule{*rule}
		}
		e.Bool(true)
		e.String(x.Pseudo)
		open := slices.ContainsFunc(rules, func(r nfs.ClientRule) bool { return r.CIDR.IsValid() && r.CIDR.Bits() == 0 })
		for i := range rules {
			if open { // an empty list of groups means everybody
				break
			}
			e.Bool(true)
			if r := &rules[i]; r.CIDR.IsValid() {
				e.String(r.CIDR.String())
			} else {
				e.String(r.Name)
			}
		}
		e.Bool(false)
	}
	e.Bool(false)
	return rpc.Done
}
