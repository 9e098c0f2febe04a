package nfs4

import (
	"github.com/rstored/rstored/blockstore"
	"github.com/rstored/rstored/nfs"
	"github.com/rstored/rstored/nfs/lock"
	"github.com/rstored/rstored/rpcrdma/gss"
	"github.com/rstored/rstored/rpcrdma/rpc"
	"github.com/rstored/rstored/rpcrdma/xdr"
)

// The object that a compound works on is a value: export, rule, store handle. It counts no
// reference anywhere, and SAVEFH and RESTOREFH copy it. So a file can be removed between two
// operations of one compound. Each call of the store finds that out for itself and returns STALE.

// putFH is PUTFH (RFC 8881 section 18.19, RFC 7530 section 16.20). The handle comes from the client
// and may be anything. Its code, an HMAC, is checked before any other part is used.
func putFH(k *compound) nfs.Status {
	fh := k.c.Args.Opaque(FHMax)
	if k.bad() {
		return nfs.ErrBadXDR
	}
	if k.foreignSource() {
		k.setCurrent(object{foreign: fh})
		return nfs.OK
	}
	o, st := k.resolve(fh)
	if st == nfs.OK {
		k.setCurrent(o)
	}
	return st
}

// resolve finds the object of a file handle. It does not check that the object still exists: each
// call of the store does.
//
//	not of this form, or code wrong          BADHANDLE   BadHandles, ForgedHandles
//	directory of the pseudo file system
//	that is gone or not for this client      STALE       GoneExports
//	export that is gone                      STALE       GoneExports
//	export that is not for this client       OK          deniedRule
//	wrong flavor, no TLS                     WRONGSEC
//	rate limit, name service                 DELAY
//
// An export that does not admit the client any more is OK, so that CLOSE and LOCKU still work. A
// handle of the server's form with a wrong code is either forged or older than a change of the
// secret. Both are BADHANDLE. The server promises that a handle is valid as long as its object
// exists (FH4_PERSISTENT), so the secret must outlive a restart.
func (k *compound) resolve(fh []byte) (o object, st nfs.Status) {
	id, h, err := k.s.cfg.Codec.ParseNext(&k.last, fh)
	if err != nil {
		if err == nfs.ErrHandleCode {
			k.s.cfg.Counters.ForgedHandles.Add(1)
		} else {
			k.s.cfg.Counters.BadHandles.Add(1)
		}
		return o, nfs.ErrBadHandle
	}
	client := &k.c.Peer
	if id == pseudoExport {
		n := k.s.pseudo().byHandle[h]
		if n == nil || n.parent != nil && !n.visible(client) {
			k.s.cfg.Counters.GoneExports.Add(1)
			return o, nfs.ErrStale
		}
		return object{node: n}, nfs.OK
	}
	x := k.s.cfg.Exports.ByID(id)
	if x == nil {
		k.s.cfg.Counters.GoneExports.Add(1)
		return o, nfs.ErrStale
	}
	rule, st := k.enter(x)
	switch st {
	case nfs.OK:
		st = k.pay(x, rule)
	case nfs.ErrAcces:
		// PUTFH must not return ACCESS (RFC 8881 section 15.2). The operation behind it may: with
		// deniedRule, admit refuses it.
		rule, st = &deniedRule, nfs.OK
	}
	return object{x: x, rule: rule, h: h}, st
}

// putRootFH is PUTROOTFH and PUTPUBFH (RFC 8881 sections 18.21 and 18.20, RFC 7530 sections 16.22
// and 16.21). The public file handle is the root of the pseudo file system too, as the RFC allows
// (RFC 8881 section 4.1.2). It cannot be configured.
func putRootFH(k *compound) nfs.Status {
	o, st := k.at(k.s.pseudo().root)
	if st == nfs.OK {
		k.setCurrent(o)
	}
	return st
}

// getFH is GETFH (section 18.8). A client that its export does not admit any more may send it, too:
// it sent the handle itself.
func getFH(k *compound) nfs.Status {
	k.encodeHandle(&k.c.Res, &k.cur)
	return nfs.OK
}

// encodeHandle appends the nfs_fh4 of an object.
func (k *compound) encodeHandle(e *xdr.Encoder, o *object) {
	var b [nfs.HandleMax]byte
	e.Opaque(k.appendHandle(b[:0], o))
}

// encodeFile appends the nfs_fh4 of a file, for callbacks. The bytes are the same as those of
// GETFH: the Linux client finds the inode of a CB_RECALL by comparing handles.
func (s *Server) encodeFile(e *xdr.Encoder, f *lock.File) {
	var b [nfs.HandleMax]byte
	e.Opaque(s.cfg.Codec.Append(b[:0], f.Export, &f.Handle))
}

// appendHandle appends at most nfs.HandleMax bytes to b. o must be set. The code is an HMAC over
// the rest, so that the same object always has the same handle in every process with the secret.
func (k *compound) appendHandle(b []byte, o *object) []byte {
	if o.node != nil {
		return k.s.cfg.Codec.Append(b, pseudoExport, &o.node.handle)
	}
	return k.s.cfg.Codec.Append(b, o.x.ID, &o.h)
}

