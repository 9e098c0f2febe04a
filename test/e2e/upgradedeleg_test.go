package e2e

import (
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/rstored/rstored/nfs"
	"github.com/rstored/rstored/nfs/client"
	"github.com/rstored/rstored/nfs/nfs4"
	"github.com/rstored/rstored/rpcrdma/rpc"
	"github.com/rstored/rstored/rpcrdma/xdr"
)

// caller42 is a client of version 4.2 on one connection, which it never makes anew, with a
// backchannel that it answers.
type caller42 struct {
	t       *testing.T
	c       net.Conn
	write   sync.Mutex
	xid     uint32
	session []byte
	seq     uint32
	replies chan []byte
	recalls chan []byte   // stateids of CB_RECALL
	copied  chan offload  // CB_OFFLOAD
	tried   chan struct{} // a callback that asks for nothing was answered
}

// Callbacks (RFC 8881 section 20).
const (
	opCBGetattr  = 3
	opCBRecall   = 4
	opCBSequence = 11
	opCBOffload  = 15
)

func newCaller42(t *testing.T, addr string) *caller42 {
	t.Helper()
	c, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	return newCaller42On(t, c)
}

func newCaller42On(t *testing.T, c net.Conn) *caller42 {
	t.Cleanup(func() { _ = c.Close() })
	k := &caller42{
		t: t, c: c, replies: make(chan []byte, 1), recalls: make(chan []byte, 16),
		copied: make(chan offload, 16), tried: make(chan struct{}, 1),
	}
	go k.read()
	return k
}

// send writes a record.
func (k *caller42) send(b []byte) {
	k.write.Lock()
	defer k.write.Unlock()
	if _, err := k.c.Write(append(binary.BigEndian.AppendUint32(nil, 1<<31|uint32(len(b))), b...)); err != nil {
		k.t.Error(err)
	}
}

// read takes replies, and calls of the server, which it answers.
func (k *caller42) read() {
	for {
		var head [4]byte
		if _, err := io.ReadFull(k.c, head[:]); err != nil {
			close(k.replies)
			return
		}
		b := make([]byte, binary.BigEndian.Uint32(head[:])&^(1<<31))
		if _, err := io.ReadFull(k.c, b); err != nil {
			close(k.replies)
			return
		}
		if rpc.IsReply(b) {
			k.replies <- b
			continue
		}
		k.called(b)
	}
}

// called answers a CB_COMPOUND.
func (k *caller42) called(b []byte) {
	d := xdr.NewDecoder(b)
	xid := d.Uint32()
	d.Skip(4 * 5) // call, version, program, its version, procedure
	for range 2 { // credential and verifier
		d.Uint32()
		d.Opaque(400)
	}
	d.Opaque(100)
	d.Skip(2 * 4)
	n := d.Uint32()
	d.Uint32() // CB_SEQUENCE
	session, seq, slot := d.Fixed(16), d.Uint32(), d.Uint32()
	d.Skip(2 * 4)
	for range d.Uint32() {
		d.Skip(16)
		for range d.Uint32() {
			d.Skip(8)
		}
	}
	op, st := uint32(0), nfs.OK
	if n == 2 {
		op = d.Uint32()
	}
	switch op {
	case opCBRecall:
		k.recalls <- d.Fixed(16)
	case opCBGetattr:
		st = nfs.ErrBadHandle // it does not say
	case opCBOffload:
		k.copied <- decodeOffload(&d)
	}
	var e xdr.Encoder
	for _, w := range []uint32{xid, 1, 0, 0, 0, 0, uint32(st), 0, n, opCBSequence, 0} {
		e.Uint32(w)
	}
	e.Fixed(session)
	for _, w := range []uint32{seq, slot, 0, 0} {
		e.Uint32(w)
	}
	if n == 2 {
		e.Uint32(op)
		e.Uint32(uint32(st))
	}
	if d.Err() != nil {
		k.t.Error(d.Err())
	}
	k.send(e.B)
	if n == 1 {
		select {
		case k.tried <- struct{}{}:
		default:
		}
	}
}

// compound sends operations and returns what follows the head of the reply.
func (k *caller42) compound(n uint32, ops func(e *xdr.Encoder)) *xdr.Decoder {
	k.t.Helper()
	d, st := k.call(n, ops)
	if st != nfs.OK {
		k.t.Fatal(st)
	}
	return d
}

// call is compound with a status.
func (k *caller42) call(n uint32, ops func(e *xdr.Encoder)) (*xdr.Decoder, nfs.Status) {
	k.t.Helper()
	k.xid++
	var e xdr.Encoder
	rpc.EncodeCall(&e, k.xid, nfs4.Program, nfs4.Version, nfs4.ProcCompound,
		&rpc.Cred{Flavor: rpc.AuthSys, Machine: "client"})
	e.String("")
	e.Uint32(2)
	e.Uint32(n)
	ops(&e)
	k.send(e.B)
	select {
	case b, ok := <-k.replies:
		if !ok {
			k.t.Fatal("the connection has ended")
		}
		d := xdr.NewDecoder(b)
		if err := rpc.DecodeReply(&d, k.xid); err != nil {
			k.t.Fatal(err)
		}
		st := nfs.Status(d.Uint32())
		d.Opaque(10)
		d.Uint32()
		return &d, st
	case <-time.After(20 * time.Second):
		k.t.Fatal("no reply")
		return nil, 0
	}
}

// do is compound behind a SEQUENCE.
func (k *caller42) do(n uint32, ops func(e *xdr.Encoder)) *xdr.Decoder {
	k.t.Helper()
	d, st := k.try(n, ops)
	if st != nfs.OK {
		k.t.Fatal(st)
	}
	return d
}

