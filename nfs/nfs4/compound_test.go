package nfs4

import (
	"bytes"
	"testing"

	"github.com/rstored/rstored/nfs"
	"github.com/rstored/rstored/rpcrdma/rpc"
	"github.com/rstored/rstored/rpcrdma/xdr"
)

// TestTable: every operation has its row.
func TestTable(t *testing.T) {
	for n := OpAccess; n < numOps; n++ {
		row := &table[n]
		want := 0
		switch {
		case n >= OpAllocate:
			want = 2
		case n >= OpBackchannelCtl:
			want = 1
		}
		if row.name == "" || int(row.minor) != want {
			t.Errorf("operation %d: %q of minor version %d", n, row.name, row.minor)
		}
		if row.is(alone) && row.is(needsHandle) {
			t.Errorf("%s", row.name)
		}
	}
}

// TestLoop: what may stand where.
func TestLoop(t *testing.T) {
	r := newRig(t)
	x1, x2 := r.session(1, "one"), r.session(2, "two")
	type result struct {
		op uint32
		st nfs.Status
	}
	seq, root, getFH, fine := op(OpSequence), op(OpPutRootFH), op(OpGetFH), nfs.OK
	for _, c := range []struct {
		name  string
		minor uint32
		ops   []args
		want  []result // of all but the results that are just fine
		st    nfs.Status
	}{
		{"nothing", 1, nil, nil, fine},
		{"version 4.3", 3, []args{root}, nil, nfs.ErrMinorVersMismatch},
		{"without a session", 1, []args{root}, []result{{OpPutRootFH, nfs.ErrOpNotInSession}}, nfs.ErrOpNotInSession},
		{"illegal without a session", 1, []args{op(2)}, []result{{OpIllegal, nfs.ErrOpIllegal}}, nfs.ErrOpIllegal},
		{
			"alone, but not", 1,
			[]args{exchangeArgs("x", 1, 0), root},
			[]result{{OpExchangeID, nfs.ErrNotOnlyOp}},
			nfs.ErrNotOnlyOp,
		},
		{
			"illegal", 1,
			[]args{seq, root, op(9999), getFH},
			[]result{{OpPutRootFH, fine}, {OpIllegal, nfs.ErrOpIllegal}},
			nfs.ErrOpIllegal,
		},
		{"OP_ILLEGAL itself", 2, []args{seq, op(OpIllegal)}, []result{{OpIllegal, nfs.ErrOpIllegal}}, nfs.ErrOpIllegal},
		{
			"of 4.2 in 4.1", 1,
			[]args{seq, root, op(OpSeek)},
			[]result{{OpPutRootFH, fine}, {OpIllegal, nfs.ErrOpIllegal}},
			nfs.ErrOpIllegal,
		},
		{
			"of 4.2 in 4.2, not there", 2,
			[]args{seq, root, op(OpLayoutStats)},
			[]result{{OpPutRootFH, fine}, {OpLayoutStats, nfs.ErrNotSupp}},
			nfs.ErrNotSupp,
		},
		{"of 4.0", 1, []args{seq, op(OpSetClientID)}, []result{{OpSetClientID, nfs.ErrNotSupp}}, nfs.ErrNotSupp},
		{"two SEQUENCEs", 1, []args{seq, seq}, []result{{OpSequence, nfs.ErrSequencePos}}, nfs.ErrSequencePos},
		{
			"BIND_CONN_TO_SESSION with others", 1,
			[]args{seq, op(OpBindConnToSession)},
			[]result{{OpBindConnToSession, nfs.ErrNotOnlyOp}},
			nfs.ErrNotOnlyOp,
		},
		{"no file handle", 1, []args{seq, getFH}, []result{{OpGetFH, nfs.ErrNoFileHandle}}, nfs.ErrNoFileHandle},
		{
			"nothing saved", 1,
			[]args{seq, root, op(OpRestoreFH)},
			[]result{{OpPutRootFH, fine}, {OpRestoreFH, nfs.ErrNoFileHandle}},
			nfs.ErrNoFileHandle,
		},
		{
			"LINK of nothing", 1,
			[]args{seq, root, op(OpLink, "x")},
			[]result{{OpPutRootFH, fine}, {OpLink, nfs.ErrNoFileHandle}},
			nfs.ErrNoFileHandle,
		},
		{
			"file handle consumed", 1,
			[]args{seq, root, op(OpSecInfo, "one"), getFH},
			[]result{{OpPutRootFH, fine}, {OpSecInfo, fine}, {OpGetFH, nfs.ErrNoFileHandle}},
			nfs.ErrNoFileHandle,
		},
		{
			"goes no further", 1,
			[]args{seq, root, op(OpLookup, "none"), root},
			[]result{{OpPutRootFH, fine}, {OpLookup, nfs.ErrNoEnt}},
			nfs.ErrNoEnt,
		},
		{"cut short", 1, []args{seq, op(OpPutFH, uint32(20))}, []result{{OpPutFH, nfs.ErrBadXDR}}, nfs.ErrBadXDR},
		{
			"no operation at all", 1,
			[]args{seq, root, part()},
			[]result{{OpPutRootFH, fine}, {OpIllegal, nfs.ErrBadXDR}},
			nfs.ErrBadXDR,
		},
		{
			"session destroyed on the way", 1,
			[]args{seq, op(OpDestroySession, x1.id), root},
			[]result{{OpDestroySession, nfs.ErrNotOnlyOp}},
			nfs.ErrNotOnlyOp,
		},
		{
			"in 4.2", 2,
			[]args{seq, root, op(OpLookup, "one"), op(OpSaveFH), op(OpRestoreFH)},
			[]result{{OpPutRootFH, fine}, {OpLookup, fine}, {OpSaveFH, fine}, {OpRestoreFH, fine}},
			fine,
		},
	} {
		x := x1
		if c.minor == 2 {
			x = x2
		}
		ops := append([]args(nil), c.ops...)
		inSession := len(ops) > 0 && len(encoded(ops[0])) == 4 && words(encoded(ops[0]))[0] == OpSequence
		if inSession {
			x.seq++
			ops[0] = x.sequence(x.seq, 0)
		}
		p := r.compound(c.minor, ops...)
		if p.status != c.st {
			t.Errorf("%s: %v", c.name, p.status)
		}
		if inSession {
			p.ok(OpSequence).Skip(36)
		}
		for _, want := range c.want {
			if st := p.next(want.op); st != want.st {
				t.Errorf("%s: operation %d: %v", c.name, want.op, st)
			}
			if want.op == OpSecInfo {
				p.Skip(12)
			}
		}
		p.end()
	}
	if r.s.illegal.Load() == 0 || r.count.Snapshot()["nfs_status_OP_ILLEGAL"] == 0 {
		t.Error("not counted")
	}
}

