package nfs4

import (
	"bytes"
	"slices"
	"testing"

	"github.com/rstored/rstored/nfs"
	"github.com/rstored/rstored/nfs/state"
	"github.com/rstored/rstored/rpcrdma/gss"
	"github.com/rstored/rstored/rpcrdma/rpc"
)

// TestDoors: no way of a compound leads into an export by a flavor that it does not accept.
// SECINFO_NO_NAME says which it does.
func TestDoors(t *testing.T) {
	r := newRig(t)
	x := r.session(2, "one")
	dir, nested := x.handle("one"), x.handle("one", "nested")
	fh, open := x.make(dir, "file")
	x.make(nested, "inside")
	for _, e := range r.table.Exports() {
		if e.Pseudo == "/one" || e.Pseudo == "/" {
			for i := range e.Clients {
				e.Clients[i].Flavors = nfs.FlavorKrb5i | nfs.FlavorKrb5p
			}
		}
	}
	put := func(b []byte) args { return op(OpPutFH, b) }
	for _, cred := range []*rpc.Cred{nil, {Flavor: rpc.AuthNone}, proven(rpc.AuthKrb5, "games", 5)} {
		r.gss = cred
		for name, ops := range map[string][]args{
			"PUTFH of a file":      {put(fh)},
			"PUTFH of a directory": {put(dir)},
			"the source of a COPY": {put(nested), op(OpSaveFH), put(fh)},
			"LOOKUPP":              {put(nested), op(OpLookupP)},
			"CLOSE":                {put(fh), op(OpClose, uint32(0), open)},
			"READ":                 {put(fh), op(OpRead, open, uint64(0), uint32(1))},
			"READ by anybody":      {put(fh), op(OpRead, state.Anonymous, uint64(0), uint32(1))},
		} {
			if got := x.do(ops...).status; got != nfs.ErrWrongSec {
				t.Errorf("%s by %+v: %v", name, cred, got)
			}
		}
		d := x.do(put(nested), op(OpSecInfoNoName, uint32(1))).ok(OpPutFH).ok(OpSecInfoNoName)
		if got := secInfos(d); !slices.Equal(got, []gss.Service{gss.Privacy, gss.Integrity}) {
			t.Errorf("SECINFO_NO_NAME of the parent: %v", got)
		}
	}
	r.gss = proven(rpc.AuthKrb5p, "games", 5)
	if got := x.do(put(fh), op(OpGetFH)); got.ok(OpPutFH).ok(OpGetFH) == nil || !bytes.Equal(got.Opaque(FHMax), fh) {
		t.Error("the flavor that is accepted")
	}
	// The root of all is an export.
	root := *r.table.ByID(1)
	root.Pseudo = "/"
	if err := r.table.Replace([]*nfs.Export{&root}); err != nil {
		t.Fatal(err)
	}
	x.do(op(OpPutRootFH)).ok(OpPutRootFH)
	r.gss = nil
	x.do(op(OpPutRootFH)).fails(OpPutRootFH, nfs.ErrWrongSec)
	x.do(op(OpPutPubFH)).fails(OpPutPubFH, nfs.ErrWrongSec)
}

// secInfos reads a SECINFO4resok with nothing but RPCSEC_GSS.
func secInfos(p *reply) (list []gss.Service) {
	for range p.Uint32() {
		if p.Uint32() != uint32(rpc.AuthGSS) || !bytes.Equal(p.Opaque(100), gss.OIDKrb5[2:]) || p.Uint32() != 0 {
			return nil
		}
		list = append(list, gss.Service(p.Uint32()))
	}
	return list
}
