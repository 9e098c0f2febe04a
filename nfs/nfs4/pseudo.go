package nfs4

import (
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/rstored/rstored/blockstore"
	"github.com/rstored/rstored/nfs"
	"github.com/rstored/rstored/rpcrdma/rpc"
)

// The pseudo file system (RFC 8881 section 7.3, RFC 7530 section 7.3) is a read-only tree of
// directories that lead to exports. A client sees a directory only if an export at it or below it
// is for that client.
//
// Each name of an export is a node of the tree. An export below another export is a node too. It
// covers the entry that the outer export has under that name. Only version 3 has the alias "/" of
// an export: in version 4 every export has its own name.
//
// With the exports /a/b and /a/b/c/d the tree is:
//
//	/            node           fsid 0, 0
//	/a           node           fsid 0, 0
//	/a/b         node, export   fsid of /a/b; its directory has entries of its own
//	/a/b/c       node           only where the export /a/b has no entry "c"
//	/a/b/c/d     node, export   fsid of /a/b/c/d
//
// RFC 8881 section 7.3 wants a separate fsid for each connected part of the pseudo file system,
// here for / with /a, and for /a/b/c. This server gives all parts 0, 0. The file numbers are hashes
// of the whole path, so that they differ between the parts.

// pseudoExport is the export number in handles of the pseudo file system. Exports
// are numbered from 1.
const pseudoExport = 0

// node is a directory of the pseudo file system. It is immutable once makeTree has returned.
type node struct {
	name     string
	path     string
	parent   *node // nil: the root
	children []*node
	export   *nfs.Export // what is mounted here, or nil
	// handle is made of the path alone. It stays the same over restarts and over changes of the
	// export list, as fh_expire_type says (FH4_PERSISTENT). A path without exports has no node any
	// more; its handle is STALE then.
	handle blockstore.Handle
	id     uint64 // file number, never 0
	// change is the change attribute: a hash of the names of all children, also of those that a
	// client does not see. It stays the same when only the rules for clients change.
	change uint64
}

// tree is the pseudo file system of a list of exports. It is immutable once makeTree has returned,
// so that goroutines read it without a lock.
type tree struct {
	exports  []*nfs.Export
	root     *node
	byHandle map[blockstore.Handle]*node
	byExport map[uint32]*node // where an export is, by its first name
	made     time.Time        // all times of all directories
}

// treeCache has the tree of the export list that was current at the last call. When the list has
// changed, the tree is made again. Two goroutines may make it at the same time. Then the later
// Store stays, and the compound with the other tree still uses that one.
type treeCache = atomic.Pointer[tree]

// pseudo returns the tree of the current export list. A Table never changes a list in place, so the
// address of the first element identifies a list. The cached tree refers to its list, so no new
// list can get the same address.
func (s *Server) pseudo() *tree {
	list := s.cfg.Exports.Exports()
	if t := s.tree.Load(); t != nil && len(t.exports) == len(list) && (len(list) == 0 || &t.exports[0] == &list[0]) {
		return t
	}
	t := makeTree(list, s.cfg.Wall())
	s.tree.Store(t)
	return t
}

// makeTree makes a node for each directory on the path of each export. The list can have several
// entries with one export number: these are further names of the export. All names lead to the
// first entry, so that the rules of the first entry count under every name.
func makeTree(list []*nfs.Export, now time.Time) *tree {
	t := &tree{exports: list, byHandle: make(map[blockstore.Handle]*node), byExport: make(map[uint32]*node), made: now}
	t.root = t.add(nil, "", "/")
	firsts := make(map[uint32]*nfs.Export)
	for _, x := range list {
		first := firsts[x.ID]
		if first == nil {
			first = x
			firsts[x.ID] = x
		} else if x.Pseudo == "/" {
			continue
		}
		n := t.root
		for name := range strings.SplitSeq(strings.Trim(x.Pseudo, "/"), "/") {
			if name == "" {
				continue
			}
			c := n.child(name)
			if c == nil {
				c = t.add(n, name, strings.TrimSuffix(n.path, "/")+"/"+name)
				n.children = append(n.children, c)
			}
			n = c
		}
		n.export = first
		if t.byExport[x.ID] == nil {
			t.byExport[x.ID] = n
		}
	}
	for _, n := range t.byHandle {
		slices.SortFunc(n.children, func(a, b *node) int { return cmp.Compare(a.name, b.name) })
		sum := sha256.New()
		for _, c := range n.children {
			sum.Write([]byte(c.name + "/"))
		}
		n.change = binary.BigEndian.Uint64(sum.Sum(nil))
	}
	return t
}

