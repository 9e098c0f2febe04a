package oracle

import (
	"bytes"
	"encoding/binary"
	"reflect"
	"slices"
	"strings"
	"testing"

	x4 "github.com/buildbarn/go-xdr/pkg/protocols/nfsv4"

	"github.com/rstored/rstored/nfs"
)

// Bounds that the server has and XDR has not.
const (
	bitmapWords = 8
	nameBytes   = 4096
	linkBytes   = 8192
	ownerBytes  = 1024
	attrBytes   = 64 << 10
	secParms    = 16
	sources     = 64
	stateids    = 1 << 16
)

// beyondBounds reports whether arguments are well-formed, but longer than the server
// takes, or a word among them is not one of its enumeration, which go-xdr does not
// check. Such arguments may be answered BADXDR.
func beyondBounds(op x4.NfsArgop4) bool {
	type enum struct {
		is       bool
		val, max int32
		min      int32
	}
	within := func(e ...enum) bool {
		return !slices.ContainsFunc(e, func(e enum) bool { return e.is && (e.val < e.min || e.val > e.max) })
	}
	lockType := func(t x4.NfsLockType4) bool { return !within(enum{true, int32(t), 4, 1}) }
	switch a := op.(type) {
	case *x4.NfsArgop4_OP_LOCK:
		if lockType(a.Oplock.Locktype) {
			return true
		}
	case *x4.NfsArgop4_OP_LOCKT:
		if lockType(a.Oplockt.Locktype) {
			return true
		}
	case *x4.NfsArgop4_OP_LOCKU:
		if lockType(a.Oplocku.Locktype) {
			return true
		}
	case *x4.NfsArgop4_OP_WRITE:
		return !within(enum{true, int32(a.Opwrite.Stable), 2, 0}) || len(a.Opwrite.Data) > nfs.MaxIO
	case *x4.NfsArgop4_OP_SECINFO_NO_NAME:
		return !within(enum{true, int32(a.OpsecinfoNoName), 1, 0})
	case *x4.NfsArgop4_OP_CREATE:
		if l, ok := a.Opcreate.Objtype.(*x4.Createtype4_NF4LNK); ok && len(l.Linkdata) > linkBytes ||
			badAttrs(&a.Opcreate.Createattrs) {
			return true
		}
	case *x4.NfsArgop4_OP_SETATTR:
		return badAttrs(&a.Opsetattr.ObjAttributes)
	case *x4.NfsArgop4_OP_OPEN:
		if f, ok := a.Opopen.Openhow.(*x4.Openflag4_default); ok && f.Opentype != x4.OPEN4_NOCREATE {
			return true
		}
		if f, ok := a.Opopen.Openhow.(*x4.Openflag4_OPEN4_CREATE); ok {
			switch how := f.How.(type) {
			case *x4.Createhow4_UNCHECKED4:
				if badAttrs(&how.Createattrs) {
					return true
				}
			case *x4.Createhow4_GUARDED4:
				if badAttrs(&how.Createattrs) {
					return true
				}
			case *x4.Createhow4_EXCLUSIVE4_1:
				if badAttrs(&how.ChCreateboth.CvaAttrs) {
					return true
				}
			}
		}
	case *x4.NfsArgop4_OP_BACKCHANNEL_CTL:
		if len(a.OpbackchannelCtl.BcaSecParms) > secParms {
			return true
		}
	case *x4.NfsArgop4_OP_CREATE_SESSION:
		if len(a.OpcreateSession.CsaSecParms) > secParms {
			return true
		}
	case *x4.NfsArgop4_OP_TEST_STATEID:
		return len(a.OptestStateid.TsStateids) > stateids
	case *x4.NfsArgop4_OP_COPY:
		return len(a.Opcopy.CaSourceServer) > sources
	}
	return long(reflect.ValueOf(op))
}

// since41 reports whether an OPEN is one of those that version 4.1 brought.
func since41(op x4.NfsArgop4) bool {
	o, ok := op.(*x4.NfsArgop4_OP_OPEN)
	if !ok {
		return false
	}
	if f, ok := o.Opopen.Openhow.(*x4.Openflag4_OPEN4_CREATE); ok && f.How.GetMode() == x4.EXCLUSIVE4_1 {
		return true
	}
	return o.Opopen.Claim.GetClaim() > x4.CLAIM_DELEGATE_PREV
}

