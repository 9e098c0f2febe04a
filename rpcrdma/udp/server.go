package udp

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rstored/rstored/rpcrdma/rpc"
	"github.com/rstored/rstored/rpcrdma/xdr"
)

// MaxMessage is the longest call and the longest reply in bytes (UDPMSGSIZE of the RPC libraries is
// 8800).
const MaxMessage = 8800

// headMin is the length of a call up to its procedure, in bytes.
const headMin = 24

// Config says what a Listener serves, and which hosts may call.
type Config struct {
	// Route returns the server of a procedure, or nil if the call gets no answer.
	Route func(prog, vers, proc uint32) *rpc.Server
	// Admits reports whether a host may call. It must not wait.
	Admits func(netip.Addr) bool
	// MaxCalls bounds the calls in progress. While there are as many, the socket is not read. 0 means
	// 64.
	MaxCalls int
	// Later defers serving to Start.
	Later  bool
	Logger *slog.Logger
}

// Counters of a Listener since its start.
type Counters struct {
	Calls, Replies, BytesIn, BytesOut uint64
	Malformed                         uint64 // no call, or too long
	Denied                            uint64 // from a host that is not admitted, or to a broadcast address
	Unanswered                        uint64 // of a procedure that is not served in datagrams
	Withheld                          uint64 // the reply was too long, and SYSTEM_ERR was sent instead
	WriteErrors                       uint64 // a reply could not be sent, or not at once
}

type counters struct {
	calls, replies, bytesIn, bytesOut, malformed, denied, unanswered, withheld, writeErrors atomic.Uint64
}

// Listener serves the datagrams of a socket. One goroutine reads them; replies are sent by the
// goroutines that made them. Lock order: mu, then turn, then budget.mu.
type Listener struct {
	c      *net.UDPConn
	to     sender
	cfg    Config
	conn   int64
	n      counters
	budget budget
	free   chan *call // calls that are not in progress
	closed atomic.Bool
	stop   chan struct{} // closed by Shutdown
	done   chan struct{} // closed when the reader has ended

	// turn is locked while a datagram is read and dispatched, and between Pause(true) and
	// Pause(false).
	turn   sync.Mutex
	mu     sync.Mutex // guards the fields below
	paused bool
	begun  bool
}

// call is a Call with the memory of its datagrams. It belongs to the reader, then to the server
// until Reply, and is in free otherwise.
type call struct {
	rpc.Call
	in    [MaxMessage + 1]byte // the last byte shows that a datagram was longer
	n     int
	out   []byte
	local local
}

// Serve serves the calls that arrive at a socket, which then belongs to the Listener. It returns at
// once; Shutdown ends it.
func (cfg Config) Serve(c *net.UDPConn) (*Listener, error) {
	to, err := wantLocal(c)
	if err != nil {
		return nil, err
	}
	cfg.MaxCalls = cmp.Or(cfg.MaxCalls, 64)
	cfg.Logger = cmp.Or(cfg.Logger, slog.New(slog.DiscardHandler))
	l := &Listener{
		c: c, to: to, cfg: cfg, conn: rpc.NextConn(), free: make(chan *call, cfg.MaxCalls),
		stop: make(chan struct{}), done: make(chan struct{}),
	}
	for range cfg.MaxCalls {
		l.free <- nil // made when first used
	}
	if !cfg.Later {
		l.Start()
	}
	return l, nil
}

// Start begins to serve, once.
func (l *Listener) Start() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.begun {
		l.begun = true
		go l.serve()
	}
}

// Addr is the address of the socket.
func (l *Listener) Addr() netip.AddrPort {
	a := l.c.LocalAddr().(*net.UDPAddr).AddrPort()
	return netip.AddrPortFrom(a.Addr().Unmap(), a.Port())
}

// Counters returns what was counted so far.
func (l *Listener) Counters() Counters {
	n := &l.n
	return Counters{
		Calls: n.calls.Load(), Replies: n.replies.Load(), BytesIn: n.bytesIn.Load(), BytesOut: n.bytesOut.Load(),
		Malformed: n.malformed.Load(), Denied: n.denied.Load(), Unanswered: n.unanswered.Load(),
		Withheld: n.withheld.Load(), WriteErrors: n.writeErrors.Load(),
	}
}

var longPast = time.Unix(1, 0)

// Pause stops reading, or continues. After Pause(true) has returned no call is dispatched; the
// socket buffers what arrives, for this process or for another one that has the socket.
func (l *Listener) Pause(on bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case on == l.paused:
	case on:
		_ = l.c.SetReadDeadline(longPast)
		l.turn.Lock()
		l.paused = true
	default:
		_ = l.c.SetReadDeadline(time.Time{})
		l.paused = false
		l.turn.Unlock()
	}
}