// saveFH is SAVEFH (section 18.28). It saves the current stateid with the file handle (section
// 16.2.3.1.2): COPY and CLONE use it for their source.
func saveFH(k *compound) nfs.Status {
	k.saved, k.savedID = k.cur, k.curID
	return nfs.OK
}

// restoreFH is RESTOREFH (section 18.27). admit has answered NOFILEHANDLE, or RESTOREFH in version
// 4.0, if nothing was saved.
func restoreFH(k *compound) nfs.Status {
	k.cur, k.curID = k.saved, k.savedID
	return nfs.OK
}

// lookup is LOOKUP (section 18.13). It may enter another export, whose rule for the client applies
// from there on. If that rule wants another flavor the client gets WRONGSEC, and asks by SECINFO.
func lookup(k *compound) nfs.Status {
	name, st := k.decodeName()
	if st != nfs.OK {
		return st
	}
	o, st := k.walk(&k.cur, name)
	if st == nfs.OK {
		k.setCurrent(o)
	}
	return st
}

// lookupParent is LOOKUPP (section 18.14). The parent of the root of an export is the directory
// where the export is mounted. The root of all has none: NOENT.
func lookupParent(k *compound) nfs.Status {
	o, st := k.up(&k.cur)
	if st == nfs.OK {
		k.setCurrent(o)
	}
	return st
}

// secInfo is SECINFO (section 18.29). In a session it consumes the current file handle (section
// 2.6.3.1.1.8), so that a client cannot go on without choosing a flavor.
func secInfo(k *compound) nfs.Status {
	var o object
	name, st := k.decodeName()
	if st == nfs.OK {
		o, st = k.walk(&k.cur, name)
	}
	return k.flavors(&o, st)
}

// secInfoNoName is SECINFO_NO_NAME (section 18.45). Its argument is SECINFO_STYLE4_CURRENT_FH or
// SECINFO_STYLE4_PARENT. The Linux client sends the first one, with the root's handle, when
// it mounts without the option sec.
func secInfoNoName(k *compound) nfs.Status {
	const current, parent = 0, 1
	style := k.c.Args.Uint32()
	if k.bad() || style > parent {
		return nfs.ErrBadXDR
	}
	o, st := k.cur, nfs.OK
	if style == parent {
		o, st = k.up(&k.cur)
	}
	return k.flavors(&o, st)
}

// flavors appends a SECINFO4resok: the flavors of an object's export, whatever the caller's own is.
//
//	+-------+----------+----------+
//	| count | flavor 1 | flavor 2 | ...    in the order in which the server prefers them
//	+-------+----------+----------+
//
// An entry of RPCSEC_GSS has a second part: the mechanism, the quality of protection and the
// service. WRONGSEC of the lookup is the reason for which the client asks, so it is no error here.
// A client that is admitted but lacks TLS gets the same list: NFS has no flavor for TLS (RFC 9289).
func (k *compound) flavors(o *object, st nfs.Status) nfs.Status {
	var accepted nfs.Flavors
	switch {
	case st == nfs.ErrWrongSec && o.x != nil:
		if rule, st := o.x.Admits(&k.c.Peer); st == nfs.OK {
			accepted = rule.Flavors
		}
	case st == nfs.ErrSymlink: // SYMLINK is no error of SECINFO and SECINFO_NO_NAME
		return nfs.ErrNotDir
	case st != nfs.OK:
		return st
	case o.rule != nil:
		accepted = o.rule.Flavors
	}
	if k.minor > 0 {
		k.setCurrent(object{})
	}
	e := &k.c.Res
	list := accepted.List()
	e.Uint32(uint32(len(list)))
	for _, f := range list {
		if !f.GSS() {
			e.Uint32(uint32(f))
			continue
		}
		e.Uint32(uint32(rpc.AuthGSS))
		e.Opaque(gss.OIDKrb5[2:]) // without tag and length
		e.Uint32s(0, uint32(f-rpc.AuthKrb5)+uint32(gss.None))
	}
	return nfs.OK
}

// file returns the current file as a key of locks and opens.
func (k *compound) file() lock.File { return lock.File{Export: k.cur.x.ID, Handle: k.cur.h} }

// regular returns OK if the current file handle is that of a regular file. Else it returns the
// status that the RFC has for the type: ISDIR, SYMLINK, or WRONG_TYPE for devices, sockets and
// FIFOs. In version 4.0 minorStatus makes WRONG_TYPE INVAL.
func (k *compound) regular() nfs.Status {
	if k.cur.x == nil {
		return nfs.ErrIsDir
	}
	a, err := k.cur.x.FS.GetAttr(k.who(&k.cur), k.cur.h)
	if err != nil {
		return nfs.StatusOf(err)
	}
	return typeStatus(a.Type)
}

func typeStatus(t blockstore.FileType) nfs.Status {
	switch t {
	case blockstore.TypeReg:
		return nfs.OK
	case blockstore.TypeDir:
		return nfs.ErrIsDir
	case blockstore.TypeLnk:
		return nfs.ErrSymlink
	}
	return nfs.ErrWrongType
}
