package service

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/rstored/rstored/cmd/internal/config"
	"github.com/rstored/rstored/nfs/nfs4"
)

// TestSilentSource: a source that accepts a connection and never answers ends the copy in time.
func TestSilentSource(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	p := partners{func() *config.Config { return &config.Config{CopyPartners: []string{l.Addr().String()}} }}
	f, err := p.Open(t.Context(), &nfs4.CopySource{At: l.Addr().(*net.TCPAddr).AddrPort(), Handle: []byte{1}})
	if err != nil {
		t.Fatal(err)
	}
	f.(*remoteFile).wait = 100 * time.Millisecond
	if _, _, err := f.ReadAt(t.Context(), make([]byte, 9), 0); !errors.Is(err, context.DeadlineExceeded) {
		t.Error(err)
	}
	if err := f.Close(); err != nil {
		t.Log(err)
	}
}

// TestSourcePort: port 2049 takes the place of 20049 only where the setting admits both.
func TestSourcePort(t *testing.T) {
	for entry, want := range map[string]uint16{"127.0.0.1": 2049, "127.0.0.1:20049": 20049} {
		p := partners{func() *config.Config { return &config.Config{CopyPartners: []string{entry}} }}
		if at := p.port(netip.MustParseAddrPort("127.0.0.1:20049")); at.Port() != want {
			t.Errorf("%s: %v", entry, at)
		}
	}
}
