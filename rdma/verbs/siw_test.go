//go:build rdmacore && linux && cgo

package verbs

import (
	"fmt"
	"io"
	"net"
	"net/netip"
	"testing"
	"time"
	"unsafe"

	"github.com/rstored/rstored/rdma"
	"github.com/rstored/rstored/rdma/connstate"
)

// TestUnread: unread bytes of a connection are detected, and not any more once they are read.
func TestUnread(t *testing.T) {
	for _, at := range []string{"127.0.0.1:0", "[::1]:0"} {
		ln, err := net.Listen("tcp", at)
		if err != nil && at[0] == '[' {
			t.Skip("there is no IP version 6: ", err)
		}
		if err != nil {
			t.Fatal(err)
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
	const line = "   2: 0300630A:4E51 0200630A:A868 01 00000000:0000005C 00:00000000 00000000     0        0 0 3 " +
		"00000000067dc12d"
	local, remote := tableAddr(netip.MustParseAddrPort("10.99.0.3:20049")),
		tableAddr(netip.MustParseAddrPort("10.99.0.2:43112"))
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

// TestCut: short data is cut where a page ends; for READs where a page of the peer ends.
func TestCut(t *testing.T) {
	room := make([]byte, 3*siwPage)
	mem := room[siwPage-int(uintptr(unsafe.Pointer(&room[0]))%siwPage):] // begins a page
	at := func(offset int, sizes ...int) (l []rdma.SGE) {
		for _, n := range sizes {
			l = append(l, rdma.SGE{Buf: mem[offset : offset+n], LKey: 7})
			offset += n
		}
		return l
	}
	for _, c := range []struct {
		name string
		w    rdma.SendWR
		want []int
	}{
		{"within a page", rdma.SendWR{Op: rdma.OpSend, SGL: at(siwPage-5, 5)}, []int{5}},
		{"beyond its end", rdma.SendWR{Op: rdma.OpSend, SGL: at(siwPage-3, 5)}, []int{3, 2}},
		{"WRITE", rdma.SendWR{Op: rdma.OpWrite, SGL: at(siwPage-31, 32), RemoteAddr: 1 << 20}, []int{31, 1}},
		{"inline", rdma.SendWR{Op: rdma.OpWrite, Flags: rdma.Inline, SGL: at(siwPage-31, 32)}, []int{32}},
		{"long", rdma.SendWR{Op: rdma.OpWrite, SGL: at(siwPage-31, 33)}, []int{33}},
		{"several", rdma.SendWR{Op: rdma.OpSend, SGL: at(siwPage-3, 5, 9)}, []int{5, 9}},
		{"several of which one is empty", rdma.SendWR{Op: rdma.OpSend, SGL: at(siwPage-3, 0, 5)}, []int{3, 2}},
		{"nothing", rdma.SendWR{Op: rdma.OpSend}, nil},
		{"READ within a page", rdma.SendWR{Op: rdma.OpRead, SGL: at(siwPage-3, 5), RemoteAddr: 4 * siwPage}, []int{5}},
		{"READ beyond its end", rdma.SendWR{Op: rdma.OpRead, SGL: at(0, 5), RemoteAddr: 4*siwPage - 1}, []int{1, 4}},
		{
			"READ in elements",
			rdma.SendWR{Op: rdma.OpRead, SGL: at(0, 10, 20, 20), RemoteAddr: 4*siwPage - 11},
			[]int{10, 1, 19, 20},
		},
	} {
		l := &loop{dev: &Device{quirks: quirksOf(true, true)}}
		var got []int
		for _, e := range l.cut(&c.w) {
			if e.LKey != 7 {
				t.Errorf("%s: the key is %d", c.name, e.LKey)
			}
			if got = append(got, len(e.Buf)); len(e.Buf) == 0 {
				got = got[:len(got)-1]
			}
		}
		if fmt.Sprint(got) != fmt.Sprint(c.want) {
			t.Errorf("%s: %v, not %v", c.name, got, c.want)
		}
	}
}

// TestNudgeFailed: no READ is posted to a queue pair in ERR, also if its connection does not know
// of ERR yet. siw would never complete it.
func TestNudgeFailed(t *testing.T) {
	l := &loop{dev: &Device{quirks: quirksOf(true, true)}}
	q := &qp{l: l, state: rdma.StateErr, sq: make([]sent, 4)}
	c := &conn{l: l, q: q}
	c.Phase = connstate.Established
	c.nudge()
	if q.sqTail != 0 || len(l.sends) != 0 {
		t.Errorf("%d requests were made, %d posted", len(l.sends), q.sqTail)
	}
}
