package nfs3

import (
	"testing"

	"github.com/rstored/rstored/rpcrdma/xdr"
)

func TestDescribe(t *testing.T) {
	var e xdr.Encoder
	EncodeHandle(&e, []byte("handle"))
	e.Opaque([]byte("a\nb"))
	EncodeHandle(&e, []byte("other"))
	e.Opaque([]byte("c"))
	for _, tc := range []struct {
		proc uint32
		b    []byte
		want string
	}{
		{ProcRename, e.B, `from=0x918020d9 name="a\nb" to=0xd9583520 name="c"`},
		{ProcLookup, e.B, `dir=0x918020d9 name="a\nb"`},
		{ProcNull, nil, ""},
		{ProcRead, e.B[:12], "fh=0x918020d9 offset=0 count=0 (not decoded further)"},
		{99, e.B, ""},
	} {
		if got := Describe(tc.proc, xdr.NewDecoder(tc.b)); got != tc.want {
			t.Errorf("procedure %d: %s, want %s", tc.proc, got, tc.want)
		}
	}
}

func FuzzDescribe(f *testing.F) {
	f.Add(uint32(ProcWrite), []byte{0, 0, 0, 4, 1, 2, 3, 4, 0, 0, 0, 0, 0, 0, 0, 9})
	f.Fuzz(func(_ *testing.T, proc uint32, b []byte) {
		Describe(proc, xdr.NewDecoder(b))
		DescribeMount(proc, xdr.NewDecoder(b))
		DescribeACL(proc, xdr.NewDecoder(b))
	})
}
