package rpcrdma

import (
	"errors"
	"testing"

	"github.com/rstored/rstored/rpcrdma/rpc"
)

// TestSameXID: a request that names the XID of a call in flight is refused, and that call is not
// disturbed.
func TestSameXID(t *testing.T) {
	w := newWorld(t, Config{})
	c := w.dial("192.0.2.9", ClientConfig{})
	if err := put(c, 1); err != nil { // the server grants credits with its first reply
		t.Fatal(err)
	}
	w.inUse(0)
	call := func(proc uint32) error {
		return c.Call(t.Context(), &rpc.Request{XID: 5, Prog: testProg, Vers: testVers, Proc: proc})
	}
	first := make(chan error, 1)
	go func() { first <- call(procWait) }()
	w.inUse(1)
	if err := call(procNull); !errors.Is(err, ErrXIDInUse) {
		t.Error(err)
	}
	close(w.svc.gate)
	if err := <-first; err != nil {
		t.Error(err)
	}
}
