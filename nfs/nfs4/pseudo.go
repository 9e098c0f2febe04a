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
// directories that lead to exports. A client sees the directories that lead to exports which are
// for it.
//
// A name under which an export appears is a node of the tree. An export below another export is a
// node too, which covers what the outer export has under that name. The alias "/" of an export is
// for version 3 alone: in version 4 every export has its own name.

// pseudoExport is the export number in handles of the pseudo file system. Exports
// are numbered from 1.
const pseudoExport = 0

// node is a directory of the pseudo file system. It is immutable.
type node struct {
	name     string
	path     string
	parent   *node // nil: the root
	children []*node
	export   *nfs.Export // what is mounted here, or nil
	handle   blockstore.Handle
	id       uint64 // file number
	change   uint64 // of what is in it
}

// tree is the pseudo file system of a list of exports.
type tree struct {
	exports  []*nfs.Export
	root     *node
	byHandle map[blockstore.Handle]*node
	byExport map[uint32]*node // where an export is, by its first name
	made     time.Time
}

// treeCache has the tree of the export list that was current at the last call. A tree is made again
// when the list has changed; two goroutines may make the same one.
type treeCache = atomic.Pointer[tree]

func (s *Server) pseudo() *tree {
	list := s.cfg.Exports.Exports()
	if t := s.tree.Load(); t != nil && len(t.exports) == len(list) && (len(list) == 0 || &t.exports[0] == &list[0]) {
		return t
	}
	t := makeTree(list, s.cfg.Wall())
	s.tree.Store(t)
	return t
}

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

// visible reports whether the directory leads to an export for a client, or may do so: who the
// client is may have to be found out.
func (n *node) visible(client *rpc.Peer) bool {
	if n.export != nil {
		if _, st := n.export.Admits(client); st != nfs.ErrAcces {
			return true
		}
	}
	return slices.ContainsFunc(n.children, func(c *node) bool { return c.visible(client) })
}

// attr are the attributes of the directory.
func (t *tree) attr(n *node) blockstore.Attr {
	return blockstore.Attr{
		Type: blockstore.TypeDir, Mode: 0o555, NLink: uint32(2 + len(n.children)), Size: 4096, Used: 4096,
		FileID: n.id, Atime: t.made, Mtime: t.made, Ctime: t.made,
	}
}

// object is what a file handle stands for: a node of the pseudo file system, or an
// object of an export.
type object struct {
	node *node
	x    *nfs.Export
	rule *nfs.ClientRule
	h    blockstore.Handle
}

func (o *object) set() bool { return o.node != nil || o.x != nil }

// rules is the rule of the object's client, or one that says nothing.
func (o *object) rules() *nfs.ClientRule {
	if o.rule == nil {
		return &nfs.ClientRule{}
	}
	return o.rule
}

// readOnly reports whether the client may not change anything there.
func (o *object) readOnly() bool { return o.x == nil || o.x.ReadOnly || o.rule.RO }

// sameFS reports whether both are of the same file system.
func (o *object) sameFS(p *object) bool { return o.x != nil && p.x != nil && o.x.ID == p.x.ID }

// at is the object at a node: the root of its export, if that is for the client.
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

// mountpoint is the node whose export's root o is, or nil.
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

// over is the node that is seen under a name of an export's directory.
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

// below is the node of an export that lies in a directory of another one.
func (s *Server) below(dir *object, name string) *node {
	if x := s.cfg.Exports.Below(dir.x, &dir.h, name); x != nil {
		return s.pseudo().byExport[x.ID]
	}
	return nil
}

// walk is a LOOKUP of a name in a directory.
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

// maySearch says whether the caller may look up names in a directory.
func (k *compound) maySearch(dir *object) nfs.Status {
	granted, _, err := dir.x.FS.Access(k.who(dir), dir.h, blockstore.AccessLookup)
	if err == nil && granted&blockstore.AccessLookup == 0 {
		return nfs.ErrAcces
	}
	return nfs.StatusOf(err)
}

// within is the status of an operation on the entries of a directory. A file handle that is no
// directory is NOTDIR, that of a symlink SYMLINK, in every such operation as with the Linux server.
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

// up is a LOOKUPP.
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