// add makes a node and enters it by its handle. The caller appends it to the children of its
// parent. The handle is the first half of a SHA-256 sum, the file number a part of the second half.
// The handle needs no secret: Codec adds an HMAC before a client gets it (see putFH).
func (t *tree) add(parent *node, name, path string) *node {
	sum := sha256.Sum256([]byte("rstored pseudo file system\x00" + path))
	n := &node{name: name, path: path, parent: parent, id: max(binary.BigEndian.Uint64(sum[16:]), 1)}
	n.handle, _ = blockstore.MakeHandle(sum[:16])
	t.byHandle[n.handle] = n
	return n
}

func (n *node) child(name string) *node {
	for _, c := range n.children {
		if c.name == name {
			return c
		}
	}
	return nil
}

// visible reports whether the directory leads to an export for a client. While the client's name is
// being resolved (Admits returns ErrJukebox) it returns true. NOENT would be wrong then, because
// clients cache that a name does not exist.
//
// Neither the flavor of the call nor TLS counts here. RFC 8881 section 7.8 wants one view of the
// namespace for all flavors; a client of the wrong flavor gets WRONGSEC at the export.
func (n *node) visible(client *rpc.Peer) bool {
	if n.export != nil {
		if _, st := n.export.Admits(client); st != nfs.ErrAcces {
			return true
		}
	}
	return slices.ContainsFunc(n.children, func(c *node) bool { return c.visible(client) })
}

// attr returns the attributes of a directory. User and group are 0. Mode 0555 lets every caller
// list and search it. The number of links counts all children, also those that a client does not
// see.
func (t *tree) attr(n *node) blockstore.Attr {
	return blockstore.Attr{
		Type: blockstore.TypeDir, Mode: 0o555, NLink: uint32(2 + len(n.children)), Size: 4096, Used: 4096,
		FileID: n.id, Atime: t.made, Mtime: t.made, Ctime: t.made,
	}
}

// object is what a file handle stands for: a node of the pseudo file system, or an object of an
// export. It is a value and owns nothing. An open or a delegation pins a file (see pin.go), but a
// file handle does not.
//
//	                             node   x     rule   h
//	no file handle               nil    nil   nil    zero
//	pseudo directory             set    nil   nil    zero
//	object of an export          nil    set   set    set
//	file of a restored COPY      nil    set   nil    set; x is nil if the export is gone
type object struct {
	node *node
	x    *nfs.Export
	rule *nfs.ClientRule // of the client; deniedRule if it has no access any more
	h    blockstore.Handle
	// foreign is a file handle of another server, the source of a COPY. It aliases the call. The other
	// fields are zero then; see compound.foreign.
	foreign []byte
}

func (o *object) set() bool { return o.node != nil || o.x != nil || o.foreign != nil }

// rules returns the rule of the object's client. For the pseudo file system it is the zero rule, so
// that maxread and maxwrite are MaxIO there.
func (o *object) rules() *nfs.ClientRule {
	if o.rule == nil {
		return &nfs.ClientRule{}
	}
	return o.rule
}

// readOnly reports whether the client must not change the object. The pseudo file system is always
// read-only.
func (o *object) readOnly() bool { return o.x == nil || o.x.ReadOnly || o.rule.RO }

// sameFS reports whether both objects are of one export. LINK, RENAME and CLONE need that: fsid is
// per export, and a client sees XDEV across two of them. Two pseudo directories are never the same
// here, because nothing in them can change.
func (o *object) sameFS(p *object) bool { return o.x != nil && p.x != nil && o.x.ID == p.x.ID }

// at returns the object at a node: the root of its export if that export is for the client, else
// the directory of the pseudo file system.
//
//	export for the client        root of the export
//	wrong flavor, or no TLS      WRONGSEC; the object has the export, for SECINFO
//	client's name unknown yet    DELAY
//	export not for the client    the directory, if it leads to another export for the client
//	nothing below for the client NOENT; the root of all is always there
//
// NOENT instead of ACCESS keeps the names of exports from clients that must not use them.
func (k *compound) at(n *node) (object, nfs.Status) {
	client := &k.c.Peer
	if n.export != nil {
		if _, st := n.export.Admits(client); st != nfs.ErrAcces {
			rule, st := k.enter(n.export)
			if st != nfs.OK {
				return object{x: n.export}, st
			}
			h, err := n.export.FS.Root()
			return object{x: n.export, rule: rule, h: h}, nfs.StatusOf(err)
		}
	}
	if n.parent != nil && !n.visible(client) {
		k.deny(n.path, nfs.ErrNoEnt)
		return object{}, nfs.ErrNoEnt
	}
	return object{node: n}, nfs.OK
}

