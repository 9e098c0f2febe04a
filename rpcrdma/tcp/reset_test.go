package tcp

import (
	"errors"
	"net"
	"syscall"
	"testing"
	"time"

	"github.com/rstored/rstored/rpcrdma/rpc"
)

// TestReset: with Reset a connection ends by RST, and without it by FIN.
func TestReset(t *testing.T) {
	for _, reset := range []bool{false, true} {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		srv := rpc.NewServer(rpc.ServerConfig{})
		s := Config{Reset: reset}.Serve(l, srv)
		c, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		for end := time.Now().Add(time.Minute); len(s.Conns()) == 0; time.Sleep(time.Millisecond) {
			if time.Now().After(end) {
				t.Fatal("the connection is not accepted")
			}
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		_, err = c.Read(make([]byte, 1))
		if got := errors.Is(err, syscall.ECONNRESET); got != reset {
			t.Errorf("Reset %v: %v", reset, err)
		}
		_ = c.Close()
		srv.Close()
	}
}
