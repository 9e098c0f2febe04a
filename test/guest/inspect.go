package guest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"

	"github.com/rstored/rstored/rdma/wire/wiretest/tshark"
)

// capture records the packets of all guests.
func (r *Run) capture(ctx context.Context) (*process, error) {
	// Headers tell most; of a long run the end is kept.
	snap := "256"
	if r.Case.Payload {
		snap = "0"
	}
	return r.tcpdump(ctx, "packets.pcap0", "-s", snap, "-C", "100", "-W", "2", "-i", "br0", "-w", r.path("packets.pcap"))
}

// inspected is how many RoCE packets of a case tshark reads: with the connection, the
// mount and the first of the work among them, and not minutes of it.
const inspected = 3000

// sample records the first RoCE packets of the first guest, whole. At the tap they are
// as on the wire; the bridge sees what is still to be segmented.
func (r *Run) sample(ctx context.Context) (*process, error) {
	return r.tcpdump(ctx, "sample.pcap0", "-s", "0", "-c", strconv.Itoa(inspected), "-i", "tap0", "-w",
		r.path("sample.pcap0"),
		"udp", "port", "4791")
}

func (r *Run) tcpdump(ctx context.Context, file string, args ...string) (*process, error) {
	p, err := r.start("tcpdump", r.log, append([]string{"tcpdump", "-Z", "root", "-B", "65536", "-U"}, args...)...)
	if err != nil {
		return nil, err
	}
	// tcpdump writes the file's header when it listens.
	return p, r.until(ctx, p, "tcpdump to listen", func() bool {
		s, err := os.Stat(r.path(file))
		return err == nil && s.Size() > 0
	})
}

// inspect has tshark read what we sent of the sample. It may complain of nothing that it does not
// complain of in packets of the kernel to itself.
func (r *Run) inspect(ctx context.Context) error {
	kinds, err := tshark.Kinds(ctx, r.path("sample.pcap0"), HostAddr, HostAddr6)
	if errors.Is(err, exec.ErrNotFound) {
		return nil // the build script installs it
	}
	beyond := tshark.Beyond(kinds)
	if len(beyond) > 0 {
		return fmt.Errorf("%d complaints of tshark that the kernel's own packets do not have: %s", len(beyond),
			strings.Join(beyond[:min(len(beyond), 5)], "; "))
	}
	if err != nil || !r.Case.Back {
		return err
	}
	calls, replies, err := tshark.Callbacks(ctx, r.path("sample.pcap0"))
	if err == nil && (calls == 0 || replies != calls) {
		err = fmt.Errorf("tshark sees %d calls to the guest and %d replies", calls, replies)
	}
	r.Logf("%d callbacks, %d replies", calls, replies)
	return err
}
