package nfs

import (
	"encoding/binary"
	"hash/fnv"

	"github.com/rstored/rstored/blockstore"
)

// A client sends a call again if the server was killed between the change and the reply. A second
// execution would do harm: a RENAME would fail with NOENT and an MKDIR with EXIST, and a REMOVE
// could remove what another client has made since. So each of these calls first notes in the
// journal which objects its names refer to. When the call comes again, the server compares the note
// with the objects that the names refer to now. A truncation does not show in names. Such a call
// notes after the change that it has made it.
//
// The server can also be killed between the change and its sync. So a change that an earlier
// execution has made is made stable before the call is answered.

// Noter is the journal as one call sees it: it retains notes of the call beyond the end of the
// process. rpc.Call implements it.
type Noter interface {
	// Journaled reports whether the call has a place in the journal. If not, no note is needed.
	Journaled() bool
	// Intend notes that the call is about to change something.
	Intend(note []byte)
	// Doubt returns the note of an earlier execution of this call: one that was cut off, or whose
	// answer the client did not get. It is nil if there was none.
	Doubt() []byte
}

// Once finds out whether an earlier execution of a call has made its change. A handler calls one of
// the methods once, before the change, and Finished after the change where that is needed.
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

// Past returns the note of an earlier execution. cutOff is false if there is none.
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

// Opened reports what an earlier execution of this OPEN did. h is the object that has the name now;
// nil: there is none. made: the OPEN made the object. finished: it completed all changes of the
// object. If there is no note of Finished, an object that did not have the name before counts as
// made.
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

// Finished notes that the call has made or changed an object. It is for changes that names do not
// show.
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

// Stable makes earlier changes of the objects stable, one object after the other.
func (o Once) Stable(objects ...blockstore.Handle) error {
	for _, h := range objects {
		if _, err := o.FS.SetAttr(nil, h, new(blockstore.SetAttr), nil); err != nil {
			return err
		}
	}
	return nil
}

// Made returns the object that an earlier execution of this call made. The earlier execution may
// have ended before it set all attributes, so Made sets them again. It does not change the size: a
// client may have written to the file since. err says that the object cannot be made stable.
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

// Unlinked reports whether an earlier execution removed name. err says that this cannot be made
// stable.
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

// Renamed reports whether an earlier execution moved fromName to toName. err says that this cannot
// be made stable.
func (o Once) Renamed(from blockstore.Handle, fromName string, to blockstore.Handle, toName string) (yes bool,
	err error,
) {
	if !o.Call.Journaled() {
		return false, nil
	}
	now := Objects{o.objectAt(from, fromName), o.objectAt(to, toName)}
	then, cutOff := o.RecordObjects(now)
	// If both names are of one object, rename(2) changes nothing, and a second execution does no harm.
	if !cutOff || then[0] == 0 || then[0] == now[0] {
		return false, nil
	}
	return true, o.Stable(to, from)
}

// Linked reports whether an earlier execution gave h the name. err says that this cannot be made
// stable.
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
