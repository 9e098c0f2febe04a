package nfs3

import (
	"encoding/binary"
	"hash/fnv"
	"time"

	"github.com/rstored/rstored/blockstore"
	"github.com/rstored/rstored/nfs"
)

// A server that is killed between making a change and answering gets the same call
// again after its restart. Executed a second time, a RENAME would say NOENT and
// an MKDIR EXIST, and a REMOVE could take away what somebody has put there since.
// So each of these calls notes, before it changes anything, which objects stand
// under its names (rpc.Call.Intend); and a call that was cut off (rpc.Call.Doubt)
// looks whether they still do.

// witness are the objects under the one or two names of a call, 0 = none. An
// object is told by a hash of its handle, which is never given to another.
type witness [2]uint64

func (o *op) holds(dir blockstore.Handle, name string) uint64 {
	h, _, err := o.x.FS.Lookup(nil, dir, name)
	if err != nil {
		return 0
	}
	return object(&h)
}

func object(h *blockstore.Handle) uint64 {
	f := fnv.New64a()
	_, _ = f.Write(h.Bytes())
	return max(f.Sum64(), 1)
}

// testify notes what stands under the names now. If the call was cut off earlier
// it returns what stood there then.
func (o *op) testify(now witness) (then witness, cutOff bool) {
	if note := o.c.Doubt(); len(note) == 16 {
		return witness{binary.BigEndian.Uint64(note), binary.BigEndian.Uint64(note[8:])}, true
	}
	var note [16]byte
	binary.BigEndian.PutUint64(note[:], now[0])
	binary.BigEndian.PutUint64(note[8:], now[1])
	o.c.Intend(note[:])
	return then, false
}

// made reports the object that this call made before it was cut off.
func (o *op) made(dir blockstore.Handle, name string, typ blockstore.FileType, s *blockstore.SetAttr) (h blockstore.Handle, a blockstore.Attr, yes bool) {
	if !o.c.Journaled() {
		return h, a, false
	}
	h, a, err := o.x.FS.Lookup(nil, dir, name)
	var now witness
	if err == nil {
		now[0] = object(&h)
	}
	then, cutOff := o.testify(now)
	if !cutOff || then[0] != 0 || now[0] == 0 || a.Type != typ {
		return h, a, false
	}
	if typ != blockstore.TypeLnk {
		// It may have been cut off before it had set the attributes. What was
		// written into the file since then stays.
		rest := *s
		rest.Size = nil
		if w, err := o.x.FS.SetAttr(&o.cred, h, &rest, nil); err == nil && w.Post.Known {
			a = w.Post.Attr
		}
	}
	return h, a, true
}

// unlinked reports whether this call removed name before it was cut off.
func (o *op) unlinked(dir blockstore.Handle, name string) bool {
	if !o.c.Journaled() {
		return false
	}
	now := witness{o.holds(dir, name)}
	then, cutOff := o.testify(now)
	return cutOff && then[0] != 0 && then[0] != now[0]
}

// renamed reports whether this call moved from to to before it was cut off.
func (o *op) renamed(from blockstore.Handle, fromName string, to blockstore.Handle, toName string) bool {
	if !o.c.Journaled() {
		return false
	}
	now := witness{o.holds(from, fromName), o.holds(to, toName)}
	then, cutOff := o.testify(now)
	// Two names of one object stay as they are, so doing it again is right then.
	return cutOff && then[0] != 0 && then[0] != now[0]
}

// linked reports whether this call gave h the name before it was cut off.
func (o *op) linked(h, dir blockstore.Handle, name string) bool {
	if !o.c.Journaled() {
		return false
	}
	now := witness{o.holds(dir, name)}
	then, cutOff := o.testify(now)
	return cutOff && then[0] == 0 && now[0] == object(&h)
}

// attributed reports whether this call, a SETATTR that is guarded by the time of
// the last change, was made before it was cut off: the guard does not hold any
// more, but the attributes are those that were asked for.
func (o *op) attributed(h blockstore.Handle, s *blockstore.SetAttr, guard *time.Time) bool {
	if guard == nil || !o.c.Journaled() {
		return false
	}
	if _, cutOff := o.testify(witness{}); !cutOff {
		return false
	}
	a, err := o.x.FS.GetAttr(nil, h)
	return err == nil && !a.Ctime.Equal(*guard) &&
		(s.Mode == nil || *s.Mode == a.Mode) && (s.UID == nil || *s.UID == a.UID) && (s.GID == nil || *s.GID == a.GID) &&
		(s.Size == nil || *s.Size == a.Size) &&
		(s.AtimeHow != blockstore.TimeClient || s.Atime.Equal(a.Atime)) &&
		(s.MtimeHow != blockstore.TimeClient || s.Mtime.Equal(a.Mtime))
}

// makeOnce runs the store's part of a procedure that makes an object, unless it is
// made already.
func (o *op) makeOnce(dir blockstore.Handle, name string, typ blockstore.FileType, s *blockstore.SetAttr,
	do func() (blockstore.Handle, blockstore.Attr, blockstore.Wcc, error),
) (h blockstore.Handle, w blockstore.Wcc, st nfs.Status) {
	if h, a, yes := o.made(dir, name, typ, s); yes {
		o.attr = a
		return h, w, nfs.OK
	}
	var err error
	h, o.attr, w, err = do()
	return h, w, nfs.StatusOf(err)
}