// badAttrs reports whether a fattr4 that is to be set does not hold what its mask says. To
// go-xdr its values are just bytes.
func badAttrs(a *x4.Fattr4) bool {
	if len(a.Attrmask) > bitmapWords || len(a.AttrVals) > attrBytes {
		return true
	}
	r := bytes.NewReader(a.AttrVals)
	for _, n := range numbers(a.Attrmask) {
		switch n {
		case x4.FATTR4_TIME_ACCESS_SET, x4.FATTR4_TIME_MODIFY_SET:
			v, _, err := x4.ReadSettime4(r)
			if err != nil {
				return true
			}
			if d, ok := v.(*x4.Settime4_default); ok && d.SetIt != x4.SET_TO_SERVER_TIME4 {
				return true
			}
		case 81: // mode_umask
			var b [8]byte
			if k, _ := r.Read(b[:]); k < 8 {
				return true
			}
		default:
			read := values[n]
			if read == nil {
				return false // refused for what it is, whatever its value
			}
			if _, err := read(r); err != nil {
				return true
			}
		}
	}
	return r.Len() != 0
}

// long reports whether there is a string or a list in v that is longer than the server
// takes where such a one stands.
func long(v reflect.Value) bool {
	switch v.Kind() {
	case reflect.Pointer, reflect.Interface:
		return !v.IsNil() && long(v.Elem())
	case reflect.String:
		return v.Len() > nameBytes
	case reflect.Struct:
		for _, field := range v.Fields() {
			if long(field) {
				return true
			}
		}
	case reflect.Slice:
		switch v.Type().Elem().Kind() {
		case reflect.Uint8:
			return v.Len() > ownerBytes // of data the caller knows better
		case reflect.Uint32:
			return v.Len() > bitmapWords
		}
		for i := range v.Len() {
			if long(v.Index(i)) {
				return true
			}
		}
	}
	return false
}

