package rpcrdma

import (
	"fmt"

	"github.com/rstored/rstored/rdma"
)

// windows opens a client's memory to its server by memory windows. It is for devices on which
// registering memory is expensive and the peer may not invalidate regions (see rdma.Limits).
//
// A window opens a part of memory that stays registered: the client's own arena, or memory that the
// user registered. Other memory is registered for the call.
//
// The life of the windows of a call:
//
//  1. The list of work requests that ends with the call's SEND binds them, so they are open when
//     the server has the call.
//  2. The reply may invalidate one of them (SEND with invalidate, RFC 8797). The client invalidates
//     the others with OpLocalInv.
//  3. When the last of these completes, the caller gets the reply: nobody else can write to the
//     memory any more.
//
// If the caller gives up, or the connection ends, the windows are closed at the device instead
// (revoke): an OpLocalInv would fail if the server invalidates the same key at that moment.
//
// windows belongs to the client's loop.
//
//	event                                    function    windows of the call
//	the call is encoded                      expose      taken, binds collected
//	encoding fails                           unused      free again; nothing was posted
//	the SEND is posted                       post        bound, in the order of the list
//	the SEND completes                       sent        bound; entries of binds and SEND are free
//	the reply arrives                        settle      one may be invalidated by the server
//	the loop's turn ends                     postEnds    invalidations of the others are posted
//	the last invalidation completes          ended       closed, then free again
//	the caller gives up                      revoke      destroyed at the device
//	the connection ends                      fail        likewise
type windows struct {
	c       *Client
	arena   *rdma.Arena
	mr      rdma.MR       // of the arena
	free    []*window     // not bound
	sqFree  int           // entries of the send queue that are not reserved
	took    []int         // by send buffer: the entries that its SEND's completion releases
	wrs     []rdma.SendWR // the binds of the call that is being encoded
	ends    []rdma.SendWR // the invalidations of calls whose replies arrived in this turn
	closing []*exchange   // calls that wait for their invalidations, oldest first
	first   int           // index of the oldest in closing
}

// window opens a piece of memory.
type window struct {
	mw    rdma.MW
	key   uint32    // the R_Key of the bind
	bind  rdma.Bind // used by the device until the bind completes
	own   rdma.MR   // registration of the piece alone, or nil
	block []byte    // block of the arena with a copy of the piece, or nil
}

const (
	// windowMemory is the client's own memory, in bytes: for Reply chunks, and for copies of short
	// pieces that are not registered.
	windowMemory = 4 << 20
	// windowCopyMax is the longest piece that is copied there, in bytes. Up to this length a
	// copy is cheaper than a registration.
	windowCopyMax = 32 << 10
	// windowsPerCall is the most that one may need: the Read list, a Write chunk, the Reply chunk.
	windowsPerCall = MaxReadSegments + 2
	// windowRequests are the send queue entries of the longest call: binds, SEND, invalidations.
	windowRequests = 1 + 2*windowsPerCall
)

// windowed reports whether clients of a device with these limits open memory by windows.
func windowed(lim rdma.Limits) bool {
	return lim.Windows && !lim.PeerInval && (lim.WRs == 0 || lim.WRs >= 2*windowRequests)
}

// newWindows makes the windows of a client with a number of send buffers. entries is the length
// of the send queue; the device supports at most the number most.
func newWindows(c *Client, buffers int, most int) (w *windows, entries int, err error) {
	entries = buffers + 4*buffers + windowRequests + 1
	if most > 0 {
		entries = min(entries, most)
	}
	w = &windows{c: c, took: make([]int, buffers), sqFree: entries - 1}
	if w.arena, err = rdma.NewArena(windowMemory); err != nil {
		return nil, 0, err
	}
	if w.mr, err = c.pd.Register(w.arena.Bytes(), rdma.LocalWrite|rdma.WindowBind); err != nil {
		w.arena.Close()
		return nil, 0, err
	}
	return w, entries, nil
}

// ready reports whether a call of any kind can be sent.
func (w *windows) ready() bool { return w.sqFree >= windowRequests }

// take returns an unbound window with a fresh key. A key must not be reused for the next call,
// because a delayed packet of the server could still carry the key. The window belongs to the
// call (exchange.wins) until closed or revoke.
func (w *windows) take() (*window, error) {
	for n := len(w.free); n > 0; n = len(w.free) {
		win := w.free[n-1]
		w.free = w.free[:n-1]
		if win.key = win.mw.Rekey(); win.key != 0 {
			return win, nil
		}
		win.mw.Close()
	}
	mw, err := w.c.pd.AllocMW()
	if err != nil {
		return nil, err
	}
	win := &window{mw: mw, key: mw.Rekey()}
	if win.key == 0 {
		mw.Close()
		return nil, rdma.ErrNoResources
	}
	return win, nil
}

