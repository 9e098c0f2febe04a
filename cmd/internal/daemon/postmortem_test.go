package daemon

import (
	"bytes"
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rstored/rstored/cmd/internal/control"
	"github.com/rstored/rstored/nfs/nfs3"
	"github.com/rstored/rstored/rdma"
	"github.com/rstored/rstored/rdma/cm"
	rdmaend "github.com/rstored/rstored/rdma/endpoint"
	"github.com/rstored/rstored/rdma/link"
	"github.com/rstored/rstored/rdma/roce"
	"github.com/rstored/rstored/rpcrdma"
	"github.com/rstored/rstored/rpcrdma/rpc"
	"github.com/rstored/rstored/rpcrdma/xdr"
)

// postMortem waits for the post-mortem that want picks.
func postMortem(t *testing.T, ctl *control.Dialer, what string,
	want func(*control.PostMortem) bool,
) control.PostMortem {
	t.Helper()
	for until := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		list, err := ctl.PostMortems(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for i := range list {
			if want(&list[i]) {
				return list[i]
			}
		}
		if time.Now().After(until) {
			t.Fatalf("no post-mortem of %s in %+v", what, list)
		}
	}
}

// clientDevice is a client's RDMA device on a free address.
func clientDevice(t *testing.T) *roce.Device {
	t.Helper()
	dev, err := roce.Open(roce.Config{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = dev.Close() })
	return dev
}

// narrow is a link on an interface of the usual Ethernet MTU.
type narrow struct{ link.Link }

func (narrow) MTU() int { return 1500 }

// TestPostMortemRefused: a REQ that is refused leaves word of what it asked for
// and what to change, once however often it comes.
func TestPostMortemRefused(t *testing.T) {
	cfg := testConfig(t)
	d, ctl := startDaemon(t, cfg)
	defer stopDaemon(t, d)
	at := netip.MustParseAddrPort(cfg.RDMAListen[0])
	dev := clientDevice(t)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()

	for range 2 {
		if _, err := rdmaend.Dial(ctx, dev, netip.AddrPortFrom(at.Addr(), 7), rdmaend.Config{}); err == nil {
			t.Fatal("connected to a port where nothing listens")
		}
	}
	p := postMortem(t, ctl, "a REQ to nowhere",
		func(p *control.PostMortem) bool { return p.Reject == uint16(cm.InvalidServiceID) && p.Count == 2 })
	if p.Outcome != string(rdma.Refused) || !strings.Contains(p.Hint, "rstorectl port list") ||
		!strings.Contains(p.Hint, "port=20049") || p.Request == nil || p.Request.Port != 7 {
		t.Errorf("nothing listens: %+v", p)
	}
	if p.Request.LocalGID != dev.Addr().String() || p.Request.QPN == 0 || p.Device != at.Addr().String() {
		t.Errorf("the request: %+v", p.Request)
	}

	// Loopback has room for every path MTU, so this device stands for one on Ethernet.
	small, err := roce.Open(roce.Config{
		PathMTUMax: 1024, OnFailure: d.failures.Soft,
		Wrap: func(_ int, l link.Link) link.Link { return narrow{l} },
	})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = small.Close() }()
	l, err := rdmaend.Listen(small, 20049, rdmaend.Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	c, err := rdmaend.Dial(ctx, dev, netip.AddrPortFrom(small.Addr(), 20049), rdmaend.Config{})
	if err != nil { // it tries a smaller path MTU, which the kernel's client does not
		t.Fatal(err)
	}
	c.Close()
	p = postMortem(t, ctl, "a REQ of a large MTU",
		func(p *control.PostMortem) bool { return p.Reject == uint16(cm.InvalidMTU) })
	if !strings.Contains(p.Hint, "mtu 4192") || p.InterfaceMTU != 1500 || p.Request.PathMTU != 4096 ||
		p.Connection != nil {
		t.Errorf("path MTU: %+v", p)
	}

	if _, err := rdmaend.Dial(ctx, dev, at, rdmaend.Config{NoReads: true}); err == nil {
		t.Fatal("connected without serving READs")
	}
	p = postMortem(t, ctl, "a client that serves no READs",
		func(p *control.PostMortem) bool { return p.Reject == uint16(cm.ConsumerDefined) })
	if !strings.Contains(p.Reason, "responder resources 0") || !strings.Contains(p.Hint, "must serve RDMA READ") {
		t.Errorf("no READs: %+v", p)
	}
}

