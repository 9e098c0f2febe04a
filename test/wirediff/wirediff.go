// Package wirediff holds the packets of one implementation of RoCEv2 against those of
// another that have played the same sequence (test/rdma/requests). It reads a
// capture, takes out what must differ between two runs, and compares the rest line by
// line.
package wirediff

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"net/netip"
	"slices"
	"strings"

	"github.com/rstored/rstored/rdma/cm"
	"github.com/rstored/rstored/rdma/wire"
	"github.com/rstored/rstored/rdma/wire/wiretest"
	"github.com/rstored/rstored/test/rdma/requests"
)

// Session is one connection of a capture.
type Session struct {
	Name           string // in the sequence, once it is known
	Client, Server netip.Addr
	// Asked and Told are the requests of the client and of the server, each with
	// the responses to them, in the order seen. What was sent by one side in answer
	// to the other and what it sent on its own have sequence numbers of their own, and
	// their order among each other is chance.
	Requests, Replies []Packet
	// Over is whether the connection was ended by messages.
	Over bool

	what    *requests.Connection
	req     cm.REQ
	rep     cm.REP
	replied bool
	regions []region
}

// Packet is one packet of a session.
type Packet struct {
	Number  int    // in the capture
	Time    int64  // of the capture, in nanoseconds since 1970
	Session string // of it
	Hello   bool   // the server's message of where its memory is
	wire.Packet
	At int32 // PSN, counted from the first of its direction in REQ or REP
}

// region is memory of the server.
type region struct {
	name string
	addr uint64
	key  uint32
}

// Sessions are the connections of a capture in the order of their beginning.
func Sessions(pcap []byte) ([]*Session, error) {
	frames, err := wiretest.Frames(pcap)
	if err != nil {
		return nil, err
	}
	return Read(frames)
}

// Read is Sessions of packets that were taken out of a capture already.
func Read(frames []wiretest.Frame) (out []*Session, err error) {
	for _, f := range frames {
		var p wire.Packet
		if err := p.Parse(f.Datagram); err != nil {
			return nil, fmt.Errorf("packet %d: %w", f.Number, err)
		}
		flow := wire.Flow{Src: f.Src, Dst: f.Dst, SrcPort: f.SrcPort}
		if ok, _, _ := wire.VerifyICRC(&flow, f.Datagram, 0); !ok {
			return nil, fmt.Errorf("packet %d: the ICRC is wrong", f.Number)
		}
		p.Src, p.Dst = f.Src, f.Dst
		switch {
		case p.Op == wire.UDSendOnly && p.DestQPN == wire.QP1:
			if out, err = managed(out, &p); err != nil {
				return nil, fmt.Errorf("packet %d: %w", f.Number, err)
			}
		case p.Op.IsRC():
			s := owner(out, &p)
			if s == nil {
				return nil, fmt.Errorf("packet %d: %v to queue pair %#x, which no connection has", f.Number, p.Op, p.DestQPN)
			}
			s.add(Packet{Number: f.Number, Time: f.Time, Packet: p})
		default:
			return nil, fmt.Errorf("packet %d: %v", f.Number, p.Op)
		}
	}
	return out, nil
}

// managed takes note of a message of the connection manager.
func managed(all []*Session, p *wire.Packet) ([]*Session, error) {
	h, err := cm.ParseHeader(p.Payload)
	if err != nil {
		return all, err
	}
	// The last one that these two hosts have.
	var last *Session
	for _, s := range all {
		if s.Client == p.Src && s.Server == p.Dst || s.Client == p.Dst && s.Server == p.Src {
			last = s
		}
	}
	switch h.Attr {
	case cm.AttrREQ:
		req := cm.ParseREQ(p.Payload)
		// or it was sent again
		if last == nil || last.Client != p.Src || last.req.QPN != req.QPN || last.req.LocalID != req.LocalID {
			all = append(all, &Session{Client: p.Src, Server: p.Dst, req: req})
		}
	case cm.AttrREP:
		if rep := cm.ParseREP(p.Payload); last != nil && last.Server == p.Src && rep.RemoteID == last.req.LocalID {
			last.rep, last.replied = rep, true
		}
	case cm.AttrREJ:
		return all, errors.New("a connection was refused")
	case cm.AttrDREP:
		ids := cm.ParseIDs(p.Payload)
		for _, s := range all {
			if s.Client == p.Src && ids.LocalID == s.req.LocalID && ids.RemoteID == s.rep.LocalID ||
				s.Server == p.Src && ids.LocalID == s.rep.LocalID && ids.RemoteID == s.req.LocalID {
				s.Over = true
			}
		}
	}
	return all, nil
}

