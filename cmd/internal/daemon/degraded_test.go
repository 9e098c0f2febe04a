package daemon

import (
	"context"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/rstored/rstored/cmd/internal/config"
	"github.com/rstored/rstored/cmd/internal/control"
	"github.com/rstored/rstored/cmd/internal/telemetry"
)

// TestDegraded: a start serves what can be served. A directory that is missing, and addresses of
// TCP and UDP that others have, are in the status and in the answers of the ops port, and are
// served when they are there.
func TestDegraded(t *testing.T) {
	dir := t.TempDir()
	missing := filepath.Join(dir, "late")
	cfg := testConfig(t, dir+"=/a", missing+"=/late")
	tcp, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := testAddr()
	udp, err := net.ListenPacket("udp", addr+":4791")
	if err != nil {
		t.Fatal(err)
	}
	cfg.TCPListen = append(cfg.TCPListen, tcp.Addr().String())
	cfg.RDMAListen = append(cfg.RDMAListen, addr+":20049")
	cfg.OpsListen = []string{testAddr() + ":9049"}
	if list := unserved(t.Context(), cfg); len(list) != 3 {
		t.Errorf("config validate: %q", list)
	}
	d, ctl := startDaemon(t, cfg)
	defer stopDaemon(t, d)
	waits := []string{
		"export /late: ", "port tcp " + tcp.Addr().String() + ": ", "port rdma " + addr + ":20049: ",
	}
	problems := func() string {
		s, err := ctl.Status(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if (s.State == control.StateDegraded) != (len(s.Problems) > 0) {
			t.Errorf("%s with %d problems", s.State, len(s.Problems))
		}
		return strings.Join(s.Problems, "\n")
	}
	readyz := func() int {
		req, _ := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+opsAddr(d)+"/readyz", nil)
		r, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		_ = r.Body.Close()
		return r.StatusCode
	}
	for _, w := range waits {
		if got := problems(); !strings.Contains(got, w) {
			t.Errorf("status: %q not in %s", w, got)
		}
	}
	if code := readyz(); code != http.StatusServiceUnavailable {
		t.Errorf("readyz answers %d", code)
	}
	// A reload of the same changes nothing.
	_ = d.Reload()
	// What a running daemon has is not taken.
	if list := unserved(t.Context(), cfg); len(list) != 3 {
		t.Errorf("config validate beside the daemon: %q", list)
	}
	if err := os.Mkdir(missing, 0o755); err != nil {
		t.Fatal(err)
	}
	_, _ = tcp.Close(), udp.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	for problems() != "" && ctx.Err() == nil {
		time.Sleep(50 * time.Millisecond)
	}
	if got := problems(); got != "" {
		t.Errorf("everything is there, but: %s", got)
	}
	if code := readyz(); code != http.StatusOK {
		t.Errorf("readyz answers %d", code)
	}
	if list := unserved(t.Context(), cfg); len(list) != 0 {
		t.Errorf("config validate: %q", list)
	}
}

// TestNoPort: a daemon without any port of NFS does not start.
func TestNoPort(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	cfg := testConfig(t, t.TempDir()+"=/a")
	cfg.TCPListen, cfg.RDMAListen = []string{l.Addr().String()}, nil
	log, err := telemetry.NewLog("error", config.LogConsole)
	if err != nil {
		t.Fatal(err)
	}
	d, err := Start(cfg, func() (*config.Config, error) { return cfg, nil }, log)
	if err == nil || !strings.Contains(err.Error(), "in use by another process") {
		t.Errorf("it started: %v", err)
	}
	if err == nil {
		stopDaemon(t, d)
	}
}

func opsAddr(d *Daemon) string {
	for _, p := range d.Ports() {
		if p.Transport == control.TransportOps && len(p.Addresses) > 0 {
			return p.Addresses[0]
		}
	}
	return ""
}
