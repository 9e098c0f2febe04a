package nfs

import (
	"encoding/binary"
	"hash/fnv"

	"github.com/rstored/rstored/blockstore"
)

// A server that is killed between making a change and answering gets the same call
// again after its restart. Executed a second time, a RENAME would say NOENT and
// an MKDIR EXIST, and a REMOVE could take away what somebody has put there since.
// So each of these calls notes, before it changes anything, which objects stand
// under its names; and a call that was cut off looks whether they still do.

// Noter remembers notes of calls beyond the end of the process. rpc.Call is one.
type Noter interface {
	// Journaled reports whether it wants to know what the call is about to do.
	Journaled() bool
	// Intend notes that the call is about to change something.
	Intend(note []byte)
	// Doubt is the note of an earlier execution of this call that was cut off, or of which the client has not got
	// the answer; nil: there was none.
	Doubt() []byte
}

// Once finds out whether a call has made its change already. Each of its methods is called at most once for a
// call, before the change.
type Once struct {
	Call Noter
	FS   blockstore.FS
}

// Witness are the objects under the one or two names of a call, 0 = none. An
// object is told by a hash of its handle, which is never given to another.
type Witness [2]uint64

func (o Once) holds(dir blockstore.Handle, name string) uint64 {
	h, _, err := o.FS.Lookup(nil, dir, name)
	if err != nil {
		return 0
	}
	return witnessed(&h)
}

func witnessed(h *blockstore.Handle) uint64 {
	f := fnv.New64a()
	_, _ = f.Write(h.Bytes())
	return max(f.Sum64(), 1)
}

// Testify notes what stands under the names now. If the call was cut off earlier
// it returns what stood there then.
func (o Once) Testify(now Witness) (then Witness, cutOff bool) {
	if note := o.Call.Doubt(); len(note) == 16 {
		return Witness{binary.BigEndian.Uint64(note), binary.BigEndian.Uint64(note[8:])}, true
	}
	var note [16]byte
	binary.BigEndian.PutUint64(note[:], now[0])
	binary.BigEndian.PutUint64(note[8:], now[1])
	o.Call.Intend(note[:])
	return then, false
}

// Made reports the object that this call made before it was cut off. What was asked for of its attributes is set, as it
// may have been cut off before that; what was written into a file since then stays.
func (o Once) Made(cred *blockstore.Cred, dir blockstore.Handle, name string, typ blockstore.FileType, s *blockstore.SetAttr) (h blockstore.Handle, a blockstore.Attr, yes bool) {
	if !o.Call.Journaled() {
		return h, a, false
	}
	h, a, err := o.FS.Lookup(nil, dir, name)
	var now Witness
	if err == nil {
		now[0] = witnessed(&h)
	}
	then, cutOff := o.Testify(now)
	if !cutOff || then[0] != 0 || now[0] == 0 || a.Type != typ {
		return h, a, false
	}
	if typ != blockstore.TypeLnk {
		rest := *s
		rest.Size = nil
		if w, err := o.FS.SetAttr(cred, h, &rest, nil); err == nil && w.Post.Known {
			a = w.Post.Attr
		}
	}
	return h, a, true
}

// Unlinked reports whether this call removed name before it was cut off.
func (o Once) Unlinked(dir blockstore.Handle, name string) bool {
	if !o.Call.Journaled() {
		return false
	}
	now := Witness{o.holds(dir, name)}
	then, cutOff := o.Testify(now)
	return cutOff && then[0] != 0 && then[0] != now[0]
}

// Renamed reports whether this call moved from to to before it was cut off.
func (o Once) Renamed(from blockstore.Handle, fromName string, to blockstore.Handle, toName string) bool {
	if !o.Call.Journaled() {
		return false
	}
	now := Witness{o.holds(from, fromName), o.holds(to, toName)}
	then, cutOff := o.Testify(now)
	// Two names of one object stay as they are, so doing it again is right then.
	return cutOff && then[0] != 0 && then[0] != now[0]
}

// Linked reports whether this call gave h the name before it was cut off.
func (o Once) Linked(h, dir blockstore.Handle, name string) bool {
	if !o.Call.Journaled() {
		return false
	}
	now := Witness{o.holds(dir, name)}
	then, cutOff := o.Testify(now)
	return cutOff && then[0] == 0 && now[0] == witnessed(&h)
}
