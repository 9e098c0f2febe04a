package nfs4

import (
	"testing"

	"github.com/rstored/rstored/rpcrdma/xdr"
)

func TestDescribe(t *testing.T) {
	var e xdr.Encoder
	e.Opaque([]byte("t"))
	e.Uint32(2)
	e.Uint32(4)
	e.Uint32(OpSequence)
	e.Fixed(make([]byte, 16))
	for _, w := range []uint32{9, 3, 3, 0} {
		e.Uint32(w)
	}
	e.Uint32(OpPutFH)
	e.Opaque([]byte("handle"))
	e.Uint32(OpLookup)
	e.Opaque([]byte("x"))
	short := len(e.B)
	e.Uint32(OpLayoutGet) // of unknown length here
	for _, tc := range []struct {
		b    []byte
		want string
	}{
		{e.B, `4.2 tag="t" SEQUENCE(slot=3 seq=9) PUTFH(fh=0x918020d9) LOOKUP(name="x") LAYOUTGET`},
		{e.B[:short], `4.2 tag="t" SEQUENCE(slot=3 seq=9) PUTFH(fh=0x918020d9) LOOKUP(name="x") (not decoded further)`},
		{e.B[:short-4], `4.2 tag="t" SEQUENCE(slot=3 seq=9) PUTFH(fh=0x918020d9) LOOKUP (not decoded further)`},
		{e.B[:7], "(not decoded)"},
	} {
		if got := Describe(xdr.NewDecoder(tc.b)); got != tc.want {
			t.Errorf("%s, want %s", got, tc.want)
		}
	}
}

// TestMainOperation: each operation's weight is one, so that a compound of any has a name.
func TestMainOperation(t *testing.T) {
	for op := range weights {
		if table[op].name != "" && weights[op] == 0 {
			t.Errorf("%s has no weight", table[op].name)
		}
	}
	if weights[OpOpen] <= weights[OpAccess] || weights[OpGetAttr] <= weights[OpPutFH] ||
		weights[OpPutFH] <= weights[OpSequence] {
		t.Error("what leads to an operation weighs as much as that")
	}
}

func FuzzDescribe(f *testing.F) {
	f.Add([]byte{0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 1, 0, 0, 0, 9})
	f.Fuzz(func(_ *testing.T, b []byte) { Describe(xdr.NewDecoder(b)) })
}
