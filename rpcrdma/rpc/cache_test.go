package rpc

import (
	"bytes"
	"net/netip"
	"testing"

	"github.com/rstored/rstored/rpcrdma/xdr"
)

// client is a process on a client's host, with a connection.
type client struct {
	peer Peer
	xid  uint32
}

var lastPort uint16

// process starts a process on the host.
func process(host string, by Transport) *client {
	c := &client{peer: Peer{Addr: netip.AddrPortFrom(netip.MustParseAddr(host), 0), Transport: by}}
	c.reconnect(true)
	return c
}

// reconnect gives the process a new connection, from a new port or from the same port.
func (c *client) reconnect(port bool) {
	if port {
		lastPort++
		c.peer.Addr = netip.AddrPortFrom(c.peer.Addr.Addr(), lastPort)
	}
	c.peer.Conn = NextConn()
}

// call sends a message. ack says whether the client acknowledges the reply.
func (c *client) call(t *testing.T, s *Server, msg []byte, ack bool) (reply []byte) {
	t.Helper()
	return sendFrom(t, s, c.peer, msg, func(c *Call) {
		if ack {
			c.Delivery().Delivered()
		}
	})
}

func counting() (*testService, *Server) {
	svc := &testService{}
	return svc, NewServer(ServerConfig{Programs: svc.programs(), Workers: 1})
}

// TestRetransmissions: which calls get the cached reply, and which are executed.
func TestRetransmissions(t *testing.T) {
	const host, other = "192.0.2.1", "192.0.2.2"
	msg := call(5, testProg, 2, procOnce, 1)
	for _, k := range []struct {
		name string
		ack  bool // of the first reply
		from func(first *client) *client
		want bool // the second call is a retransmission of the first
	}{
		{"on the same connection", true, func(c *client) *client { return c }, true},
		{"on the same connection, not acknowledged", false, func(c *client) *client { return c }, true},
		{"on a new one from the same port", true, func(c *client) *client { c.reconnect(false); return c }, true},
		{"on a new one, not acknowledged", false, func(c *client) *client { c.reconnect(true); return c }, true},
		{"of another process", true, func(*client) *client { return process(host, TransportTCP) }, false},
		{"of another host", false, func(*client) *client { return process(other, TransportTCP) }, false},
		{
			"by another transport, not acknowledged", false, func(*client) *client { return process(host, TransportRDMA) },
			true,
		},
		{"by another transport, acknowledged", true, func(*client) *client { return process(host, TransportRDMA) }, false},
		{
			"by another transport from the same port", true,
			func(c *client) *client { c.peer.Transport = TransportRDMA; c.reconnect(false); return c }, false,
		},
		{"with TLS", false, func(c *client) *client { c.peer.Security = TLS; return c }, false},
		{"by another name", false, func(c *client) *client { c.peer.Name = "x"; return c }, false},
		{"on an older connection", false, func(c *client) *client {
			d := *c
			d.peer.Addr = netip.MustParseAddrPort("192.0.2.1:9999")
			d.peer.Conn--
			return &d
		}, false},
	} {
		svc, s := counting()
		c := process(host, TransportTCP)
		first := c.call(t, s, msg, k.ack)
		again := k.from(c).call(t, s, msg, true)
		if got := svc.runs == 1; got != k.want || got != bytes.Equal(first, again) {
			t.Errorf("%s: executed %d times, %x and %x", k.name, svc.runs, first, again)
		}
		s.Close()
	}
}

// TestAskedAgain: a client that has acknowledged a reply sends the call again on its connection. So
// it has lost the reply, and may also send the call on a new connection.
func TestAskedAgain(t *testing.T) {
	svc, s := counting()
	defer s.Close()
	msg := call(5, testProg, 2, procOnce, 1)
	c := process("192.0.2.1", TransportTCP)
	c.call(t, s, msg, true)
	c.call(t, s, msg, false)
	c.reconnect(true)
	c.call(t, s, msg, true)
	if svc.runs != 1 {
		t.Errorf("executed %d times", svc.runs)
	}
	// A late acknowledgement of the first transmission does not count for the second one.
	var late Delivery
	d := process("192.0.2.1", TransportTCP)
	msg = call(6, testProg, 2, procOnce, 1)
	sendFrom(t, s, d.peer, msg, func(c *Call) { late = c.Delivery() })
	d.call(t, s, msg, false)
	late.Delivered()
	d.reconnect(true)
	d.call(t, s, msg, true)
	if svc.runs != 2 {
		t.Errorf("executed %d times, want 2", svc.runs)
	}
}