// owner is the session that a packet belongs to.
func owner(all []*Session, p *wire.Packet) *Session {
	for _, s := range slices.Backward(all) {
		if s.replied && s.Client == p.Src && s.Server == p.Dst && s.rep.QPN == p.DestQPN ||
			s.Server == p.Src && s.Client == p.Dst && s.req.QPN == p.DestQPN {
			return s
		}
	}
	return nil
}

func (s *Session) add(p Packet) {
	if p.Op.Is(wire.Request) == (p.Src == s.Client) {
		p.At = p.PSN.Sub(wire.PSN(s.rep.PSN))
		s.Requests = append(s.Requests, p)
		return
	}
	p.At = p.PSN.Sub(wire.PSN(s.req.PSN))
	if len(s.Replies) == 0 {
		p.Hello = true
		s.learn(p.Payload)
	}
	s.Replies = append(s.Replies, p)
}

// is gives the session its place in the sequence.
func (s *Session) is(c *requests.Connection) {
	s.Name, s.what = c.Name, c
	for _, l := range [][]Packet{s.Requests, s.Replies} {
		for i := range l {
			l[i].Session = c.Name
		}
	}
}

// learn reads the server's memory out of its first message.
func (s *Session) learn(b []byte) {
	for i := 0; i < requests.Regions && len(b) >= requests.RegionLen; i++ {
		s.regions = append(s.regions, region{
			requests.RegionName(i), binary.BigEndian.Uint64(b),
			binary.BigEndian.Uint32(b[12:]),
		})
		b = b[requests.RegionLen:]
	}
}

// text is what must agree of one packet. Queue pair numbers and the ICRC are held
// against the session and the datagram when it is read.
func (s *Session) text(p *Packet) string {
	var b strings.Builder
	arrow := "->"
	if p.Op.Is(wire.Response) {
		arrow = "<-"
	}
	fmt.Fprintf(&b, "%s %d %v P_Key %#x", arrow, p.At, p.Op, p.PKey)
	for _, f := range []struct {
		set  bool
		name string
	}{{p.AckReq, "AckReq"}, {p.Solicited, "Solicited"}, {p.MigReq, "MigReq"}, {p.FECN, "FECN"}, {p.BECN, "BECN"}} {
		if f.set {
			b.WriteString(" " + f.name)
		}
	}
	if p.Op.Is(wire.HasRETH) {
		fmt.Fprintf(&b, " RETH %s %d", s.place(p.RETH.VA, p.RETH.RKey), p.RETH.Len)
	}
	if p.Op.Is(wire.HasAtomic) {
		fmt.Fprintf(&b, " AtomicETH %s %d", s.place(p.Atomic.VA, p.Atomic.RKey), p.Atomic.SwapAdd)
		if p.Op == wire.CompareSwap { // otherwise the field has no meaning, and rdma_rxe leaves it as it was
			fmt.Fprintf(&b, " compare %d", p.Atomic.Compare)
		}
	}
	if p.Op.Is(wire.HasAETH) {
		fmt.Fprintf(&b, " AETH %#x MSN %d", p.AETH.Syndrome, p.AETH.MSN)
	}
	if p.Op.Is(wire.HasAtomicAck) {
		fmt.Fprintf(&b, " was %d", p.AtomicAck)
	}
	if p.Op.Is(wire.HasImm) {
		fmt.Fprintf(&b, " immediate %#x", p.Imm)
	}
	if p.Op.Is(wire.HasIETH) {
		fmt.Fprintf(&b, " invalidates %s", s.key(p.InvRKey))
	}
	if p.Op.Is(wire.Payload) {
		fmt.Fprintf(&b, " %d bytes, pad %d", len(p.Payload), p.Pad)
		if !p.Hello {
			fmt.Fprintf(&b, ", CRC %08x", crc32.ChecksumIEEE(p.Payload))
		}
	}
	return b.String()
}

// place is an address by the region that the R_Key belongs to.
func (s *Session) place(va uint64, key uint32) string {
	for _, r := range s.regions {
		if r.key == key || requests.Spoil(r.key) == key {
			return fmt.Sprintf("%s+%d", s.key(key), va-r.addr)
		}
	}
	return s.key(key)
}

// key is an R_Key by the region that it belongs to, or that it was made of.
func (s *Session) key(key uint32) string {
	for _, r := range s.regions {
		switch key {
		case r.key:
			return r.name
		case requests.Spoil(r.key):
			return r.name + "!"
		}
	}
	return "of no region"
}
