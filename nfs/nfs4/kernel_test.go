package nfs4

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/rstored/rstored/nfs"
	"github.com/rstored/rstored/nfs/state"
	"github.com/rstored/rstored/rpcrdma/rpc"
	"github.com/rstored/rstored/rpcrdma/xdr"
)

// learned is what an operation's result says of names that its server made up.
type learned struct {
	fh             []byte // GETFH
	id, delegation *state.Stateid
	client         uint64
	session        *state.SessionID
	body           []byte
}

// walkResult reads the result of an operation that did not fail, or whose failure has
// a body too.
func walkResult(d *xdr.Decoder, op uint32, st nfs.Status) (l learned) {
	stateid := func() *state.Stateid {
		id := DecodeStateid(d)
		return &id
	}
	at, rest := d.Offset(), *d
	defer func() { l.body = rest.Fixed((d.Offset() - at + 3) &^ 3) }()
	switch {
	case op == OpSetAttr:
		DecodeBitmap(d)
		return l
	case (op == OpLock || op == OpLockT) && st == nfs.ErrDenied:
		d.Skip(28)
		d.Opaque(OwnerMax)
		return l
	case st != nfs.OK:
		return l
	}
	switch op {
	case OpSequence:
		d.Skip(36)
	case OpGetFH:
		l.fh = bytes.Clone(d.Opaque(FHMax))
	case OpGetAttr:
		DecodeBitmap(d)
		d.Opaque(fattrMax)
	case OpAccess, OpCommit:
		d.Skip(8)
	case OpOpen:
		l.id = stateid()
		d.Skip(changeInfoLen + 4)
		DecodeBitmap(d)
		switch d.Uint32() {
		case 1:
			l.delegation = stateid()
			d.Skip(4 + 12)
			d.Opaque(OwnerMax)
		case 2:
			l.delegation = stateid()
			d.Skip(4 + 12 + 12)
			d.Opaque(OwnerMax)
		case DelegNoneExt:
			if why := d.Uint32(); why == 1 || why == 2 {
				d.Uint32()
			}
		}
	case OpClose, OpLock, OpLockU, OpOpenDowngrade:
		l.id = stateid()
	case OpRead:
		d.Uint32()
		d.Opaque(1 << 20)
	case OpWrite:
		d.Skip(16)
	case OpCreate:
		d.Skip(changeInfoLen)
		DecodeBitmap(d)
	case OpRemove, OpLink, OpSetXattr:
		d.Skip(changeInfoLen)
	case OpRename:
		d.Skip(2 * changeInfoLen)
	case OpReadDir:
		d.Skip(8)
		for d.Bool() && d.Err() == nil {
			d.Uint64()
			d.Opaque(nameMax)
			DecodeBitmap(d)
			d.Opaque(fattrMax)
		}
		d.Bool()
	case OpReadLink:
		d.Opaque(pathMax)
	case OpSecInfoNoName:
		for range d.Uint32() {
			if d.Uint32() == 6 {
				d.Opaque(100)
				d.Skip(8)
			}
		}
	case OpExchangeID:
		l.client = d.Uint64()
		d.Skip(8 + 4 + 8)
		d.Opaque(OwnerMax)
		d.Opaque(OwnerMax)
		decodeImplID(d)
	case OpCreateSession:
		id := DecodeSessionID(d)
		l.session = &id
		d.Skip(8 + 2*28)
	case OpFreeStateID, OpPutFH, OpPutRootFH, OpLookup, OpSaveFH, OpRestoreFH, OpReclaimComplete, OpDestroySession,
		OpDestroyClientID, OpDelegReturn,
		OpAllocate, OpDeallocate:
	case OpSeek:
		d.Skip(12)
	case OpCopy:
		if d.Uint32() == 1 {
			l.id = stateid()
		}
		d.Skip(8 + 4 + 8 + 8)
	case OpListXattrs:
		d.Uint64()
		for range d.Uint32() {
			d.Opaque(nameMax)
		}
		d.Bool()
	default:
		d.Fail(xdr.ErrValue)
	}
	return l
}

// replayed is the recorded conversation being had with our server.
type replayed struct {
	*rig
	swap    *strings.Replacer
	pairs   []string
	session state.SessionID
	seq     uint32
}

// learn notes that what their server called a, ours calls b.
func (p *replayed) learn(a, b []byte) {
	if len(a) == 0 || bytes.Equal(a, b) {
		return
	}
	// A client ID is part of other names: the longer ones come first.
	at := 0
	for at < len(p.pairs) && len(p.pairs[at]) > len(a) {
		at += 2
	}
	p.pairs = slices.Insert(p.pairs, at, string(a), string(b))
	p.swap = strings.NewReplacer(p.pairs...)
}

func opaque(b []byte) []byte {
	var e xdr.Encoder
	e.Opaque(b)
	return e.B
}