// expose collects the bind that opens b to the server.
//
//	memory                             what the window is bound to
//	of the client's arena              the arena's region
//	registered by the user             that region
//	short, and only read by the server a copy in the arena
//	else                               a region for this call (window.own)
func (w *windows) expose(x *exchange, b []byte, access rdma.Access) (seg Segment, err error) {
	win, err := w.take()
	if err != nil {
		return Segment{}, fmt.Errorf("allocating a memory window: %w", err)
	}
	x.wins = append(x.wins, win)
	of := w.mr
	if !inside(b, w.arena.Bytes()) {
		of = w.c.registered(b)
	}
	if of == nil && access&rdma.LocalWrite == 0 && len(b) <= windowCopyMax {
		if win.block = w.arena.Alloc(len(b)); win.block != nil {
			copy(win.block, b)
			b, of = win.block, w.mr
		}
	}
	if of == nil {
		if win.own, err = w.c.pd.Register(b, access&rdma.LocalWrite|rdma.WindowBind); err != nil {
			return Segment{}, err
		}
		of = win.own
	}
	win.bind = rdma.Bind{MW: win.mw, MR: of, Buf: b, Access: access &^ rdma.LocalWrite}
	w.wrs = append(w.wrs, rdma.SendWR{ID: workID(idBind, 0), Op: rdma.OpBindMW, RKey: win.key, Bind: &win.bind})
	return Segment{Handle: win.key, Length: uint32(len(b)), Offset: of.Addr() + uint64(rdma.Offset(b, of.Bytes()))}, nil
}

// room allocates n bytes of the arena for the call's Reply chunk. It reports false if there are
// none.
func (w *windows) room(x *exchange, n int) bool {
	x.arenaRoom = w.arena.Alloc(n)
	return x.arenaRoom != nil
}

// post posts the binds of a call and the SEND of its message, which is in send buffer i. It
// reserves the entries for the invalidations too, so that these never find the queue full.
//
//	list      bind, bind, ..., SEND          n + 1 entries, until the SEND has completed
//	later     invalidate, invalidate, ...    n entries, until the last one has completed
func (w *windows) post(i int, send rdma.SendWR) error {
	n := len(w.wrs)
	w.took[i] = n + 1
	w.sqFree -= 2*n + 1
	w.wrs = append(w.wrs, send)
	err := w.c.conn.QP().PostSend(w.wrs)
	clear(w.wrs)
	w.wrs = w.wrs[:0]
	return err
}

// sent is called when the SEND from send buffer i has completed.
func (w *windows) sent(i int) { w.sqFree += w.took[i] }

// settle is called when the reply has arrived. If has is set, its SEND invalidated key. It reports
// whether all of the call's memory is closed; if not, ended is called when it is. A server that
// invalidates a key of another call breaks the protocol, and the connection ends.
func (w *windows) settle(x *exchange, key uint32, has bool) (closed bool, err error) {
	found, open := false, 0
	for _, win := range x.wins {
		if has && win.key == key {
			found = true
			continue
		}
		open++
		w.ends = append(w.ends, rdma.SendWR{ID: workID(idEnd, 0), Op: rdma.OpLocalInv, InvRKey: win.key})
	}
	if has && !found {
		return false, fmt.Errorf("%w: the reply invalidates a key that is not the call's", ErrProtocol)
	}
	if open == 0 {
		w.closed(x)
		return true, nil
	}
	w.ends[len(w.ends)-1].Flags = rdma.Signaled
	w.closing = append(w.closing, x)
	return false, nil
}

// postEnds posts the invalidations that settle collected in this turn, as one list.
func (w *windows) postEnds() error {
	if len(w.ends) == 0 {
		return nil
	}
	err := w.c.conn.QP().PostSend(w.ends)
	w.ends = w.ends[:0]
	return err
}

// ended is called when the last invalidation of the oldest waiting call has completed.
func (w *windows) ended() {
	x := w.closing[w.first]
	w.closing[w.first] = nil
	if w.first++; w.first == len(w.closing) {
		w.closing, w.first = w.closing[:0], 0
	}
	w.closed(x)
	x.finish(x.outcome)
}

// closed releases the call's memory and windows, which the server cannot reach any more.
func (w *windows) closed(x *exchange) {
	w.sqFree += len(x.wins)
	for _, win := range x.wins {
		w.release(win)
		w.free = append(w.free, win)
	}
	w.empty(x)
}

// unused is closed for a call whose list was not posted.
func (w *windows) unused(x *exchange) {
	w.sqFree -= len(x.wins)
	w.closed(x)
	clear(w.wrs)
	w.wrs = w.wrs[:0]
}

// revoke closes the call's windows at the device, at once and whatever the server does. A window
// that was destroyed cannot be bound again, so it does not go back to free. This is the slow
// path: each window costs a system call.
func (w *windows) revoke(x *exchange) {
	w.sqFree += len(x.wins)
	for _, win := range x.wins {
		win.mw.Close()
		w.release(win)
	}
	x.long = 0
	w.empty(x)
}

// empty copies a long reply out of the arena and frees the call's block.
func (w *windows) empty(x *exchange) {
	if x.long > 0 {
		x.reply = append(x.reply[:0], x.arenaRoom[:x.long]...)
	}
	if x.arenaRoom != nil {
		w.arena.Free(x.arenaRoom)
	}
	x.arenaRoom, x.long = nil, 0
	clear(x.wins)
	x.wins = x.wins[:0]
}

// release frees the memory of a window that is closed.
func (w *windows) release(win *window) {
	if win.own != nil {
		win.own.Close()
	}
	if win.block != nil {
		w.arena.Free(win.block)
	}
	win.own, win.block = nil, nil
}

// fail ends the calls that wait for invalidations.
func (w *windows) fail(why error) {
	for _, x := range w.closing[w.first:] {
		w.revoke(x)
		x.finish(why)
	}
	w.closing, w.first, w.ends = nil, 0, nil
}

// close releases everything. The queue pair is gone.
func (w *windows) close() {
	for _, win := range w.free {
		win.mw.Close()
	}
	w.free = nil
	w.mr.Close()
	w.arena.Close()
}
