package rpc

import (
	"bytes"
	"testing"
	"time"

	"github.com/rstored/rstored/rpcrdma/gss"
	"github.com/rstored/rstored/rpcrdma/xdr"
)

// TestGSSOnLoop: a loop itself removes and adds the protection of a few bytes. Many bytes of
// arguments or results are the work of a worker.
func TestGSSOnLoop(t *testing.T) {
	r := newGSSRig(t)
	for _, service := range []gss.Service{gss.None, gss.Integrity, gss.Privacy} {
		res, _ := r.init("alice")
		c := gss.NewClient(r.client, res.Handle, service)
		for name, k := range map[string]struct {
			proc          uint32
			args, results int
			detached      bool
		}{
			"short":         {procWho, 0, 100, false},
			"longest":       {procWho, onLoop - 500, onLoop - 500, false},
			"long results":  {procWho, 0, 1 << 20, service != gss.None},
			"long args":     {procWho, 1 << 20, 100, service != gss.None},
			"has to wait":   {procSlow, 0, 0, true},
			"not on a loop": {procWrite, 100, 0, true},
		} {
			r.bulk = bytes.Repeat([]byte("x"), k.results)
			cred, err := c.Next()
			if err != nil {
				t.Fatal(err)
			}
			e := header(uint32(len(name)), k.proc, &cred)
			c.Finish(e, &cred, func(e *xdr.Encoder) { e.Bulk(make([]byte, k.args)) })
			type answer struct {
				reply    []byte
				detached bool
			}
			done := make(chan answer, 1)
			call := &Call{Reply: func(c *Call, _ bool) { done <- answer{c.Res.AppendFlat(nil), c.Detached()} }}
			call.Reset()
			r.s.Dispatch(call, xdr.NewDecoder(e.AppendFlat(nil)), false)
			var a answer
			select {
			case a = <-done:
			case <-time.After(10 * time.Second):
				t.Fatalf("%v, %s: no answer", service, name)
			}
			if a.detached != k.detached {
				t.Errorf("%v, %s: by a worker %v", service, name, a.detached)
			}
			d := xdr.NewDecoder(a.reply)
			d.Skip(12)
			if err := c.Check(&cred, d.Uint32(), d.Opaque(400)); err != nil || AcceptStat(d.Uint32()) != RPCSuccess {
				t.Fatalf("%v, %s: % x: %v", service, name, a.reply[:40], err)
			}
			d, err = c.Results(&cred, d)
			if err != nil {
				t.Fatalf("%v, %s: %v", service, name, err)
			}
			if k.proc == procWho && (!bytes.Equal(d.Opaque(2<<20), r.bulk) || d.Uint32() != 5) {
				t.Errorf("%v, %s: other results", service, name)
			}
		}
	}
}

// TestGSSAbandoned: a server that is closed drops a call whose results a worker was to protect.
// The reply cache has them.
func TestGSSAbandoned(t *testing.T) {
	r := newGSSRig(t)
	r.s.programs[0].Procs[procWho].Mutates = true
	res, _ := r.init("alice")
	c := gss.NewClient(r.client, res.Handle, gss.Integrity)
	r.bulk = make([]byte, 2*onLoop)
	r.s.Close()
	cred, err := c.Next()
	if err != nil {
		t.Fatal(err)
	}
	e := header(2, procWho, &cred)
	c.Finish(e, &cred, nil)
	if reply := r.send(e.AppendFlat(nil)); reply != nil || r.s.cache.count != 1 {
		t.Errorf("a closed server answers with %d bytes, and remembers %d replies", len(reply), r.s.cache.count)
	}
}

// TestGSSLoopDoesNotAllocate: neither do calls whose results are protected on the loop.
func TestGSSLoopDoesNotAllocate(t *testing.T) {
	r := newGSSRig(t)
	r.bulk = make([]byte, 4096)
	for _, service := range []gss.Service{gss.Integrity, gss.Privacy} {
		const calls = 101 // one more than AllocsPerRun is asked for
		msgs := r.calls(calls, service, procWho, nil)
		replies := 0
		memory := make([]byte, 3*onLoop)
		c := &Call{Alloc: func(n int) []byte { return memory[:n] }, Reply: func(c *Call, drop bool) {
			if !drop && !c.Detached() && c.Res.Len() > len(r.bulk) {
				replies++
			}
		}}
		i := 0
		n := testing.AllocsPerRun(calls-1, func() {
			c.Reset()
			r.s.Dispatch(c, xdr.NewDecoder(msgs[i]), false)
			i++
		})
		if n != 0 && !raceEnabled || replies != calls {
			t.Errorf("%v: %v allocations per call, %d replies", service, n, replies)
		}
	}
}

// TestSecuredDoesNotAllocate: neither does a client for the protection of its calls.
func TestSecuredDoesNotAllocate(t *testing.T) {
	r := newGSSRig(t)
	for _, service := range []gss.Service{gss.None, gss.Integrity} {
		res, _ := r.init("alice")
		c := gss.NewClient(r.client, res.Handle, service)
		const calls = 101 // one more than AllocsPerRun is asked for
		reply := func(cred *gss.Cred, xid uint32) []byte {
			e := header(xid, procEcho, cred)
			seal := gss.NewClient(r.client, res.Handle, service)
			seal.Finish(e, cred, func(e *xdr.Encoder) { e.Uint32(9) })
			return r.send(e.B)
		}
		q := &Request{
			Prog: testProg, Vers: 2, Proc: procEcho, gss: c,
			Args: func(e *xdr.Encoder) { e.Uint32(9) },
			Res:  func(d *xdr.Decoder) error { d.Uint32(); return d.Err() },
		}
		var replies [calls][]byte
		for i := range replies {
			replies[i] = reply(&gss.Cred{Version: 1, Seq: uint32(i + 1), Service: service, Handle: res.Handle}, uint32(i))
		}
		var e xdr.Encoder
		var d xdr.Decoder
		failed, i := error(nil), 0
		n := testing.AllocsPerRun(calls-1, func() {
			var err error
			if q.gssCred, err = c.Next(); err != nil {
				failed = err
			}
			q.XID = uint32(i)
			e.Reset()
			q.encodeSecured(&e)
			d = xdr.NewDecoder(replies[i])
			if err := q.decodeSecured(&d); err != nil {
				failed = err
			}
			i++
		})
		if n != 0 && !raceEnabled || failed != nil {
			t.Errorf("%v: %v allocations per call: %v", service, n, failed)
		}
	}
}