// try is do with a status.
func (k *caller42) try(n uint32, ops func(e *xdr.Encoder)) (*xdr.Decoder, nfs.Status) {
	k.t.Helper()
	k.seq++
	d, st := k.call(n+1, func(e *xdr.Encoder) {
		e.Uint32(nfs4.OpSequence)
		e.Fixed(k.session)
		e.Uint32(k.seq)
		e.Uint32(0)
		e.Uint32(0)
		e.Bool(false)
		ops(e)
	})
	d.Skip(8 + 16 + 4*4)
	if flags := d.Uint32(); flags != 0 {
		k.t.Errorf("SEQUENCE says %#x", flags)
	}
	return d, st
}

// join makes a session with a backchannel.
func (k *caller42) join() {
	k.t.Helper()
	d := k.compound(1, func(e *xdr.Encoder) {
		e.Uint32(nfs4.OpExchangeID)
		e.Uint64(1)
		e.String("caller42")
		e.Uint32(0)
		e.Uint32(0)
		e.Uint32(0)
	})
	d.Skip(8)
	id, seq := d.Uint64(), d.Uint32()
	d = k.compound(1, func(e *xdr.Encoder) {
		e.Uint32(nfs4.OpCreateSession)
		e.Uint64(id)
		e.Uint32(seq)
		e.Uint32(2) // for callbacks
		for range 2 {
			for _, w := range []uint32{0, 1 << 16, 1 << 16, 4096, 16, 8, 0} {
				e.Uint32(w)
			}
		}
		e.Uint32(0x40000000)
		e.Uint32(1)
		e.Uint32(0)
	})
	d.Skip(8)
	k.session = d.Fixed(16)
	k.do(1, func(e *xdr.Encoder) {
		e.Uint32(nfs4.OpReclaimComplete)
		e.Bool(false)
	})
	<-k.tried // nobody gets a delegation before
}

// open opens a file of the first export for writing, and returns its handle and the stateids of
// the open and of the delegation.
func (k *caller42) open(name string) (fh, open, deleg []byte) {
	k.t.Helper()
	d := k.do(4, func(e *xdr.Encoder) {
		e.Uint32(nfs4.OpPutRootFH)
		e.Uint32(nfs4.OpLookup)
		e.String("data")
		e.Uint32(nfs4.OpOpen)
		e.Uint32(0)
		e.Uint32(3)
		e.Uint32(0)
		e.Uint64(1)
		e.String("owner")
		e.Uint32(0) // it is there
		e.Uint32(0) // by name
		e.String(name)
		e.Uint32(nfs4.OpGetFH)
	})
	d.Skip(3 * 8)
	open = d.Fixed(16)
	d.Skip(4 + 8 + 8 + 4)
	for range d.Uint32() {
		d.Uint32()
	}
	if kind := d.Uint32(); kind != 2 {
		k.t.Fatalf("delegation %d", kind)
	}
	deleg = d.Fixed(16)
	d.Skip(4 + 4 + 8 + 3*4)
	d.Opaque(100)
	d.Skip(8)
	fh = d.Opaque(128)
	if d.Err() != nil {
		k.t.Fatal(d.Err())
	}
	return fh, open, deleg
}

// TestUpgradeDelegation: a delegation and its session go over upgrades, and its client is asked
// for it on the connection that it had; then who wanted the file has it.
func TestUpgradeDelegation(t *testing.T) {
	d := newDaemon(t)
	t.Cleanup(func() {
		if _, pid := d.serving(); pid != d.cmd.Process.Pid {
			d.successor = pid
		}
	})
	other := d.clientOf(client.Version42, "tcp")
	f, err := other.CreateFile(t.Context(), "/data/delegated", 0o666)
	if err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	k := newCaller42(t, fmt.Sprintf("%v:2049", d.addr))
	k.join()
	fh, open, deleg := k.open("delegated")
	for range 2 {
		d.takeOver("upgrade")
		k.do(2, func(e *xdr.Encoder) {
			e.Uint32(nfs4.OpPutFH)
			e.Opaque(fh)
			e.Uint32(nfs4.OpWrite)
			e.Fixed(deleg)
			e.Uint64(0)
			e.Uint32(0)
			e.Opaque([]byte("by delegation"))
		})
	}
	if len(k.recalls) > 0 {
		t.Error("it was recalled for nothing")
	}
	opened := make(chan error, 1)
	go func() {
		g, err := other.OpenShare(t.Context(), "/data/delegated", client.ShareRead|client.ShareWrite, 0)
		if err == nil {
			err = g.Close()
		}
		opened <- err
	}()
	select {
	case id := <-k.recalls:
		if string(id) != string(deleg) {
			t.Errorf("%x was recalled, not %x", id, deleg)
		}
	case <-time.After(20 * time.Second):
		t.Fatal("it was not recalled")
	}
	d.takeOver("upgrade") // with the recall answered, and the delegation not returned
	k.do(4, func(e *xdr.Encoder) {
		e.Uint32(nfs4.OpPutFH)
		e.Opaque(fh)
		e.Uint32(nfs4.OpRead)
		e.Fixed(open)
		e.Uint64(0)
		e.Uint32(5)
		e.Uint32(nfs4.OpClose)
		e.Uint32(0)
		e.Fixed(open)
		e.Uint32(nfs4.OpDelegReturn)
		e.Fixed(deleg)
	})
	if err := <-opened; err != nil {
		t.Error(err)
	}
}
