package daemon

import (
	"context"
	"encoding/binary"
	"net/netip"
	"testing"
	"time"

	"github.com/rstored/rstored/cmd/internal/control"
	"github.com/rstored/rstored/nfs/client"
	"github.com/rstored/rstored/nfs/dial"
	"github.com/rstored/rstored/rdma/wire"
	"github.com/rstored/rstored/rpcrdma/rpc"
)

// TestQPs: the queue pairs of two clients, with what each did, and captures of one of
// them alone.
func TestQPs(t *testing.T) {
	cfg := testConfig(t, t.TempDir()+"=/a")
	d, ctl := startDaemon(t, cfg)
	defer stopDaemon(t, d)
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	var clients [2]*client.Client
	call := func(i, n int) {
		t.Helper()
		for range n {
			if err := clients[i].Null(ctx); err != nil {
				t.Fatal(err)
			}
		}
	}
	for i := range clients {
		var dl dial.Dialer
		defer func() { _ = dl.Close() }()
		clients[i] = dl.Client(client.URL{Transport: rpc.TransportRDMA, Host: cfg.RDMAListen[0]})
		call(i, 1)
	}
	call(1, 50)
	list, err := ctl.QPs(ctx)
	if err != nil || len(list) != 2 {
		t.Fatalf("%d queue pairs: %v", len(list), err)
	}
	busy := &list[0]
	if list[1].Counters["rcvd_pkts"] > busy.Counters["rcvd_pkts"] {
		busy = &list[1]
	}
	if busy.Type != "RC" || busy.State != "RTS" || busy.Remote == "" || busy.Local != cfg.RDMAListen[0] ||
		busy.RemoteQPN == 0 || busy.PathMTU == 0 || busy.Active ||
		busy.RecvQueued == 0 || busy.Counters["rcvd_pkts"] < 51 || busy.Counters["sent_pkts"] < 51 ||
		busy.Counters["resp_remote_access_errors"] != 0 {
		t.Errorf("%+v", busy)
	}
	// A device's counters are those of its queue pairs together, and stay when one goes.
	sum := list[0].Counters["rcvd_pkts"] + list[1].Counters["rcvd_pkts"]
	stats, err := ctl.Stats(ctx)
	if n := stats.Devices[busy.Device]["RC.RxPackets"]; err != nil || n < sum {
		t.Errorf("%d packets of the device, %d of its queue pairs: %v", n, sum, err)
	}
	remote := netip.MustParseAddrPort(busy.Remote).Addr()
	for _, c := range []struct {
		name string
		spec control.CaptureSpec
	}{
		{"by queue pair", control.CaptureSpec{QPN: busy.QPN, Packets: 40, Snap: 60}},
		{"by peer", control.CaptureSpec{Peer: remote, Packets: 40, Snap: 60}},
	} {
		t.Run(c.name, func(t *testing.T) {
			var pcap shared
			ended := make(chan error, 1)
			go func() { ended <- ctl.Capture(ctx, c.spec, &pcap) }()
			for len(pcap.bytes()) == 0 && ctx.Err() == nil {
				time.Sleep(time.Millisecond)
			}
			for done := false; !done; {
				call(0, 5)
				call(1, 5)
				select {
				case err := <-ended:
					if err != nil {
						t.Fatal(err)
					}
					done = true
				default:
				}
			}
			b := pcap.bytes()[fileHdrLen:]
			n, in, out := 0, 0, 0
			for ; len(b) > 0; n++ {
				kept, whole := binary.LittleEndian.Uint32(b[8:]), binary.LittleEndian.Uint32(b[12:])
				if kept > whole || kept > 60 {
					t.Errorf("packet %d: %d bytes of %d", n, kept, whole)
				}
				ip := b[recordHdrLen:]
				src, dst := netip.AddrFrom4([4]byte(ip[12:16])), netip.AddrFrom4([4]byte(ip[16:20]))
				switch qpn := wire.DestQPN(ip[ipv4Len+udpLen:]); {
				case src == remote && (qpn == busy.QPN || c.spec.QPN == 0):
					in++
				case dst == remote && (qpn == busy.RemoteQPN || c.spec.QPN == 0):
					out++
				default:
					t.Errorf("packet %d: %v to %v, queue pair %#x", n, src, dst, qpn)
				}
				b = b[recordHdrLen+kept:]
			}
			if n != 40 || in == 0 || out == 0 {
				t.Errorf("%d packets, %d in and %d out", n, in, out)
			}
		})
	}
	if err := ctl.Capture(ctx, control.CaptureSpec{QPN: 1}, &shared{}); err == nil {
		t.Error("a capture of no queue pair")
	}
}
