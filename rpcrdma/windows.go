package rpcrdma

import (
	"fmt"

	"github.com/rstored/rstored/rdma"
)

// windows is how a client opens memory to its server over a device whose memory windows are bound by
// work requests, and where registering memory is dear and no region may be invalidated by the peer.
//
// What is opened is part of memory that stays registered: the client's own, and what its user registered. Other
// memory is registered for the call. A call's windows are bound by the list of requests that its SEND ends, so
// that they are open when the server hears of them. When the reply has come, the windows that it has not
// invalidated are, and the caller hears of the reply when that is done: no one but the caller has the memory
// then. The memory of a call that is given up, or whose connection ends, is closed by taking the windows from the
// device, because the server may be about to invalidate them.
//
// It belongs to the client's loop.
type windows struct {
	c       *Client
	arena   *rdma.Arena
	mr      rdma.MR       // of the arena
	free    []*window     // not bound
	sqFree  int           // entries of the send queue that nobody has a claim to
	took    []int         // what the message in each send buffer gives back when it was sent
	wrs     []rdma.SendWR // of the call that is being encoded
	ends    []rdma.SendWR // of the calls whose replies came in this turn
	closing []*exchange   // that wait for these, oldest first
	first   int           // of closing
}

// window opens a piece of memory.
type window struct {
	mw    rdma.MW
	key   uint32    // of the bind
	bind  rdma.Bind // which a provider may look at until it is carried out
	own   rdma.MR   // registered for the piece alone, or nil
	block []byte    // of the arena, that the piece was copied to, or nil
}

const (
	// windowMemory is the client's own memory, in bytes: for Reply chunks, and for copies of short
	// pieces that are not registered.
	windowMemory = 4 << 20
	// windowCopyMax is the longest piece that is copied there, in bytes; copying is cheaper than registering.
	windowCopyMax = 32 << 10
	// windowsPerCall is the most that one may need: the Read list, a Write chunk, the Reply chunk.
	windowsPerCall = MaxReadSegments + 2
	// windowRequests is what the longest call takes of the send queue: binds, SEND, and the end of each window.
	windowRequests = 1 + 2*windowsPerCall
)

// windowed reports whether the client of a device opens memory by windows.
func windowed(lim rdma.Limits) bool {
	return lim.Windows && !lim.PeerInval && (lim.WRs == 0 || lim.WRs >= 2*windowRequests)
}

// newWindows is the windows of a client with so many send buffers. entries is how long the send queue has to be.
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

// take returns a window that is not bound, with a key for its bind.
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

// expose opens b to the server when the call is posted.
func (w *windows) expose(x *exchange, b []byte, access rdma.Access) (seg Segment, err error) {
	win, err := w.take()
	if err != nil {
		return Segment{}, fmt.Errorf("a memory window: %w", err)
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

// room lends the call n bytes for its Reply chunk, or reports that there are none.
func (w *windows) room(x *exchange, n int) bool {
	x.lent = w.arena.Alloc(n)
	return x.lent != nil
}

// post sends the message in send buffer i, after the binds that belong to it.
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

// sent is called when the message in send buffer i has been sent.
func (w *windows) sent(i int) { w.sqFree += w.took[i] }

// settle is called when the reply has come, which invalidated a key if has is set. It reports whether all of
// the call's memory is closed; otherwise the caller is told when it is.
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
		return false, fmt.Errorf("%w: it invalidates a key that is not the call's", ErrProtocol)
	}
	if open == 0 {
		w.closed(x)
		return true, nil
	}
	w.ends[len(w.ends)-1].Flags = rdma.Signaled
	w.closing = append(w.closing, x)
	return false, nil
}

// postEnds posts what settle has collected.
func (w *windows) postEnds() error {
	if len(w.ends) == 0 {
		return nil
	}
	err := w.c.conn.QP().PostSend(w.ends)
	w.ends = w.ends[:0]
	return err
}

// ended is called when the last window of the oldest call that waits for it is closed.
func (w *windows) ended() {
	x := w.closing[w.first]
	w.closing[w.first] = nil
	if w.first++; w.first == len(w.closing) {
		w.closing, w.first = w.closing[:0], 0
	}
	w.closed(x)
	x.finish(x.outcome)
}

// closed takes back what the call had, now that nobody else has it.
func (w *windows) closed(x *exchange) {
	w.sqFree += len(x.wins)
	for _, win := range x.wins {
		w.release(win)
		w.free = append(w.free, win)
	}
	w.empty(x)
}

// unused is closed for a call that was not posted.
func (w *windows) unused(x *exchange) {
	w.sqFree -= len(x.wins)
	w.closed(x)
	clear(w.wrs)
	w.wrs = w.wrs[:0]
}

// cut closes the call's memory at once, whatever the server does.
func (w *windows) cut(x *exchange) {
	w.sqFree += len(x.wins)
	for _, win := range x.wins {
		win.mw.Close()
		w.release(win)
	}
	x.long = 0
	w.empty(x)
}

// empty takes the call's own memory back. What the server has put there is the caller's.
func (w *windows) empty(x *exchange) {
	if x.long > 0 {
		x.reply = append(x.reply[:0], x.lent[:x.long]...)
	}
	if x.lent != nil {
		w.arena.Free(x.lent)
	}
	x.lent, x.long = nil, 0
	clear(x.wins)
	x.wins = x.wins[:0]
}

// release lets go of the memory of a window that is closed.
func (w *windows) release(win *window) {
	if win.own != nil {
		win.own.Close()
	}
	if win.block != nil {
		w.arena.Free(win.block)
	}
	win.own, win.block = nil, nil
}

// fail ends the calls that wait for their memory to be closed.
func (w *windows) fail(why error) {
	for _, x := range w.closing[w.first:] {
		w.cut(x)
		x.finish(why)
	}
	w.closing, w.first, w.ends = nil, 0, nil
}

// close gives everything back, when the queue pair is gone.
func (w *windows) close() {
	for _, win := range w.free {
		win.mw.Close()
	}
	w.free = nil
	w.mr.Close()
	w.arena.Close()
}
