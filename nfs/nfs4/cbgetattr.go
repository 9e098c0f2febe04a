package nfs4

import (
	"time"

	"github.com/rstored/rstored/blockstore"
	"github.com/rstored/rstored/nfs"
	"github.com/rstored/rstored/nfs/state"
	"github.com/rstored/rstored/rpcrdma/xdr"
)

// A client with a write delegation changes the file without a call. If another client asks for
// attributes that depend on such changes, the server asks the client with the delegation (RFC 8881
// section 10.4.3):
//
//	other client      server                          client with the delegation
//	GETATTR  ------>  CB_GETATTR{change, size}  --->
//	                                            <---  change, size
//	         <------  attributes with its size
//
//	no answer in getattrWait, or a reply without both attributes:
//	         <------  DELAY                CB_RECALL  --->
//	GETATTR  ------>  the store's attributes    <---  WRITE, DELEGRETURN
//
// Within returnWait the GETATTR waits for the DELEGRETURN before it is answered DELAY. A client of
// version 4.0 is not asked, as it has no session for callbacks: its delegation is recalled at once.
//
// Only a worker waits here, never a transport's loop. At most waitersMax workers wait for clients
// at one time. If there are more, the server recalls the delegation without asking. So clients that
// never answer cannot occupy all workers.

// volatile are the attributes that a client with a write delegation changes without a call.
var volatile = BitmapOf(AttrChange, AttrSize, AttrSpaceUsed, AttrTimeMetadata, AttrTimeModify, AttrTimeAccess)

// getattrWait is how long a GETATTR waits for the answer to a CB_GETATTR. After that the delegation
// is recalled. A later answer is dropped, because nothing waits for it.
const getattrWait = 100 * time.Millisecond

// cbGetattr is CB_GETATTR (RFC 8881 section 20.1). Its arguments are nfs_fh4 and bitmap4. Its
// referring call is the request that gave the delegation. A client that has not got the reply of
// that request yet waits for it (section 2.10.6.3).
type cbGetattr struct {
	state.Writer
	answer chan fileState // of length 1, so that answered never waits
}

// fileState is the answer of a client with a write delegation. ok is false if there was no usable
// answer. change and size come from the client and can be any number. They are shown to other
// clients, and never written to the store.
type fileState struct {
	change, size uint64
	times        state.Times // of a delegation with times
	ok           bool
}

func (a *cbGetattr) op() uint32            { return opCBGetattr }
func (a *cbGetattr) refers() *state.Origin { return &a.Origin }

func (a *cbGetattr) encode(s *Server, e *xdr.Encoder) {
	s.encodeFile(e, &a.File)
	a.attrs().Encode(e)
}

// attrs returns the attributes that the client is asked for.
func (a *cbGetattr) attrs() Bitmap {
	if a.Times {
		return BitmapOf(AttrChange, AttrSize).or(delegTimes)
	}
	return BitmapOf(AttrChange, AttrSize)
}

// answered implements request. It can run on a transport's loop, so it must not wait for the reader
// of answer, which stops waiting after getattrWait.
func (a *cbGetattr) answered(_ *Server, received bool, st nfs.Status, d *xdr.Decoder) {
	var f fileState
	if received && st == nfs.OK {
		f = decodeFileState(d, a.attrs())
	}
	select {
	case a.answer <- f:
	default: // a second answer: the callback was sent again because the first reply seemed lost
	}
}

// decodeFileState reads a fattr4 of change and size, and of the times if the server has asked for
// them. Other attributes, a missing change or size, or bytes behind the values make ok false.
func decodeFileState(d *xdr.Decoder, asked Bitmap) (f fileState) {
	got, more := DecodeBitmap(d)
	vals := xdr.NewDecoder(d.Opaque(fattrMax))
	must := BitmapOf(AttrChange, AttrSize)
	if d.Err() != nil || more || got.and(must) != must || !got.without(asked).empty() {
		return f
	}
	f.change, f.size, f.ok = vals.Uint64(), vals.Uint64(), true
	one := func(n int) *time.Time {
		if !got.Has(n) {
			return nil
		}
		t, ok := decodeTime(&vals)
		f.ok = f.ok && ok
		return &t
	}
	f.times = state.Times{Access: one(AttrDelegAccess), Modify: one(AttrDelegModify)}
	f.ok = f.ok && vals.Err() == nil && vals.Remaining() == 0
	return f
}

// ask sends a CB_GETATTR and waits for the answer, in a worker. f.ok is false if there is none, if
// the client has no usable backchannel, or if too many workers wait already. The caller must hold
// no lock: the client may need other calls to be served before it answers.
func (s *Server) ask(w state.Writer) (f fileState) {
	s.waiting(func() {
		a := &cbGetattr{Writer: w, answer: make(chan fileState, 1)}
		if s.callAny(w.Client, 1, a) {
			s.getattrs.Add(1)
			f, _ = receive(a.answer, getattrWait)
		}
	})
	return f
}

// knowledge is the answer of a client with a write delegation of the current file. The zero value
// changes no attributes in apply.
type knowledge struct {
	w state.Writer
	fileState
}

// current prepares the attributes of the current file, if any of the wanted ones is volatile and
// another client has a write delegation. It asks that client for its attributes. If the client does
// not answer, it recalls the delegation, and the status is DELAY until the client has returned the
// delegation or the server has revoked it.
//
// It does not ask about a delegation that is being recalled already (state.Server.Writer): that
// client is writing its data back, and an answer would be out of date at once.
//
// The client with the delegation itself is not asked. It knows its own changes.
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

// apply puts the answer of the client into the attributes. An answer without times has them made up
// by the server (RFC 8881 section 10.4.3). c is the change attribute of the file when the client
// got the delegation:
//
//	answer      change attribute                        size      ctime, mtime
//	change = c  the store's                             store's   the store's
//	change != c greater than the store's and than       client's  the change attribute
//	            every one reported before               as nanoseconds
//
// Each GETATTR of a changed file gets another change attribute, because the client may have written
// between two answers. The cost is that the other client drops its cache of the file each time.
//
// now is the clock of file times (Config.Wall). A WRITE that the client sends later must get a
// ctime that is not before the change attribute, or the attribute would go back. So Writer.Change
// stays 20 ms behind now, the most that the host's ctime lags behind.
func (n *knowledge) apply(now time.Time, s *subject) {
	if !n.ok || s.attr.Type != blockstore.TypeReg {
		return
	}
	change, modified := n.w.Change(now, s.change, n.change)
	if modified {
		at := time.Unix(0, int64(change))
		s.change, s.attr.Size, s.attr.Ctime, s.attr.Mtime = change, n.size, at, at
	}
	if !n.w.Times {
		return
	}
	t := n.w.Reported(now, n.times)
	if t.Access != nil {
		s.attr.Atime = *t.Access
	}
	if t.Modify != nil {
		s.attr.Mtime = *t.Modify
	}
}