// Shutdown stops reading, waits for the calls in progress as long as ctx lasts, and closes the
// socket.
func (l *Listener) Shutdown(ctx context.Context) error {
	if l.closed.Swap(true) {
		return nil
	}
	close(l.stop)
	l.Pause(false)
	_ = l.c.SetReadDeadline(longPast)
	l.mu.Lock()
	if !l.begun {
		l.begun = true
		close(l.done)
	}
	l.mu.Unlock()
	select {
	case <-l.done:
	case <-ctx.Done():
		return l.c.Close()
	}
	for range l.cfg.MaxCalls {
		select {
		case <-l.free:
		case <-ctx.Done(): // their replies are lost
			return l.c.Close()
		}
	}
	return l.c.Close()
}

func (l *Listener) serve() {
	defer close(l.done)
	var oob [128]byte
	for {
		var k *call
		select {
		case k = <-l.free:
		case <-l.stop:
			return
		}
		if k == nil {
			k = &call{}
			k.Reply, k.TransportData = l.reply, k
		}
		l.turn.Lock()
		if l.closed.Load() {
			l.turn.Unlock()
			l.free <- k
			return
		}
		n, oobn, _, from, err := l.c.ReadMsgUDPAddrPort(k.in[:], oob[:])
		if err != nil {
			l.turn.Unlock()
			l.free <- k
			if errors.Is(err, net.ErrClosed) {
				return
			}
			if !errors.Is(err, os.ErrDeadlineExceeded) {
				l.cfg.Logger.Debug("reading a datagram", "error", err.Error())
			}
			continue
		}
		k.n = n
		l.take(k, from, oob[:oobn])
		l.turn.Unlock()
	}
}

// take dispatches a datagram, or drops it.
func (l *Listener) take(k *call, from netip.AddrPort, oob []byte) {
	l.n.bytesIn.Add(uint64(k.n))
	msg := k.in[:k.n]
	at, unicast := localOf(oob)
	const isCall = 0
	switch {
	case !unicast:
		l.n.denied.Add(1)
	case len(msg) < headMin, len(msg) > MaxMessage, binary.BigEndian.Uint32(msg[4:]) != isCall:
		l.n.malformed.Add(1)
	case !l.cfg.Admits(from.Addr().Unmap()): // last, as it may have a name looked up
		l.n.denied.Add(1)
	default:
		word := func(i int) uint32 { return binary.BigEndian.Uint32(msg[4*i:]) }
		srv := l.cfg.Route(word(3), word(4), word(5))
		if srv == nil {
			l.n.unanswered.Add(1)
			break
		}
		l.n.calls.Add(1)
		k.local = at
		k.Peer = rpc.Peer{
			Addr: netip.AddrPortFrom(from.Addr().Unmap(), from.Port()), Local: netip.AddrPortFrom(at.addr, l.Addr().Port()),
			Transport: rpc.TransportUDP, Conn: l.conn,
		}
		k.Reset()
		srv.Dispatch(&k.Call, xdr.NewDecoder(msg), false)
		return
	}
	l.free <- k
}

// reply is rpc.Call.Reply.
func (l *Listener) reply(rc *rpc.Call, drop bool) {
	k := rc.TransportData.(*call)
	if !drop {
		l.send(k)
	}
	if cap(k.out) > MaxMessage {
		k.out = nil
	}
	if cap(k.Res.B) > MaxMessage {
		k.Res.B = nil
	}
	k.Res.Reset()
	l.free <- k
}

// growth is how many times as long as its call a reply may always be.
const growth = 3

func (l *Listener) send(k *call) {
	k.out = k.Res.AppendFlat(k.out[:0])
	if n := len(k.out); n > MaxMessage || n > growth*k.n && !l.budget.take(n, time.Now()) {
		l.n.withheld.Add(1)
		const reply, accepted, authNone = 1, 0, 0
		k.out = k.out[:0]
		for _, w := range []uint32{k.XID, reply, accepted, authNone, 0, uint32(rpc.SystemErr)} {
			k.out = binary.BigEndian.AppendUint32(k.out, w)
		}
	}
	n, err := l.to.send(k.out, k.local, k.Peer.Addr)
	l.n.bytesOut.Add(uint64(n))
	if err != nil {
		l.n.writeErrors.Add(1)
		return
	}
	l.n.replies.Add(1)
}

// budget bounds the bytes of long replies to budgetRate in a second, and as many at once. The zero
// value is full.
type budget struct {
	mu   sync.Mutex
	used float64
	at   time.Time
}

const budgetRate = 64 << 10

// take reports whether n more bytes may be sent at the time now, and counts them.
func (b *budget) take(n int, now time.Time) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.at.IsZero() {
		b.used = max(b.used-now.Sub(b.at).Seconds()*budgetRate, 0)
	}
	b.at = now
	if b.used+float64(n) > budgetRate {
		return false
	}
	b.used += float64(n)
	return true
}