// FuzzAgainstGoXDR has any bytes follow a SEQUENCE. What go-xdr makes an operation of the
// server executes as that operation, or refuses with a status that is not BADXDR; what
// go-xdr cannot read the server does not execute. Every reply is one that go-xdr reads to
// the last byte and writes again as it was.
func FuzzAgainstGoXDR(f *testing.F) {
	r := newRig(f)
	s := r.session(2, "fuzzer")
	dir := s.handle("data")
	fh, id := s.open(dir, "file")
	seed := func(ops ...x4.NfsArgop4) {
		var b []byte
		for _, op := range ops {
			b = append(b, bytesOf(f, op)...)
		}
		f.Add(uint32(len(ops)-1), b)
		f.Add(uint32(len(ops)-1)|8, b)
	}
	attrs := fattr(f, bitmap(x4.FATTR4_SIZE, x4.FATTR4_MODE), uint64Of(9), uint32Of(0o600))
	for _, op := range slices.Concat(every40, of40, of41, of42) {
		seed(putFH(dir), op)
	}
	seed(putFH(fh), writeOp(id, 0, x4.UNSTABLE4, "bytes"), readOp(id, 0, 9), &x4.NfsArgop4_OP_COMMIT{})
	seed(putFH(dir), makeOp(&x4.Createhow4_UNCHECKED4{Createattrs: attrs}, "new"), &x4.NfsArgop4_OP_GETFH{})
	seed(putFH(dir), makeOp(&x4.Createhow4_EXCLUSIVE4_1{ChCreateboth: x4.Creatverfattr{CvaAttrs: attrs}}, "new"))
	seed(putFH(fh), &x4.NfsArgop4_OP_SETATTR{Opsetattr: x4.Setattr4args{Stateid: id, ObjAttributes: attrs}})
	seed(putFH(fh), &x4.NfsArgop4_OP_GETATTR{Opgetattr: x4.Getattr4args{AttrRequest: []uint32{
		^uint32(0),
		^uint32(1<<16 | 1<<22), 0x1ffff &^ (1 << 18),
	}}})
	seed(putFH(dir), &x4.NfsArgop4_OP_READDIR{Opreaddir: x4.Readdir4args{
		Maxcount:    4096,
		AttrRequest: bitmap(1, 3, 4, 33),
	}})
	seed(putFH(fh), lockOp(x4.WRITE_LT, 0, 9, byOpen(id, "o")), lockOp(x4.READ_LT, 5, 9, byOpen(id, "p")))
	seed(putFH(fh), &x4.NfsArgop4_OP_READ_PLUS{OpreadPlus: x4.ReadPlus4args{RpaStateid: id, RpaCount: 100}})
	seed(putFH(fh), &x4.NfsArgop4_OP_SEEK{Opseek: x4.Seek4args{SaStateid: id}})
	seed(&x4.NfsArgop4_OP_TEST_STATEID{OptestStateid: x4.TestStateid4args{TsStateids: []x4.Stateid4{id}}})
	seed(putFH(dir), createOp(&x4.Createtype4_NF4LNK{Linkdata: []byte("to")}, "link"), &x4.NfsArgop4_OP_READLINK{})
	f.Fuzz(func(t *testing.T, n uint32, b []byte) {
		r := newRig(t)
		s := r.session(2, "fuzzer")
		fh, id := s.open(s.handle("data"), "file")
		s.one(putFH(fh), writeOp(id, 0, x4.UNSTABLE4, "some data"))
		old := n&8 != 0 // by version 4.0, which has no SEQUENCE
		n = n%8 + 1
		s.seq++
		head := x4.Sequence4args{SaSessionid: s.id, SaSequenceid: s.seq, SaSlotid: 2, SaHighestSlotid: 3}
		raw := bytesOf(t, &x4.Compound4args{
			Minorversion: 2,
			Argarray:     []x4.NfsArgop4{&x4.NfsArgop4_OP_SEQUENCE{Opsequence: head}},
		})
		first := uint32(1)
		if old {
			raw, first = make([]byte, 12), 0
			s.seq-- // it was not used
			r.join40("fuzzer of version 4.0").open40("o", "file", 3, 1)
		}
		binary.BigEndian.PutUint32(raw[8:], n+first)
		raw = append(raw, b...)

		// What go-xdr makes of the operations, up to the first that it cannot read.
		var ops []x4.NfsArgop4
		var xattr bool
		in := bytes.NewReader(b)
		for range n {
			if in.Len() >= 4 {
				at := b[len(b)-in.Len():]
				num := binary.BigEndian.Uint32(at)
				xattr = num > uint32(x4.OP_CLONE) && num <= uint32(x4.OP_CLONE)+4
			}
			op, _, err := x4.ReadNfsArgop4(in)
			if err != nil && laxer(err) {
				return
			}
			if err != nil {
				break
			}
			ops = append(ops, op)
		}
		res, ok := r.send(raw)
		if !ok {
			t.Fatalf("refused: %x", raw)
		}
		if xattr && len(ops) < int(n) && resultsOf(res) > uint32(len(ops))+first {
			return // go-xdr cannot read the result either
		}
		got := parse(t, res)
		results := got.Resarray[first:]
		if len(results) > int(n) || got.Status == x4.NFS4_OK && len(results) != int(n) {
			t.Fatalf("%d results of %d operations, %v", len(results), n, got.Status)
		}
		for i, op := range results {
			st := statusOf(t, op)
			if i >= len(ops) {
				if st == x4.NFS4_OK {
					t.Fatalf("operation %d is done (%T), and go-xdr does not read it: %x", i, op, b)
				}
				continue
			}
			if old && ops[i].GetArgop() > x4.OP_RELEASE_LOCKOWNER && st == x4.NFS4ERR_OP_ILLEGAL {
				continue // it has no such operation
			}
			if op.GetResop() != ops[i].GetArgop() {
				t.Fatalf("operation %d is %T, and its result %T", i, ops[i], op)
			}
			if st == x4.NFS4ERR_BADXDR && !beyondBounds(ops[i]) && !(old && since41(ops[i])) {
				t.Fatalf("operation %d is %+v, and it is answered BADXDR", i, ops[i])
			}
		}
		// The server goes on.
		if r.s.State().Session(s.id) == nil {
			s = r.session(2, "another") // it was destroyed
		}
		if a := s.getAttr(s.handle("data"), x4.FATTR4_TYPE); len(a) != 1 {
			t.Errorf("%v", a)
		}
	})
}

// laxer reports whether the server takes what go-xdr does not: bytes other than zero as
// padding, and names that are no UTF-8 (fs_charset_cap says so).
func laxer(err error) bool {
	return strings.HasPrefix(err.Error(), "padding contains") || strings.HasSuffix(err.Error(), "is not valid UTF-8") ||
		strings.HasPrefix(err.Error(), "character at offset")
}

// resultsOf is the number of results in the bytes of a COMPOUND4res with an empty tag.
func resultsOf(res []byte) uint32 { return binary.BigEndian.Uint32(res[8:]) }
