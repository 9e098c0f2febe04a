package requests

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/rstored/rstored/rdma"
	"github.com/rstored/rstored/rdma/endpoint"
)

// depth is how many READs and atomics a connection may have under way.
const depth = 4

// late is how long after the client's sign a late receive is posted: long enough for
// the SEND to have met none.
const late = 100 * time.Millisecond

// immediate and a line's number are its immediate data.
const immediate = 0x01020300

func params() rdma.ConnParams {
	return rdma.ConnParams{ResponderResources: depth, InitiatorDepth: depth, RetryCount: 7, RNRRetryCount: 7}
}

// Server is a server that listens.
type Server struct {
	all       []Connection
	loss      *Loss
	listeners []*endpoint.Listener
}

// Listen listens for the connections of a sequence. Loss is that of the device; without
// one nothing is lost.
func Listen(dev rdma.Device, loss *Loss, all []Connection) (*Server, error) {
	s := &Server{all: all, loss: loss}
	for i, c := range all {
		l, err := endpoint.Listen(dev, uint16(BasePort+i),
			endpoint.Config{RecvDepth: c.Receives, RecvSize: c.Bytes, Params: params()})
		if err != nil {
			s.Close()
			return nil, err
		}
		s.listeners = append(s.listeners, l)
	}
	return s, nil
}

// Close stops listening.
func (s *Server) Close() {
	for _, l := range s.listeners {
		_ = l.Close()
	}
}

// Serve serves each connection once.
func (s *Server) Serve(ctx context.Context) error {
	for i := range s.all {
		c, err := s.listeners[i].Accept(ctx)
		if err == nil {
			s.loss.arm(&s.all[i])
			err = serve(ctx, c, &s.all[i])
			c.Close()
		}
		if err != nil {
			return fmt.Errorf("%s: %w", s.all[i].Name, err)
		}
	}
	return nil
}

