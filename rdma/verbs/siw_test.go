//go:build rdmacore && linux && cgo

package verbs

import (
	"io"
	"net"
	"net/netip"
	"testing"
	"time"
)

// TestUnread: what has arrived on a connection and nobody has read is seen, and gone once it is read.
func TestUnread(t *testing.T) {
	for _, at := range []string{"127.0.0.1:0", "[::1]:0"} {
		ln, err := net.Listen("tcp", at)
		if err != nil {
			t.Skip(err)
		}
		defer ln.Close()
		out, err := net.Dial("tcp", ln.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer out.Close()
		in, err := ln.Accept()
		if err != nil {
			t.Fatal(err)
		}
		defer in.Close()
		local, remote := netip.MustParseAddrPort(in.LocalAddr().String()), netip.MustParseAddrPort(in.RemoteAddr().String())
		if unread(local, remote) {
			t.Errorf("%s: unread before anything was sent", at)
		}
		if _, err := out.Write([]byte("call")); err != nil {
			t.Fatal(err)
		}
		for end := time.Now().Add(10 * time.Second); !unread(local, remote); time.Sleep(time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("%s: what was sent is not seen", at)
			}
		}
		if unread(remote, local) {
			t.Errorf("%s: unread at the other end", at)
		}
		if _, err := io.ReadFull(in, make([]byte, 4)); err != nil {
			t.Fatal(err)
		}
		if unread(local, remote) {
			t.Errorf("%s: unread when it was read", at)
		}
	}
}

func TestQueued(t *testing.T) {
	const line = "   2: 0300630A:4E51 0200630A:A868 01 00000000:0000005C 00:00000000 00000000     0        0 0 3 00000000067dc12d"
	local, remote := netip.MustParseAddrPort("10.99.0.3:20049"), netip.MustParseAddrPort("10.99.0.2:43112")
	if n, ok := queued([]byte(line), local, remote); !ok || n != 92 {
		t.Errorf("%d, %v", n, ok)
	}
	if _, ok := queued([]byte(line), remote, local); ok {
		t.Error("the other end's line is taken")
	}
	for _, broken := range []string{"", "sl local_address", line[:40], line[:44] + "xx"} {
		if n, ok := queued([]byte(broken), local, remote); ok {
			t.Errorf("%q has %d", broken, n)
		}
	}
}
