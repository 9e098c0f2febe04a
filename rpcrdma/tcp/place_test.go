package tcp

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"net"
	"testing"
	"time"

	"github.com/rstored/rstored/rpcrdma/rpc"
	"github.com/rstored/rstored/rpcrdma/xdr"
)

// byHand makes a connection to a client. The test plays the server.
type byHand struct {
	t *testing.T
	c *Client
	net.Conn
	in *bufio.Reader
}

func newByHand(t *testing.T) *byHand {
	t.Helper()
	near, far := net.Pipe()
	b := &byHand{t: t, c: NewClient(near), Conn: far, in: bufio.NewReader(far)}
	_ = far.SetDeadline(time.Now().Add(20 * time.Second))
	t.Cleanup(func() { b.c.Close(); far.Close() })
	return b
}

// call reads a call and returns its XID.
func (b *byHand) call() uint32 {
	b.t.Helper()
	m, err := rpc.ReadRecord(b.in, nil, 10_000)
	if err != nil {
		b.t.Fatal(err)
	}
	return rpc.ReplyXID(m)
}

// reply makes the record of a successful reply with these results.
func reply(xid uint32, results func(*xdr.Encoder)) []byte {
	var e xdr.Encoder
	for _, w := range []uint32{xid, rpc.MsgReply, 0, 0, 0, 0} {
		e.Uint32(w)
	}
	results(&e)
	b := e.AppendFlat(nil)
	mark := rpc.RecordMark(len(b))
	return append(mark[:], b...)
}

func pattern(n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i*7 + i>>8)
	}
	return b
}

// TestPlaced: the reader places data in the caller's memory. A reply that only looks like such data
// is decoded correctly.
func TestPlaced(t *testing.T) {
	for _, tc := range []struct {
		name    string
		room, n int
		before  int  // words before the data
		behind  bool // a word behind it
		placed  bool
	}{
		{name: "all of it", room: 1 << 20, n: 1 << 20, before: 2, placed: true},
		{name: "padded", room: 99_997, n: 99_997, before: 30, placed: true},
		{name: "short", room: 1 << 20, n: 1000, before: 2},
		{name: "as short as the words before", room: 1000, n: 990, before: 4},
		{name: "something behind it", room: 1000, n: 1000, before: 2, behind: true},
		{name: "too much before it", room: 1000, n: 1000, before: 2000},
		{name: "nothing asked for", n: 1000, before: 2},
	} {
		t.Run(tc.name, func(t *testing.T) {
			b := newByHand(t)
			dst, want := make([]byte, tc.room), pattern(tc.n)
			done := make(chan error, 1)
			go func() {
				done <- b.c.Call(t.Context(), &rpc.Request{Prog: 1, Vers: 1, Proc: 1, Dst: dst, Res: func(d *xdr.Decoder) error {
					for i := range tc.before {
						if d.Uint32() != uint32(i) {
							return errors.New("other words before the data")
						}
					}
					got := d.Opaque(1 << 20)
					if !bytes.Equal(got, want) {
						return errors.New("other data")
					}
					if placed := tc.room > 0 && len(got) > 0 && &got[0] == &dst[0]; placed != tc.placed {
						return errors.New("placed, or not")
					}
					if tc.behind && d.Uint32() != 4711 {
						return errors.New("another word behind the data")
					}
					if d.Remaining() != 0 {
						return errors.New("something is left")
					}
					return d.Err()
				}})
			}()
			_, err := b.Write(reply(b.call(), func(e *xdr.Encoder) {
				for i := range tc.before {
					e.Uint32(uint32(i))
				}
				e.Opaque(want)
				if tc.behind {
					e.Uint32(4711)
				}
			}))
			if err != nil {
				t.Fatal(err)
			}
			if err := <-done; err != nil {
				t.Fatal(err)
			}
		})
	}
}

// TestGivenUpWhilePlaced cancels calls whose data has begun to arrive. The caller has its memory
// back at once. The connection goes on if the server has not ended it.
func TestGivenUpWhilePlaced(t *testing.T) {
	for _, how := range []string{"cancelled", "closed", "hung up"} {
		t.Run(how, func(t *testing.T) {
			b := newByHand(t)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			dst := make([]byte, 100_000)
			done := make(chan error, 1)
			go func() { done <- b.c.Call(ctx, &rpc.Request{Prog: 1, Vers: 1, Proc: 1, Dst: dst}) }()
			m := reply(b.call(), func(e *xdr.Encoder) { e.Opaque(pattern(len(dst))) })
			if _, err := b.Write(m[:50_000]); err != nil { // the client reads from the pipe at once
				t.Fatal(err)
			}
			var want error
			switch how {
			case "cancelled":
				want = context.Canceled
				cancel()
			case "closed":
				want = rpc.ErrClosed
				b.c.Close()
			case "hung up":
				b.Close()
			}
			err := <-done
			if err == nil || want != nil && !errors.Is(err, want) {
				t.Fatalf("%v instead of %v", err, want)
			}
			clear(dst) // a late write would be a data race
			if how != "cancelled" {
				return
			}
			go func() { done <- b.c.Call(t.Context(), &rpc.Request{Prog: 1, Vers: 1, Proc: 2}) }()
			xid := b.call()
			if _, err := b.Write(append(m[50_000:], reply(xid, func(*xdr.Encoder) {})...)); err != nil {
				t.Fatal(err)
			}
			if err := <-done; err != nil {
				t.Fatal(err)
			}
			for _, x := range dst {
				if x != 0 {
					t.Fatal("written after the call was over")
				}
			}
		})
	}
}
