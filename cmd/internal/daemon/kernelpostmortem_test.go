package daemon

import (
	"bytes"
	"context"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rstored/rstored/cmd/internal/control"
	"github.com/rstored/rstored/cmd/internal/devices/devicestest"
	"github.com/rstored/rstored/rdma"
	rdmaend "github.com/rstored/rstored/rdma/endpoint"
	"github.com/rstored/rstored/rpcrdma"
)

// TestKernelPostMortems: the daemon keeps what a device of the kernel has left, with the calls,
// writes down who was refused, and counts those that come again.
func TestKernelPostMortems(t *testing.T) {
	k := devicestest.NewKernel()
	hard := testAddr()
	k.Add("card0", hard)
	cfg := testConfig(t)
	cfg.RDMAListen = []string{"verbs://" + hard + ":20049"}
	audit := filepath.Join(t.TempDir(), "audit")
	cfg.Audit = "file " + audit
	d, ctl, err := startOn(t, cfg, k, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer stopDaemon(t, d)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	dev := clientDevice(t)
	for range 2 {
		if _, err := rdmaend.Dial(ctx, dev, netip.MustParseAddrPort(hard+":20049"),
			rdmaend.Config{NoReads: true}); err == nil {
			t.Fatal("connected without serving READs")
		}
	}
	p := postMortem(t, ctl, "a client that serves no READs",
		func(p *control.PostMortem) bool { return p.Outcome == "refused" && p.Count == 2 })
	if p.Provider != "verbs" || p.Device != "card0/"+hard || !strings.Contains(p.Hint, "must serve RDMA READ") ||
		p.Events == nil || p.Connection != nil {
		t.Errorf("%+v", p)
	}
	if list, err := ctl.PostMortems(ctx); err != nil || len(list) != 1 {
		t.Errorf("%+v, %v", list, err)
	}
	becomes(t, "the audit log has it", func() bool {
		b, err := os.ReadFile(audit)
		return err == nil && bytes.Contains(b, []byte("rdma_reject")) && bytes.Contains(b, []byte("responder resources 0"))
	})

	c, err := rdmaend.Dial(ctx, dev, netip.MustParseAddrPort(hard+":20049"), rdmaend.Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	h := rpcrdma.Header{XID: 6, Version: rpcrdma.Version, Credits: 1, Type: rpcrdma.TypeNoMsg}
	h.Reads = []rpcrdma.ReadSegment{{Segment: rpcrdma.Segment{Handle: 0xbad, Length: 100, Offset: 1 << 20}}}
	bad, err := c.Register(h.Append(nil), rdma.LocalWrite)
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Send(ctx, bad, 0, len(bad.Bytes())); err != nil {
		t.Logf("the call: %v", err) // the connection may end before its acknowledgement
	}
	select {
	case <-c.Done():
	case <-ctx.Done():
		t.Fatal("the connection goes on")
	}
	p = postMortem(t, ctl, "an R_Key that is none", func(p *control.PostMortem) bool { return p.Outcome == "broken" })
	if p.RPC == nil || p.RPC.Calls != 1 || p.Connection == nil || !p.Connection.Established || p.Provider != "verbs" {
		t.Errorf("%+v", p)
	}
	if list, err := ctl.PostMortems(ctx); err != nil ||
		slices.ContainsFunc(list, func(p control.PostMortem) bool { return p.Provider != "verbs" }) {
		t.Errorf("%+v, %v", list, err)
	}
}
