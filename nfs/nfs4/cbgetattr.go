package nfs4

import (
	"time"

	"github.com/rstored/rstored/blockstore"
	"github.com/rstored/rstored/nfs"
	"github.com/rstored/rstored/nfs/state"
	"github.com/rstored/rstored/rpcrdma/xdr"
)

// volatile are the attributes that a client with a write delegation changes by itself.
var volatile = BitmapOf(AttrChange, AttrSize, AttrSpaceUsed, AttrTimeMetadata, AttrTimeModify, AttrTimeAccess)

// getattrWait is how long a client is waited for that is asked for attributes. One that
// does not answer in this time is asked for its delegation.
const getattrWait = 100 * time.Millisecond

// asking is CB_GETATTR (RFC 8881 section 20.1).
type asking struct {
	state.Writer
	answer chan fileState // of length 1
}

// fileState is what a client with a write delegation says of the file. ok is false if it
// says nothing.
type fileState struct {
	change, size uint64
	ok           bool
}

func (a *asking) op() uint32            { return opCBGetattr }
func (a *asking) refers() *state.Origin { return &a.Origin }

func (a *asking) encode(s *Server, e *xdr.Encoder) {
	s.encodeFile(e, &a.File)
	BitmapOf(AttrChange, AttrSize).Encode(e)
}

func (a *asking) answered(_ *Server, heard bool, st nfs.Status, d *xdr.Decoder) {
	var f fileState
	if heard && st == nfs.OK {
		f = decodeFileState(d)
	}
	select {
	case a.answer <- f:
	default: // sent again, as the first reply was lost
	}
}

// decodeFileState reads a fattr4 of what was asked for.
func decodeFileState(d *xdr.Decoder) (f fileState) {
	got, more := DecodeBitmap(d)
	vals := xdr.NewDecoder(d.Opaque(fattrMax))
	if d.Err() != nil || more || got != BitmapOf(AttrChange, AttrSize) {
		return f
	}
	f.change, f.size = vals.Uint64(), vals.Uint64()
	f.ok = vals.Err() == nil && vals.Remaining() == 0
	return f
}

// ask asks a client. It is waited for in a worker, of which there are not many.
func (s *Server) ask(w state.Writer) (f fileState) {
	s.waiting(func() {
		a := &asking{Writer: w, answer: make(chan fileState, 1)}
		if s.callAny(w.Client, 1, a) {
			s.asked.Add(1)
			f, _ = receive(a.answer, getattrWait)
		}
	})
	return f
}

// knowledge is what a client with a write delegation knows of the current file.
type knowledge struct {
	w state.Writer
	fileState
}

// current makes sure that nobody else knows better what these attributes of the current
// file are, or finds out what he knows.
func (k *compound) current(want Bitmap) (n knowledge, st nfs.Status) {
	if k.cur.x == nil || want.and(volatile).empty() {
		return n, nfs.OK
	}
	var ok bool
	if n.w, ok = k.s.state.Writer(k.now, k.file(), k.client); ok {
		n.fileState = k.s.ask(n.w)
	}
	if n.ok || k.s.free(k.now, k.file(), k.client, false, k.mayBlock) {
		return n, nfs.OK
	}
	return n, nfs.ErrJukebox
}

// apply has a subject be as its client knows it. The times are those of now: the client
// says only that there were changes.
func (n *knowledge) apply(now time.Time, s *subject) {
	if !n.ok || s.attr.Type != blockstore.TypeReg {
		return
	}
	change, modified := n.w.Change(now, s.change, n.change)
	if !modified {
		return
	}
	at := time.Unix(0, int64(change))
	s.change, s.attr.Size, s.attr.Ctime, s.attr.Mtime = change, n.size, at, at
}