// TestPostMortemBroken: a connection that the client breaks by refusing access to
// memory it offered leaves the NAK, what was agreed on and the calls.
func TestPostMortemBroken(t *testing.T) {
	cfg := testConfig(t)
	d, ctl := startDaemon(t, cfg)
	defer stopDaemon(t, d)
	at := netip.MustParseAddrPort(cfg.RDMAListen[0])
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	private := rpcrdma.PrivateMessage{RemoteInvalidation: true, Send: 4096, Receive: 4096}.Append(nil)
	c, err := rdmaend.Dial(ctx, clientDevice(t), at, rdmaend.Config{Params: rdma.ConnParams{PrivateData: private}})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()

	h := rpcrdma.Header{XID: 5, Version: rpcrdma.Version, Credits: 1, Type: rpcrdma.TypeMsg}
	var call xdr.Encoder
	rpc.EncodeCall(&call, 5, nfs3.Program, nfs3.Version, nfs3.ProcNull,
		&rpc.Cred{Flavor: rpc.AuthSys, Machine: "there", UID: 1234})
	null := call.AppendFlat(h.Append(nil))
	h.Type, h.XID = rpcrdma.TypeNoMsg, 6
	h.Reads = []rpcrdma.ReadSegment{{Segment: rpcrdma.Segment{Handle: 0xbad, Length: 100, Offset: 1 << 20}}}
	bad := h.Append(nil)
	mr, err := c.Register(bytes.Join([][]byte{null, bad}, nil), rdma.LocalWrite)
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Send(ctx, mr, 0, len(null)); err != nil {
		t.Fatal(err)
	}
	if m, err := c.Recv(ctx); err != nil || m.Len == 0 {
		t.Fatalf("NULL: %+v, %v", m, err)
	}
	if err := c.Send(ctx, mr, len(null), len(bad)); err != nil {
		t.Logf("the second call: %v", err) // the connection may end before its acknowledgement
	}
	<-c.Done()

	p := postMortem(t, ctl, "an R_Key that is none",
		func(p *control.PostMortem) bool { return p.Outcome == string(rdma.Broken) })
	switch v := p.Connection; {
	case v == nil, !v.Established, v.Status == "", v.QPN == 0, v.NAKReceived == nil, v.PathMTU != 4096, v.TxPackets == 0,
		v.RxPackets == 0, v.ReadsStarted != 16:
		t.Errorf("connection %+v", v)
	case v.NAKReceived.Text != "remote access error":
		t.Errorf("NAK %+v", v.NAKReceived)
	}
	// The READ that was refused, and the NAK, are the last packets.
	var last []string
	for _, k := range p.Connection.Recent {
		last = append(last, fmt.Sprintf("%t %s %s", k.Sent, k.Opcode, k.AETH))
	}
	if n := len(last); n < 6 || last[n-1] != "false ACKNOWLEDGE remote access error" ||
		!slices.Contains(last, "true READ_REQUEST ") || p.Connection.Recent[0].BeforeUS < p.Connection.Recent[n-1].BeforeUS {
		t.Errorf("the last packets are %q", last)
	}
	if !strings.Contains(p.Hint, "memory that it had offered") || !strings.Contains(p.Hint, "rstorectl capture") {
		t.Errorf("hint %q", p.Hint)
	}
	if r := p.Request; r == nil || r.Private == nil || r.Private.Send != 4096 || !r.Private.RemoteInvalidation ||
		!strings.HasPrefix(r.PrivateData, "f6ab0e18") {
		t.Errorf("request %+v", r)
	}
	if r := p.RPC; r == nil || r.Calls != 2 || r.First == nil || r.First.Name != "nfs3.NULL" || r.First.UID == nil ||
		*r.First.UID != 1234 || r.InProgress != 1 {
		t.Errorf("calls %+v", r)
	}
}

// TestNoPostMortem: nobody has to look into a client that went.
func TestNoPostMortem(t *testing.T) {
	cfg := testConfig(t)
	d, ctl := startDaemon(t, cfg)
	defer stopDaemon(t, d)
	dev := clientDevice(t)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	c, err := rdmaend.Dial(ctx, dev, netip.MustParseAddrPort(cfg.RDMAListen[0]), rdmaend.Config{})
	if err != nil {
		t.Fatal(err)
	}
	c.Close()
	for until := time.Now().Add(time.Minute); len(d.Clients()) > 0; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(until) {
			t.Fatal("the client is still there")
		}
	}
	if list, err := ctl.PostMortems(ctx); err != nil || len(list) != 0 {
		t.Errorf("%+v, %v", list, err)
	}
}
