//go:build rdmacore && linux && cgo

package verbs_test

import (
	"bytes"
	"context"
	"errors"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rstored/rstored/rdma"
	"github.com/rstored/rstored/rdma/endpoint"
	"github.com/rstored/rstored/rdma/verbs"
)

// buried opens a device that sends its failure records to the channel.
func buried(t *testing.T, at netip.Addr) (rdma.Device, chan verbs.Record) {
	t.Helper()
	records := make(chan verbs.Record, 16)
	d, err := verbs.Open(verbs.Config{Addr: at, OnFailure: func(r verbs.Record) { records <- r }})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = d.Close() })
	return d, records
}

func record(t *testing.T, from chan verbs.Record) verbs.Record {
	t.Helper()
	select {
	case r := <-from:
		return r
	case <-time.After(30 * time.Second):
		t.Fatal("no record")
	}
	return verbs.Record{}
}

// nothing checks that no record comes, because a connection has ended normally.
func nothing(t *testing.T, from chan verbs.Record) {
	t.Helper()
	select {
	case r := <-from:
		t.Errorf("a record of a good end: %+v", r)
	case <-time.After(200 * time.Millisecond):
	}
}

// serve accepts connections with a note, and sends the established ones to the channel.
func serve(t *testing.T, d rdma.Device, note func() rdma.Note) (netip.AddrPort, chan rdma.Conn) {
	t.Helper()
	pd, err := d.AllocPD()
	if err != nil {
		t.Fatal(err)
	}
	conns := make(chan rdma.Conn, 1)
	l, err := d.Listen(0, func(r rdma.ConnRequest) {
		cq, err := d.CreateCQ(r.Loop(), rdma.CQOptions{Depth: 16, OnEvent: func() {}})
		if err != nil {
			t.Error(err)
			return
		}
		c, err := r.Accept(rdma.QPConfig{
			PD: pd, SendCQ: cq, RecvCQ: cq,
			Caps: rdma.QPCaps{MaxSendWR: 4, MaxRecvWR: 4, MaxSendSGE: 1, MaxRecvSGE: 1},
		},
			rdma.ConnParams{ResponderResources: 4, InitiatorDepth: 4}, nil, func(c rdma.Conn, e rdma.ConnEvent) {
				if e.Kind == rdma.EventEstablished {
					conns <- c
				}
			})
		if err != nil {
			t.Error(err)
			return
		}
		c.(rdma.Annotated).Annotate(note)
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return l.Addr(), conns
}

// TestFailureRecord: the records of connections that ended badly and of refused requests, on both
// sides.
func TestFailureRecord(t *testing.T) {
	at := addrs(t)
	server, served := buried(t, at[0])
	client, asked := buried(t, at[1])
	iwarp := server.(*verbs.Device).Info().Transport == verbs.IWARP
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()

	t.Run("refused", func(t *testing.T) {
		l, err := server.Listen(0, func(r rdma.ConnRequest) {
			r.(rdma.Annotated).Annotate(func() rdma.Note { return rdma.Note{Why: "the house is full", Detail: 7} })
			r.Reject(28, []byte("no"))
		})
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = l.Close() }()
		if _, err := endpoint.Dial(ctx, client, l.Addr(),
			endpoint.Config{Params: rdma.ConnParams{PrivateData: []byte("please")}}); err == nil {
			t.Fatal("connected")
		}
		r := record(t, served)
		if r.Outcome != rdma.Refused || r.Reason != 28 || r.Note.Why != "the house is full" || r.Note.Detail != 7 ||
			r.Local != l.Addr() || r.Remote.Addr() != client.Addr() ||
			r.Device == "" || !r.Software || r.Event != "RDMA_CM_EVENT_CONNECT_REQUEST" || r.LocalQPN != 0 || r.PathMTUMax == 0 {
			t.Errorf("here: %+v", r)
		}
		if q := r.REQ; q == nil || !bytes.HasPrefix(q.Private, []byte("please")) || q.ResponderResources == 0 ||
			!iwarp && q.QPN == 0 {
			t.Errorf("the request: %+v", q)
		}
		r = record(t, asked)
		if r.Outcome != rdma.Rejected || r.Reason != 28 || !r.Active || r.REQ != nil ||
			r.Event != "RDMA_CM_EVENT_REJECTED" || r.LocalQPN == 0 || r.Established || r.Err == nil {
			t.Errorf("there: %+v", r)
		}
	})

	t.Run("nothing listens", func(t *testing.T) {
		if _, err := endpoint.Dial(ctx, client, netip.AddrPortFrom(at[0], 7), endpoint.Config{}); err == nil {
			t.Fatal("connected")
		}
		if r := record(t, asked); r.Outcome != rdma.Rejected || r.Reason != 8 || r.Remote.Port() != 7 {
			t.Errorf("%+v", r)
		}
	})

	t.Run("dropped", func(t *testing.T) {
		why := ""
		addr, conns := serve(t, server, func() rdma.Note { return rdma.Note{Why: why} })
		for _, w := range []string{"", "it talks too much"} {
			c, err := endpoint.Dial(ctx, client, addr, endpoint.Config{})
			if err != nil {
				t.Fatal(err)
			}
			s := <-conns
			s.Loop().Submit(func() {
				why = w
				s.Close()
			})
			<-c.Done()
			c.Close()
			if w == "" {
				nothing(t, served)
				continue
			}
			if r := record(t, served); r.Outcome != rdma.Dropped || r.Err != nil || r.Note.Why != w || r.LocalQPN == 0 ||
				r.REQ == nil || !iwarp && r.RemoteQPN != r.REQ.QPN {
				t.Errorf("%+v", r)
			}
		}
		nothing(t, asked)
	})

	t.Run("broken", func(t *testing.T) {
		c, s := connected(ctx, t, client, server)
		defer c.Close()
		defer s.Close()
		mr, err := c.Register(bytes.Repeat([]byte("x"), 3000), rdma.LocalWrite)
		if err != nil {
			t.Fatal(err)
		}
		if err := c.Send(ctx, mr, 0, 500); err != nil {
			t.Fatal(err)
		}
		if m, err := s.Recv(ctx); err != nil || m.Len != 500 {
			t.Fatalf("%+v, %v", m, err)
		}
		_ = c.Read(ctx, mr, 0, 3000, endpoint.Remote{Addr: 4096, RKey: 0xbad00})
		<-c.Done()
		<-s.Done()
		r := record(t, asked)
		if r.Outcome != rdma.Broken || !r.Established || !r.Active || r.Err == nil || r.Age <= 0 || r.PathMTU == 0 ||
			r.ReadsStarted == 0 || r.Ended < r.Recent[0].At {
			t.Errorf("there: %+v", r)
		}
		// siw flushes the receives before it reports the end of the connection.
		if s := r.Summary; s.Posted != 2 || s.PostedBytes != 3500 || s.Received != 0 || s.Receives == 0 && s.Flushed == 0 {
			t.Errorf("there: %+v", s)
		}
		posted := slices.IndexFunc(r.Recent, func(q verbs.Request) bool {
			return q.Did == verbs.Posted && q.Op == rdma.WCRead && q.Bytes == 3000 && q.Count == 1
		})
		if posted != 1 || r.Recent[0].Op != rdma.WCSend || r.Recent[0].Bytes != 500 {
			t.Errorf("the last requests are %+v", r.Recent)
		}
		if !iwarp {
			f := r.Summary.Failed
			if f.Status != rdma.RemAccessErr || f.Op != rdma.WCRead || f.Did != verbs.Failed || r.AckTimeout == 0 ||
				r.RemoteQPN == 0 {
				t.Errorf("there: %+v of %+v", f, r)
			}
			if last := r.Recent[len(r.Recent)-1]; last != f {
				t.Errorf("the last is %+v, not %+v", last, f)
			}
		}
		// The device of the other side reports the refused READ, or only that the peer has left.
		select {
		case r := <-served:
			if r.Outcome != rdma.Broken || r.Summary.Received != 1 || r.Summary.ReceivedBytes != 500 {
				t.Errorf("here: %+v", r)
			}
		case <-time.After(time.Second):
			t.Log("the server's side knows of no error")
		}
	})

	t.Run("closed", func(t *testing.T) {
		c, s := connected(ctx, t, client, server)
		c.Close()
		<-s.Done()
		s.Close()
		nothing(t, served)
		nothing(t, asked)
	})
}

// connected are the two ends of a connection.
func connected(ctx context.Context, t *testing.T, client, server rdma.Device) (c, s *endpoint.Conn) {
	t.Helper()
	l, err := endpoint.Listen(server, 0, endpoint.Config{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	if c, err = endpoint.Dial(ctx, client, l.Addr(), endpoint.Config{}); err != nil {
		t.Fatal(err)
	}
	if s, err = l.Accept(ctx); err != nil {
		t.Fatal(err)
	}
	return c, s
}

// TestFailureRecordRemoved: records of the connections of a device that the kernel is removing. The
// kernel sends no event for a soft device.
func TestFailureRecordRemoved(t *testing.T) {
	addrs(t)
	kind := "rxe"
	if _, err := os.Stat("/sys/class/infiniband/siw0"); err == nil {
		kind = "siw"
	}
	command(t, "ip link add gone0 type veth peer name gone1")
	t.Cleanup(func() { command(t, "ip link del gone0") })
	command(t, "ip addr add 10.98.0.1/24 dev gone0")
	command(t, "ip addr add 10.98.0.2/24 dev gone0")
	command(t, "ip link set gone0 up")
	command(t, "ip link set gone1 up")
	gone := kind + "_gone"
	command(t, "rdma link add "+gone+" type "+kind+" netdev gone0")
	server, served := buried(t, netip.MustParseAddr("10.98.0.1"))
	client, _ := buried(t, netip.MustParseAddr("10.98.0.2"))
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	addr, conns := serve(t, server, func() rdma.Note { return rdma.Note{} })
	c, err := endpoint.Dial(ctx, client, addr, endpoint.Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	s := <-conns
	removed := make(chan struct{})
	go func() {
		defer close(removed)
		command(t, "rdma link delete "+gone)
	}()
	for until := time.Now().Add(10 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		// The kernel removes the file of the device before it waits for users.
		if b, err := os.ReadDir("/sys/class/infiniband_verbs"); err == nil &&
			!slices.ContainsFunc(b, func(e os.DirEntry) bool {
				name, _ := os.ReadFile("/sys/class/infiniband_verbs/" + e.Name() + "/ibdev")
				return strings.TrimSpace(string(name)) == gone
			}) {
			break
		}
		if time.Now().After(until) {
			t.Fatal("the device does not go")
		}
	}
	s.Loop().Submit(func() { s.Disconnect() })
	if r := record(t, served); r.Outcome != rdma.Broken || !errors.Is(r.Err, rdma.ErrRemoved) || !r.Established ||
		r.Device != gone {
		t.Errorf("%+v", r)
	}
	_ = client.Close()
	_ = server.Close()
	select {
	case <-removed:
	case <-time.After(30 * time.Second):
		t.Error("the kernel waits for the device")
	}
}