// serve tells a client of the memory and waits until it has left.
func serve(ctx context.Context, c *endpoint.Conn, what *Connection) error {
	rw, ro := make([]byte, rwLen), make([]byte, roLen)
	for i := zeros; i < rwLen; i++ {
		rw[i] = byte(31*i + 7)
	}
	for i := range ro {
		ro[i] = byte(13*i + 1)
	}
	anything := rdma.LocalWrite | rdma.RemoteWrite | rdma.RemoteRead
	rwMR, err := c.Register(rw, anything|rdma.RemoteAtomic)
	if err != nil {
		return err
	}
	defer rwMR.Close()
	roMR, err := c.Register(ro, rdma.LocalWrite|rdma.RemoteRead)
	if err != nil {
		return err
	}
	defer roMR.Close()
	hello := describe(describe(nil, rwMR), roMR)
	for i := range windows {
		at := windowsAt + i*windowLen
		w, err := rwMR.Window(rw[at:at+windowLen], anything)
		if err != nil {
			return err
		}
		defer w.Close()
		hello = describe(hello, w)
	}
	if what.Deny {
		if err := onLoop(c, func() error {
			return c.QP().Modify(rdma.QPAttr{
				State:  rdma.StateRTS,
				Access: rdma.LocalWrite,
			})
		}); err != nil {
			return err
		}
	}
	m, err := c.Register(hello, rdma.LocalWrite)
	if err != nil {
		return err
	}
	defer m.Close()
	if err := c.Send(ctx, m, 0, len(hello)); err != nil {
		return fmt.Errorf("telling of the memory: %w", err)
	}
	if what.Late || what.Gone {
		if err := signed(ctx, c, rw); err != nil {
			return err
		}
	}
	switch {
	case what.Late:
		// Whoever takes the first message posts its receive again.
		if _, err := c.Recv(ctx); err != nil {
			return err
		}
	case what.Gone:
		gone := []rdma.SGE{{Buf: make([]byte, what.Bytes), LKey: Spoil(roMR.LKey())}}
		if err := onLoop(c, func() error { return c.QP().PostRecv([]rdma.RecvWR{{ID: 1 << 63, SGL: gone}}) }); err != nil {
			return err
		}
	}
	select {
	case <-c.Done():
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func describe(b []byte, m rdma.MR) []byte {
	b = binary.BigEndian.AppendUint64(b, m.Addr())
	b = binary.BigEndian.AppendUint32(b, uint32(len(m.Bytes())))
	return binary.BigEndian.AppendUint32(b, m.RKey())
}

// onLoop runs a function on the connection's loop, which its queue pair and memory belong to.
func onLoop(c *endpoint.Conn, do func() error) error {
	done := make(chan error, 1)
	if !c.Loop().Submit(func() { done <- do() }) {
		return rdma.ErrClosed
	}
	return <-done
}

// signed waits until some time after the client's sign in the memory.
func signed(ctx context.Context, c *endpoint.Conn, rw []byte) error {
	for done := false; !done; {
		if err := onLoop(c, func() error {
			done = rw[0] != 0
			return nil
		}); err != nil {
			return err
		}
		wait := time.Millisecond
		if done {
			wait = late
		}
		select {
		case <-time.After(wait):
		case <-c.Done():
			return errors.New("the client left before its sign")
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// Call plays the client of all connections against the server at an address. Loss is that
// of the device; without one nothing is lost.
func Call(ctx context.Context, dev rdma.Device, loss *Loss, to netip.Addr, all []Connection) error {
	for i := range all {
		if err := call(ctx, dev, loss, netip.AddrPortFrom(to, uint16(BasePort+i)), &all[i]); err != nil {
			return fmt.Errorf("%s: %w", all[i].Name, err)
		}
	}
	return nil
}

func call(ctx context.Context, dev rdma.Device, loss *Loss, to netip.AddrPort, what *Connection) error {
	c, err := endpoint.Dial(ctx, dev, to, endpoint.Config{RecvDepth: 1, RecvSize: Regions * RegionLen, Params: params()})
	if err != nil {
		return err
	}
	defer c.Close()
	p := player{c: c, mtu: c.Negotiated().PathMTU}
	buf := make([]byte, rwLen)
	for i := range buf {
		buf[i] = byte(7*i + 3)
	}
	if p.out, err = c.Register(buf, rdma.LocalWrite); err != nil {
		return err
	}
	defer p.out.Close()
	if p.in, err = c.Register(make([]byte, rwLen), rdma.LocalWrite); err != nil {
		return err
	}
	defer p.in.Close()
	hello, err := c.Recv(ctx)
	if err != nil {
		return err
	}
	if hello.Len != Regions*RegionLen {
		return fmt.Errorf("the server tells of its memory in %d bytes", hello.Len)
	}
	for i := range Regions {
		b := hello.Data[i*RegionLen:]
		p.told[i] = endpoint.Remote{Addr: binary.BigEndian.Uint64(b), RKey: binary.BigEndian.Uint32(b[12:])}
	}
	loss.arm(what)
	for i := range what.Lines {
		if err := p.play(ctx, &what.Lines[i]); err != nil {
			return fmt.Errorf("line %d: %w", what.Lines[i].Number, err)
		}
	}
	c.Disconnect()
	select {
	case <-c.Done():
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// player is the client of one connection.
type player struct {
	c       *endpoint.Conn
	mtu     rdma.MTU
	out, in rdma.MR
	told    [Regions]endpoint.Remote
}

// play makes one request and waits for it.
func (p *player) play(ctx context.Context, l *Line) error {
	wr := rdma.SendWR{Op: l.Op, Compare: l.Compare, SwapAdd: l.Swap}
	if l.Solicited {
		wr.Flags = rdma.Solicited
	}
	if l.Region >= 0 {
		r := p.told[l.Region]
		if l.WrongKey {
			r.RKey = Spoil(r.RKey)
		}
		wr.RemoteAddr, wr.RKey = r.Addr+uint64(l.Offset.At(p.mtu)), r.RKey
	}
	m := p.out
	switch l.Op {
	case rdma.OpSendInv:
		wr.InvRKey, wr.RemoteAddr, wr.RKey = wr.RKey, 0, 0
	case rdma.OpSendImm, rdma.OpWriteImm:
		wr.Imm = immediate + uint32(l.Number)
	case rdma.OpRead, rdma.OpCompareSwap, rdma.OpFetchAdd:
		m = p.in
	}
	if n := l.Length.At(p.mtu); n > 0 {
		wr.SGL = []rdma.SGE{{Buf: m.Bytes()[:n], LKey: m.LKey()}}
	}
	wc, err := p.c.Do(ctx, wr)
	var failed *endpoint.Error
	if err != nil && !errors.As(err, &failed) {
		return err
	}
	if wc.Status != l.Status && (wc.Status != l.Or || l.Or == rdma.Success) {
		return fmt.Errorf("it completes with %v (%d), not %v (%d)", wc.Status, wc.Status, l.Status, l.Status)
	}
	return nil
}
