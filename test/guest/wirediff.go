package guest

import (
	"bytes"
	"compress/gzip"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/rstored/rstored/test/rdma/requests"
	"github.com/rstored/rstored/test/wirediff"
)

//go:embed verbs/verbs.c
var verbsSource string

// recordingEnv names the file that a capture without unexpected differences goes to,
// compressed: test/wirediff/testdata/wire.pcap.gz is one.
const recordingEnv = "RSTORED_GUEST_RECORDING"

// wireDiff plays the sequence of package requests between the guests, and between the
// first guest and the host in both roles, and compares the packets that were seen at the
// first guest's tap.
func wireDiff(ctx context.Context, r *Run) error {
	parts := requests.Parts()
	for i, p := range parts {
		if err := os.WriteFile(filepath.Join(r.Share, fmt.Sprintf("part.%d", i)), []byte(p), 0o644); err != nil {
			return err
		}
	}
	// The guests run the same release of rdma-core that the host's headers are of.
	source := r.path("verbs.c")
	if err := os.WriteFile(source, []byte(verbsSource), 0o644); err != nil {
		return err
	}
	if err := r.Command(ctx, "/usr/bin/gcc", "-O1", "-Wall", "-Wextra", "-Werror", "-o", filepath.Join(r.Share, "verbs"),
		source, "-lrdmacm", "-libverbs"); err != nil {
		return fmt.Errorf("verbs.c: %w; test/guest/build installs what it needs", err)
	}
	const name = "wire.pcap0"
	dump, err := r.tcpdump(ctx, name, "--immediate-mode", "-s", "0", "-i", "tap0", "-w", r.path(name), "udp", "port",
		"4791")
	if err != nil {
		return err
	}
	err = errors.Join(r.Tell("programs"), r.playOurs(ctx, len(parts)))
	if err == nil {
		err = r.compare(ctx, dump, name)
	}
	return errors.Join(err, dump.stop(syscall.SIGTERM))
}

// compare holds the two playings with a side of ours against that of the kernels, and
// against each other.
func (r *Run) compare(ctx context.Context, dump *process, name string) error {
	a, b, host := netip.MustParseAddr(guestAddr(0)), netip.MustParseAddr(guestAddr(1)), netip.MustParseAddr(HostAddr)
	var kernel []*wirediff.Session
	var reports []*wirediff.Report
	var last error
	// The capture is complete a moment after the last packet.
	err := r.until(ctx, dump, "the packets", func() bool {
		kernel, reports, last = playings(r.path(name), []wirediff.Played{
			{Client: b, Server: a},
			{Client: a, Server: host, Ours: wirediff.Server},
			{Client: host, Server: a, Ours: wirediff.Client},
		})
		return last == nil
	})
	if err != nil {
		return errors.Join(err, last)
	}
	var all strings.Builder
	differ := false
	for _, report := range reports {
		differ = differ || len(report.Diffs) > 0
		all.WriteString(report.String())
	}
	r.Logf("%d connections; %s", len(kernel), all.String())
	if differ {
		return fmt.Errorf("the packets differ:\n%s", all.String())
	}
	if unmet := wirediff.Unmet(reports...); len(unmet) > 0 {
		return fmt.Errorf("listed as differences, and there are none: %s", strings.Join(unmet, ", "))
	}
	if to := os.Getenv(recordingEnv); to != "" {
		return compress(r.path(name), to)
	}
	return nil
}

func compress(from, to string) error {
	b, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	var out bytes.Buffer
	z, err := gzip.NewWriterLevel(&out, gzip.BestCompression)
	if err != nil {
		return err
	}
	if _, err := z.Write(b); err != nil {
		return err
	}
	if err := z.Close(); err != nil {
		return err
	}
	return os.WriteFile(to, out.Bytes(), 0o644)
}

// playings compares those behind the first with it, and where packets were lost with each
// other. An error means that the capture is not complete.
func playings(name string, played []wirediff.Played) (kernel []*wirediff.Session, reports []*wirediff.Report,
	err error,
) {
	pcap, err := os.ReadFile(name)
	if err != nil {
		return nil, nil, err
	}
	all, err := wirediff.Sessions(pcap)
	if err != nil {
		return nil, nil, err
	}
	var sessions [][]*wirediff.Session
	for i, p := range played {
		got, err := wirediff.Of(all, p)
		if err != nil {
			return nil, nil, err
		}
		if i == 0 {
			kernel = got
			continue
		}
		report, err := wirediff.Compare(kernel, got, p)
		if err != nil {
			return nil, nil, err
		}
		reports = append(reports, report)
		sessions = append(sessions, got)
	}
	report, err := wirediff.CompareLosses(sessions[0], sessions[1], played[1], played[2])
	if err != nil {
		return nil, nil, err
	}
	return kernel, append(reports, report), nil
}

// playOurs is the server of guest a, and then its client, for each part. It goes before the
// host's other work: what has to wait between the clock and the socket sends a packet that
// has just left again.
func (r *Run) playOurs(ctx context.Context, parts int) error {
	const nice = "/usr/bin/nice"
	bin := filepath.Join(r.runner.Bin, "verbs")
	for i := range parts {
		part := filepath.Join(r.Share, fmt.Sprintf("part.%d", i))
		p, err := r.start("verbs", r.log, nice, "-n", "-20", bin, "-sequence", part, "-listen", HostAddr, "-ready",
			filepath.Join(r.Share, fmt.Sprintf("at.ours-ready.%d", i)))
		if err != nil {
			return err
		}
		err = r.until(ctx, p, "verbs to listen",
			func() bool { return exists(filepath.Join(r.Share, fmt.Sprintf("at.ours-ready.%d", i))) })
		if err == nil {
			err = r.Tell(fmt.Sprintf("ours-listens.%d", i))
		}
		if err == nil {
			err = r.Await(ctx, fmt.Sprintf("ours-served.%d", i))
		}
		if err != nil {
			return errors.Join(err, p.stop(syscall.SIGKILL))
		}
		select {
		case <-p.done:
		case <-ctx.Done():
			return errors.Join(context.Cause(ctx), p.stop(syscall.SIGKILL))
		}
		if p.err != nil {
			return p.err
		}
		if err := r.Await(ctx, fmt.Sprintf("kernel-listens-again.%d", i)); err != nil {
			return err
		}
		if err := r.Command(ctx, nice, "-n", "-20", bin, "-sequence", part, "-listen", HostAddr, "-connect",
			guestAddr(0)); err != nil {
			return err
		}
	}
	return nil
}