func encoded(a args) []byte {
	var e xdr.Encoder
	a(&e)
	return e.B
}

// TestGarbage: what is no COMPOUND4args is refused by RPC.
func TestGarbage(t *testing.T) {
	r := newRig(t)
	for _, b := range [][]byte{{}, {0, 0, 0, 9}, {0, 0, 0, 0, 0, 0, 0, 1}, bytes.Repeat([]byte{255}, 64)} {
		if _, st := r.send(b); st != rpc.GarbageArgs {
			t.Errorf("%x: accept status %d", b, st)
		}
	}
	var e xdr.Encoder
	encodeCompound(&e, "\xff", 1, op(OpPutRootFH))
	d, _ := r.send(e.B)
	if st := nfs.Status(d.Uint32()); st != nfs.ErrInval || d.String(10) != "\xff" || d.Uint32() != 0 {
		t.Errorf("a tag that is not UTF-8: %v", st)
	}
	if r.count.Snapshot()["nfs_garbage"] != 4 {
		t.Error("not counted")
	}
}

// TestReplay: a request that is not idempotent is executed once.
func TestReplay(t *testing.T) {
	r := newRig(t)
	x := r.session(2, "one")
	x.cache = true
	dir := x.handle("one")
	mkdir := func(name string) args {
		return op(OpCreate, uint32(2), name, attrs(BitmapOf(AttrMode), uint32(0o755)))
	}
	p := x.do(op(OpPutFH, dir), mkdir("d"), op(OpGetFH))
	if p.status != nfs.OK {
		t.Fatal(p.status)
	}
	first := bytes.Clone(r.raw)
	send := func(seq uint32, ops ...args) *reply {
		return r.compound(2, append([]args{x.sequence(seq, 0)}, ops...)...)
	}
	send(x.seq, op(OpPutFH, dir), mkdir("d"), op(OpGetFH))
	if !bytes.Equal(r.raw[4:], first[4:]) { // but for the XID
		t.Errorf("the retry was answered\n%x, first it was\n%x", r.raw, first)
	}
	if r.s.replays.Load() != 1 {
		t.Error("not counted")
	}
	send(x.seq, op(OpPutFH, dir), mkdir("e"), op(OpGetFH)).fails(OpSequence, nfs.ErrSeqFalseRetry)
	r.uid = 5
	send(x.seq, op(OpPutFH, dir), mkdir("d"), op(OpGetFH)).fails(OpSequence, nfs.ErrSeqFalseRetry)
	r.uid = 0
	// Principals that are no users of the host have one UID. None gets the reply of another, or of root.
	x.do(op(OpPutFH, dir), op(OpGetFH))
	for _, name := range []string{"stranger", "other"} {
		r.gss = proven(rpc.AuthKrb5, name, 0)
		send(x.seq, op(OpPutFH, dir), op(OpGetFH)).fails(OpSequence, nfs.ErrSeqFalseRetry)
		x.do(op(OpPutFH, dir), op(OpGetFH))
		send(x.seq, op(OpPutFH, dir), op(OpGetFH)).ok(OpSequence)
	}
	r.gss = nil
	send(x.seq+2, op(OpPutFH, dir)).fails(OpSequence, nfs.ErrSeqMisordered)
	send(x.seq-1, op(OpPutFH, dir)).fails(OpSequence, nfs.ErrSeqMisordered)
	p = x.do(op(OpPutFH, dir), mkdir("d"))
	p.ok(OpPutFH).fails(OpCreate, nfs.ErrExist)
	other := *x
	other.id[11]++
	r.compound(2, other.sequence(1, 0)).fails(OpSequence, nfs.ErrBadSession)
	r.compound(2, op(OpSequence, x.id, uint32(1), uint32(8), uint32(8), false)).fails(OpSequence, nfs.ErrBadSlot)
	r.compound(2, op(OpSequence, x.id, uint32(1), uint32(5), uint32(99), false)).fails(OpSequence, nfs.ErrBadHighSlot)
	r.compound(1, x.sequence(1, 5)).fails(OpSequence, nfs.ErrBadSession)
	x.do().end()

	// The reply of a READ is kept if that is asked for, its data with it.
	fh, id := x.make(dir, "file")
	x.do(op(OpPutFH, fh), op(OpWrite, id, uint64(0), uint32(2), "some bytes")).ok(OpPutFH).ok(OpWrite)
	read := op(OpRead, id, uint64(0), uint32(100))
	x.do(op(OpPutFH, fh), read, read)
	first = bytes.Clone(r.raw)
	send(x.seq, op(OpPutFH, fh), read, read)
	if !bytes.Equal(r.raw[4:], first[4:]) || !bytes.Contains(r.raw, []byte("some bytes")) {
		t.Errorf("the retry was answered\n%x, first it was\n%x", r.raw, first)
	}
	// If not, the client is told.
	x.cache = false
	p = x.do(op(OpPutFH, fh), read)
	p.ok(OpPutFH).ok(OpRead)
	p = send(x.seq, op(OpPutFH, fh), read)
	p.ok(OpSequence).Skip(36)
	p.fails(OpPutFH, nfs.ErrRetryUncachedRep)
	// A short reply is kept all the same.
	x.do(op(OpPutFH, dir), op(OpRemove, "d")).ok(OpPutFH).ok(OpRemove)
	first = bytes.Clone(r.raw)
	send(x.seq, op(OpPutFH, dir), op(OpRemove, "d"))
	if !bytes.Equal(r.raw[4:], first[4:]) {
		t.Error("a REMOVE was executed twice")
	}
}