// mountpoint returns the node at which the export of o is mounted, if o is the root of that export;
// else nil. LOOKUPP leaves an export in this way: in a store ".." of the root is the root itself.
func (k *compound) mountpoint(o *object) *node {
	if o.x == nil {
		return nil
	}
	n := k.s.pseudo().byExport[o.x.ID]
	if n == nil {
		return nil
	}
	if root, err := o.x.FS.Root(); err != nil || root != o.h {
		return nil
	}
	return n
}

// over returns the node under a name in an export's directory, or nil if there is none for this
// client. It is the node of an export with a Place in this directory, or, in the root directory of
// an export, a child of the export's node. If there are neither, over calls no store.
func (k *compound) over(dir *object, name string) *node {
	if dir.x == nil {
		return nil
	}
	if c := k.s.below(dir, name); c != nil && c.visible(&k.c.Peer) {
		return c
	}
	if n := k.s.pseudo().byExport[dir.x.ID]; n == nil || len(n.children) == 0 {
		return nil
	}
	n := k.mountpoint(dir)
	if n == nil {
		return nil
	}
	if c := n.child(name); c != nil && c.visible(&k.c.Peer) {
		return c
	}
	return nil
}

// below returns the node of the export that lies in a directory of another export under this name.
func (s *Server) below(dir *object, name string) *node {
	if x := s.cfg.Exports.Below(dir.x, &dir.h, name); x != nil {
		return s.pseudo().byExport[x.ID]
	}
	return nil
}

// walk looks a name up in a directory, for LOOKUP and SECINFO. The caller has checked the name.
//
// A node with an export takes precedence over an entry of the store. The store is not asked for the
// name then, so walk itself checks that the caller may search the directory. A node without an
// export counts only if the store has no such entry: it must not hide a directory of the outer
// export.
func (k *compound) walk(dir *object, name string) (object, nfs.Status) {
	if dir.node != nil {
		if c := dir.node.child(name); c != nil {
			return k.at(c)
		}
		return object{}, nfs.ErrNoEnt
	}
	c := k.over(dir, name)
	if c != nil && c.export != nil {
		if st := k.maySearch(dir); st != nfs.OK {
			return object{}, st
		}
		return k.at(c)
	}
	h, _, err := dir.x.FS.Lookup(k.who(dir), dir.h, name)
	if err == nil {
		return object{x: dir.x, rule: dir.rule, h: h}, nfs.OK
	}
	st := k.within(dir, err)
	if st == nfs.ErrNoEnt && c != nil {
		return k.at(c)
	}
	return object{}, st
}

// maySearch returns OK if the caller may look up names in a directory, ACCESS if not.
func (k *compound) maySearch(dir *object) nfs.Status {
	granted, _, err := dir.x.FS.Access(k.who(dir), dir.h, blockstore.AccessLookup)
	if err == nil && granted&blockstore.AccessLookup == 0 {
		return nfs.ErrAcces
	}
	return nfs.StatusOf(err)
}

// within returns the status of an operation on the entries of a directory that failed. NOTDIR
// becomes SYMLINK if the file handle is that of a symlink, as in the Linux server. Only after
// NOTDIR it asks the store for the type.
func (k *compound) within(dir *object, err error) nfs.Status {
	st := nfs.StatusOf(err)
	if st != nfs.ErrNotDir {
		return st
	}
	if a, err := dir.x.FS.GetAttr(k.who(dir), dir.h); err == nil && a.Type == blockstore.TypeLnk {
		return nfs.ErrSymlink
	}
	return st
}

// up returns the parent of an object, for LOOKUPP and SECINFO_NO_NAME (RFC 8881 sections 18.14 and
// 18.45).
//
//	pseudo directory                its parent; NOENT at the root of all
//	root of an export with a Place  the directory of the outer export, if the client may enter it
//	root of another export          the parent of its node
//	other directory of an export    the store's ".."
//	no directory                    NOTDIR, or SYMLINK
func (k *compound) up(o *object) (object, nfs.Status) {
	n := o.node
	if n == nil {
		n = k.mountpoint(o)
	}
	if n != nil {
		if o.x != nil && n.export != nil && n.export.Place != nil {
			p := n.export.Place
			if x := k.s.cfg.Exports.ByID(p.Export); x != nil {
				if rule, st := k.enter(x); st != nfs.ErrAcces {
					return object{x: x, rule: rule, h: p.Dir}, st
				}
			}
		}
		if n.parent == nil {
			return object{}, nfs.ErrNoEnt
		}
		return k.at(n.parent)
	}
	h, _, err := o.x.FS.Lookup(k.who(o), o.h, "..")
	return object{x: o.x, rule: o.rule, h: h}, k.within(o, err)
}