// translate makes the arguments what the client would have sent to our server.
func (p *replayed) translate(a []byte) []byte {
	b := []byte(p.swap.Replace(string(a)))
	d := xdr.NewDecoder(b)
	d.Opaque(tagMax)
	d.Skip(8)
	if d.Uint32() == OpSequence {
		p.seq++
		at := d.Offset()
		copy(b[at:], p.session[:])
		binary.BigEndian.PutUint32(b[at+16:], p.seq)
		binary.BigEndian.PutUint32(b[at+20:], 0)
		binary.BigEndian.PutUint32(b[at+24:], 0)
	}
	return b
}

// TestKernel has the conversation of the kernel's client with the kernel's server with
// our server: it comes to the same end, operation by operation, except where we do
// less.
func TestKernel(t *testing.T) {
	file, err := os.Open("testdata/kernel.txt")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	r := newRig(t)
	if err := r.table.Replace([]*nfs.Export{{
		ID: 1, Pseudo: "/", FS: r.fs,
		Clients: r.table.Exports()[0].Clients,
	}}); err != nil {
		t.Fatal(err)
	}
	p := &replayed{rig: r, swap: strings.NewReplacer()}
	lines := bufio.NewScanner(file)
	lines.Buffer(nil, 1<<20)
	seen := make(map[uint32]int)
	n := 0
	for lines.Scan() {
		field := strings.Fields(lines.Text())
		if field[0] == "#" {
			continue
		}
		n++
		var b [2][]byte
		for i := range b {
			if b[i], err = hex.DecodeString(field[i]); err != nil {
				t.Fatal(err)
			}
		}
		p.exchange(n, b[0], b[1], seen)
	}
	if len(seen) < 25 || n < 150 {
		t.Errorf("%d operations in %d calls", len(seen), n)
	}
	t.Logf("%d calls, operations by number: %v", n, seen)
}

// less are the operations that we refuse, and SEEK: to the store in memory, what was
// allocated is data.
var less = map[uint32]bool{
	OpSeek: true, OpDelegReturn: true,
}

func (p *replayed) exchange(n int, args, results []byte, seen map[uint32]int) {
	p.t.Helper()
	ours, accept := p.send(p.translate(args))
	if accept != rpc.RPCSuccess {
		p.t.Fatalf("call %d: accept status %d", n, accept)
	}
	theirs := xdr.NewDecoder(results)
	head := func(d *xdr.Decoder) uint32 {
		d.Uint32()
		d.Opaque(tagMax)
		return d.Uint32()
	}
	want, got := head(&theirs), head(ours)
	for i := range want {
		if i == got {
			p.t.Errorf("call %d: no result %d", n, i)
			return
		}
		op, st := theirs.Uint32(), nfs.Status(theirs.Uint32())
		o, s := ours.Uint32(), nfs.Status(ours.Uint32())
		seen[op]++
		if o != op {
			p.t.Errorf("call %d: result %d is of operation %d instead of %d", n, i, o, op)
			return
		}
		if s != st {
			if !less[op] {
				p.t.Errorf("call %d: operation %d: %v instead of %v", n, op, s, st)
			}
			return
		}
		a, b := walkResult(&theirs, op, st), walkResult(ours, op, s)
		if theirs.Err() != nil || ours.Err() != nil {
			p.t.Fatalf("call %d: operation %d: %v, %v", n, op, theirs.Err(), ours.Err())
		}
		p.compare(n, op, &a, &b)
	}
	if ours.Remaining() != 0 || theirs.Remaining() != 0 {
		p.t.Errorf("call %d: %d and %d bytes are left", n, ours.Remaining(), theirs.Remaining())
	}
}

// compare learns names, and holds against each other what has to be the same.
func (p *replayed) compare(n int, op uint32, a, b *learned) {
	switch {
	case op == OpGetFH:
		p.learn(opaque(a.fh), opaque(b.fh))
	case op == OpExchangeID:
		p.learn(binary.BigEndian.AppendUint64(nil, a.client), binary.BigEndian.AppendUint64(nil, b.client))
	case op == OpCreateSession:
		p.learn(a.session[:], b.session[:])
		p.session = *b.session
	case a.id != nil:
		if op != OpClose && a.id.Seq != b.id.Seq {
			p.t.Errorf("call %d: operation %d: seqid %d instead of %d", n, op, b.id.Seq, a.id.Seq)
		}
		p.learn(a.id.Other[:], b.id.Other[:])
		if a.delegation != nil {
			p.learn(a.delegation.Other[:], b.id.Other[:])
		}
	case op == OpAccess:
		if got, want := binary.BigEndian.Uint32(b.body[4:]), binary.BigEndian.Uint32(a.body[4:]); got != want {
			p.t.Errorf("call %d: access %x instead of %x", n, got, want)
		}
	case op == OpReadLink:
		if !bytes.Equal(a.body, b.body) {
			p.t.Errorf("call %d: operation %d: %x instead of %x", n, op, b.body, a.body)
		}
	}
}
