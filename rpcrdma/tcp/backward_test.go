package tcp

import (
	"bufio"
	"errors"
	"net"
	"testing"
	"time"

	"github.com/rstored/rstored/rpcrdma/rpc"
	"github.com/rstored/rstored/rpcrdma/xdr"
)

// TestCallsBack: a server calls its client on the client's connection, while calls of the client
// are in progress.
func TestCallsBack(t *testing.T) {
	ends := make(chan error, 10)
	var back rpc.Caller
	call := func(c rpc.Caller) {
		c.Call(&rpc.BackwardCall{
			Prog: 0x40000000, Vers: 1, Proc: 1, Args: []byte{1, 2, 3, 4}, Timeout: time.Hour,
			Done: func(res *xdr.Decoder, err error) {
				if err == nil && res.Uint32() != 77 {
					err = errors.New("other results")
				}
				ends <- err
			},
		})
	}
	srv := rpc.NewServer(rpc.ServerConfig{
		Workers: 1,
		Programs: []rpc.Program{{Name: "test", Prog: prog, Vers: 1, Procs: []rpc.Proc{
			{Name: "NULL", Serve: func(c *rpc.Call, _ bool) rpc.Status {
				back = c.Back
				call(back)
				return rpc.Done
			}},
		}}},
	})
	defer srv.Close()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := Serve(l, srv)
	defer s.Close()
	c, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(20 * time.Second))
	in := bufio.NewReader(c)
	write := func(e *xdr.Encoder) {
		t.Helper()
		mark := rpc.RecordMark(len(e.B))
		if _, err := c.Write(append(mark[:], e.B...)); err != nil {
			t.Fatal(err)
		}
	}
	read := func() []byte {
		t.Helper()
		b, err := rpc.ReadRecord(in, nil, 10_000)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	answer := func(xid uint32) {
		t.Helper()
		var e xdr.Encoder
		for _, w := range []uint32{xid, rpc.MsgReply, 0, 0, 0, 0, 77} {
			e.Uint32(w)
		}
		write(&e)
	}
	end := func(want error) {
		t.Helper()
		select {
		case err := <-ends:
			if !errors.Is(err, want) {
				t.Errorf("%v instead of %v", err, want)
			}
		case <-time.After(10 * time.Second):
			t.Fatal("no end of a call")
		}
	}
	var e xdr.Encoder
	rpc.EncodeCall(&e, 5, prog, 1, 0, nil)
	write(&e)
	var xid uint32
	for range 2 { // the call comes before the reply
		if b := read(); rpc.IsReply(b) {
			if rpc.ReplyXID(b) != 5 {
				t.Errorf("%x", b)
			}
		} else {
			xid = rpc.ReplyXID(b)
		}
	}
	answer(xid + 1) // to no call
	answer(xid)
	end(nil)
	if n := srv.Stats().Errors["rpc_not_a_call"]; n != 1 {
		t.Errorf("%d replies without a call counted", n)
	}
	call(back)
	read()
	c.Close()
	end(rpc.ErrClosed)
	if back.Connected() {
		t.Error("alive after the end")
	}
	call(back)
	end(rpc.ErrClosed)
	if n := s.Counters(); n.BackwardCalls != 2 || n.BackwardReplies != 1 || n.Replies != 1 {
		t.Errorf("%+v", n)
	}
}
