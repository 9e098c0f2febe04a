package nfs

import (
	"encoding/binary"
	"hash/fnv"

	"github.com/rstored/rstored/blockstore"
)

// A client sends a call again if the server was killed between the change and the reply. Executed a
// second time, a RENAME would fail with NOENT, an MKDIR with EXIST, and a REMOVE could remove what
// another client has made since. So each of these calls notes, before it changes anything, which
// objects stand under its names. A call that was cut off compares them with the objects that stand
// there now. A call whose change cannot be seen in names, as a truncation, notes afterwards that it
// has made its change.
//
// The server can also be killed between the change and its sync. So what a call is found to have
// changed is made stable before it is answered.

// Noter remembers notes of calls beyond the end of the process. rpc.Call is one.
type Noter interface {
	// Journaled reports whether it wants to know what the call is about to do.
	Journaled() bool
	// Intend notes that the call is about to change something.
	Intend(note []byte)
	// Doubt returns the note of an earlier execution of this call: one that was cut off, or whose
	// answer the client did not get. It is nil if there was none.
	Doubt() []byte
}

// Once finds out whether a call has made its change already. One of its methods is called for a
// call, once and before the change; Finished is called after it.
type Once struct {
	Call Noter
	FS   blockstore.FS
}

// Objects identifies the objects that the one or two names of a call refer to; 0 means that there
// is none. An object is identified by a hash of its handle, which no other object ever gets.
type Objects [2]uint64

func (o Once) objectAt(dir blockstore.Handle, name string) uint64 {
	h, _, err := o.FS.Lookup(nil, dir, name)
	if err != nil {
		return 0
	}
	return objectID(&h)
}

func objectID(h *blockstore.Handle) uint64 {
	f := fnv.New64a()
	_, _ = f.Write(h.Bytes())
	return max(f.Sum64(), 1)
}

// RecordObjects writes into the journal which objects the names refer to now. If the server was
// killed during an earlier execution of the call, it returns the objects that were recorded then,
// and records nothing.
func (o Once) RecordObjects(now Objects) (then Objects, cutOff bool) {
	if then, cutOff = o.Past(); !cutOff {
		now.note(o.Call)
	}
	return then, cutOff
}

// Past is what the call noted if it was cut off earlier.
func (o Once) Past() (then Objects, cutOff bool) {
	if !o.Call.Journaled() {
		return then, false
	}
	if note := o.Call.Doubt(); len(note) == 16 {
		return Objects{binary.BigEndian.Uint64(note), binary.BigEndian.Uint64(note[8:])}, true
	}
	return then, false
}

// note writes the objects into the journal.
func (w Objects) note(c Noter) {
	var note [16]byte
	binary.BigEndian.PutUint64(note[:], w[0])
	binary.BigEndian.PutUint64(note[8:], w[1])
	c.Intend(note[:])
}

// Opened reports what this call, an OPEN, did before it was cut off. The object is the one that has
// the name now, nil if there is none. made: the call made the object. finished: it completed all
// changes of the object. If there is no note of Finished, the call is taken to have made an object
// that was not there before.
func (o Once) Opened(h *blockstore.Handle) (made, finished bool) {
	if !o.Call.Journaled() {
		return false, false
	}
	var now uint64
	if h != nil {
		now = objectID(h)
	}
	then, cutOff := o.RecordObjects(Objects{now})
	if !cutOff || now == 0 || then[1] != 0 && then[1] != now {
		return false, false
	}
	return then[0] == 0, then[1] != 0
}

// Finished notes that the call has changed an object, or made it. It is for changes that cannot be
// seen afterwards.
func (o Once) Finished(h *blockstore.Handle, made bool) {
	if !o.Call.Journaled() {
		return
	}
	w := Objects{objectID(h), objectID(h)}
	if made {
		w[0] = 0
	}
	w.note(o.Call)
}

// Stable makes earlier changes of objects stable, in this order.
func (o Once) Stable(objects ...blockstore.Handle) error {
	for _, h := range objects {
		if _, err := o.FS.SetAttr(nil, h, new(blockstore.SetAttr), nil); err != nil {
			return err
		}
	}
	return nil
}

// Made reports the object that this call made before it was cut off. What was asked for of its
// attributes is set, as it may have been cut off before that; what was written into a file since
// then stays. err says that the object cannot be made stable.
func (o Once) Made(cred *blockstore.Cred, dir blockstore.Handle, name string, typ blockstore.FileType,
	s *blockstore.SetAttr,
) (h blockstore.Handle, a blockstore.Attr, yes bool, err error) {
	if !o.Call.Journaled() {
		return h, a, false, nil
	}
	h, a, err = o.FS.Lookup(nil, dir, name)
	var now Objects
	if err == nil {
		now[0] = objectID(&h)
	}
	then, cutOff := o.RecordObjects(now)
	if !cutOff || then[0] != 0 || now[0] == 0 || a.Type != typ {
		return h, a, false, nil
	}
	return h, a, true, o.Complete(cred, dir, h, &a, s)
}

// Complete sets the attributes of an object that the call made in dir, except its size, and makes
// the object and its name stable. A symlink has no attributes that could be set.
func (o Once) Complete(cred *blockstore.Cred, dir, h blockstore.Handle, a *blockstore.Attr,
	s *blockstore.SetAttr,
) error {
	if a.Type != blockstore.TypeLnk {
		rest := *s
		rest.Size = nil
		if w, err := o.FS.SetAttr(cred, h, &rest, nil); err == nil && w.Post.Known {
			*a = w.Post.Attr
		}
		if err := o.Stable(h); err != nil {
			return err
		}
	}
	return o.Stable(dir)
}

// Unlinked reports whether this call removed name before it was cut off. err says that this cannot
// be made stable.
func (o Once) Unlinked(dir blockstore.Handle, name string) (yes bool, err error) {
	if !o.Call.Journaled() {
		return false, nil
	}
	now := Objects{o.objectAt(dir, name)}
	then, cutOff := o.RecordObjects(now)
	if !cutOff || then[0] == 0 || then[0] == now[0] {
		return false, nil
	}
	return true, o.Stable(dir)
}

// Renamed reports whether this call moved from to to before it was cut off. err says that this
// cannot be made stable.
func (o Once) Renamed(from blockstore.Handle, fromName string, to blockstore.Handle, toName string) (yes bool,
	err error,
) {
	if !o.Call.Journaled() {
		return false, nil
	}
	now := Objects{o.objectAt(from, fromName), o.objectAt(to, toName)}
	then, cutOff := o.RecordObjects(now)
	// Two names of one object stay as they are, so doing it again is right then.
	if !cutOff || then[0] == 0 || then[0] == now[0] {
		return false, nil
	}
	return true, o.Stable(to, from)
}

// Linked reports whether this call gave h the name before it was cut off. err says that this cannot
// be made stable.
func (o Once) Linked(h, dir blockstore.Handle, name string) (yes bool, err error) {
	if !o.Call.Journaled() {
		return false, nil
	}
	now := Objects{o.objectAt(dir, name)}
	then, cutOff := o.RecordObjects(now)
	if !cutOff || then[0] != 0 || now[0] != objectID(&h) {
		return false, nil
	}
	return true, o.Stable(h, dir)
}