// TestForgedEvictFew: calls by UDP, however many, evict no replies of other transports, and not the
// latest replies by UDP.
func TestForgedEvictFew(t *testing.T) {
	svc, s := counting()
	defer s.Close()
	c, d := process("192.0.2.1", TransportTCP), process("192.0.2.2", TransportUDP)
	msg := call(5, testProg, 2, procOnce, 1)
	c.call(t, s, msg, true)
	for i := range uint32(s.cache.countMax) {
		d.call(t, s, call(i, testProg, 2, procOnce, 1), false)
	}
	before := svc.runs
	c.call(t, s, msg, true)
	last := uint32(s.cache.countMax) - 1
	d.call(t, s, call(last, testProg, 2, procOnce, 1), false)
	d.call(t, s, call(last+1-udpMax, testProg, 2, procOnce, 1), false)
	if svc.runs != before || s.cache.count != 1+udpMax {
		t.Errorf("%d were executed again, %d replies", svc.runs-before, s.cache.count)
	}
	d.call(t, s, call(last-udpMax, testProg, 2, procOnce, 1), false)
	if svc.runs != before+1 {
		t.Error("the oldest by UDP was not evicted")
	}
}

// settler is a connection that reports deliveries when Settle is called.
type settler struct {
	waiting []Delivery
	ended   bool
}

func (s *settler) Ended() bool { return s.ended }

func (s *settler) Settle() {
	for _, d := range s.waiting {
		d.Delivered()
	}
	s.waiting = nil
}

// TestSettler: the cache calls Settle before it looks up a call of another client, and before it
// hands over its replies.
func TestSettler(t *testing.T) {
	for _, handOver := range []bool{false, true} {
		svc, s := counting()
		defer s.Close()
		msg := call(5, testProg, 2, procOnce, 1)
		var via settler
		done := make(chan struct{})
		c := &Call{Peer: process("192.0.2.1", TransportTCP).peer, Settler: &via}
		c.Reply = func(c *Call, _ bool) {
			via.waiting = append(via.waiting, c.Delivery())
			close(done)
		}
		s.Dispatch(c, xdr.NewDecoder(msg), false)
		<-done
		if handOver {
			b, err := s.Snapshot()
			if err != nil {
				t.Fatal(err)
			}
			s = NewServer(ServerConfig{Programs: svc.programs(), Workers: 1})
			defer s.Close()
			if err := s.Restore(b, false); err != nil {
				t.Fatal(err)
			}
		}
		if process("192.0.2.1", TransportTCP).call(t, s, msg, true); svc.runs != 2 || len(via.waiting) > 0 {
			t.Errorf("executed %d times", svc.runs)
		}
	}
}

// TestOvertaken: a call arrives after its retransmission, because the server stood still. If its
// connection has ended, the call is dropped. If it has not, the call is of another process, and is
// executed.
func TestOvertaken(t *testing.T) {
	for _, ack := range []bool{false, true} {
		for _, ended := range []bool{false, true} {
			svc, s := counting()
			msg := call(5, testProg, 2, procOnce, 1)
			old, c := process("192.0.2.1", TransportTCP), process("192.0.2.1", TransportTCP)
			c.call(t, s, msg, ack)
			dropped := make(chan bool, 1)
			late := &Call{Peer: old.peer, Settler: &settler{ended: ended}}
			late.Reply = func(_ *Call, drop bool) { dropped <- drop }
			s.Dispatch(late, xdr.NewDecoder(msg), false)
			if got := <-dropped; got != ended || (svc.runs == 1) != ended {
				t.Errorf("acknowledged %v, connection ended %v: dropped %v, executed %d times", ack, ended, got, svc.runs)
			}
			s.Close()
		}
	}
}

// TestStampIsNoIdentity: a retransmission may have another stamp in its credential.
func TestStampIsNoIdentity(t *testing.T) {
	svc, s := counting()
	defer s.Close()
	msg := call(5, testProg, 2, procOnce, 1)
	c := process("192.0.2.1", TransportTCP)
	c.call(t, s, msg, false)
	msg[32]++
	if c.call(t, s, msg, false); svc.runs != 1 {
		t.Errorf("executed %d times", svc.runs)
	}
}
