package nfs4

import (
	"time"

	"github.com/rstored/rstored/blockstore"
	"github.com/rstored/rstored/nfs"
	"github.com/rstored/rstored/nfs/state"
	"github.com/rstored/rstored/rpcrdma/xdr"
)

// volatile are the attributes that a client with a write delegation changes without a call (RFC
// 8881 section 10.4.3).
var volatile = BitmapOf(AttrChange, AttrSize, AttrSpaceUsed, AttrTimeMetadata, AttrTimeModify, AttrTimeAccess)

// getattrWait is how long a GETATTR waits for the answer to a CB_GETATTR. If there is none in this
// time the delegation is recalled.
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

func (a *asking) answered(_ *Server, received bool, st nfs.Status, d *xdr.Decoder) {
	var f fileState
	if received && st == nfs.OK {
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

// ask sends a CB_GETATTR and waits for the answer, in a worker. f.ok is false if there is none.
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

// current makes the server's attributes of the current file current, if any of the wanted ones is
// volatile and another client has a write delegation. It asks that client, or recalls the
// delegation if the client does not answer.
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

// apply puts what the client has answered into the attributes. The client reports that it has
// changed the file, but no times, so the server makes them up (RFC 8881 section 10.4.3): each
// change of what the client says is a new change attribute and a new time.
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
