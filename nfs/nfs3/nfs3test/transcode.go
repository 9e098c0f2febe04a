package nfs3test

import (
	"bytes"
	"fmt"

	"github.com/rstored/rstored/blockstore"
	"github.com/rstored/rstored/nfs"
	"github.com/rstored/rstored/nfs/nfs3"
	"github.com/rstored/rstored/rpcrdma/xdr"
)

// maxFlavors bounds the list that a mount returns (RFC 1813 appendix I sets no limit).
const maxFlavors = 64

// A form describes arguments or results by one letter for each field:
//
//	h handle   H post_op_fh3   s string   w word   q hyper   v verifier
//	S sattr3   G guard         a fattr3   p post_op_attr     W wcc_data
//	C createhow3   M mknoddata3   d entries   D entries with attributes
//	B opaque data whose bytes may have been moved to a chunk
//	f flavors of a mount     m mounted directories   x exports
//	A access and default ACL of NFSACL
type form string

// forms has, for each procedure, the forms of the arguments, of the results, and of the results of
// a failure.
var forms = [...][3]form{
	nfs3.ProcGetAttr:     {"h", "a", ""},
	nfs3.ProcSetAttr:     {"hSG", "W", "W"},
	nfs3.ProcLookup:      {"hs", "hpp", "p"},
	nfs3.ProcAccess:      {"hw", "pw", "p"},
	nfs3.ProcReadLink:    {"h", "pB", "p"},
	nfs3.ProcRead:        {"hqw", "pwwB", "p"},
	nfs3.ProcWrite:       {"hqwwB", "Wwwv", "W"},
	nfs3.ProcCreate:      {"hsC", "HpW", "W"},
	nfs3.ProcMkdir:       {"hsS", "HpW", "W"},
	nfs3.ProcSymlink:     {"hsSB", "HpW", "W"},
	nfs3.ProcMknod:       {"hsM", "HpW", "W"},
	nfs3.ProcRemove:      {"hs", "W", "W"},
	nfs3.ProcRmdir:       {"hs", "W", "W"},
	nfs3.ProcRename:      {"hshs", "WW", "WW"},
	nfs3.ProcLink:        {"hhs", "pW", "pW"},
	nfs3.ProcReadDir:     {"hqvw", "pvd", "p"},
	nfs3.ProcReadDirPlus: {"hqvww", "pvD", "p"},
	nfs3.ProcFSStat:      {"h", "pqqqqqqw", "p"},
	nfs3.ProcFSInfo:      {"h", "pwwwwwwwqqw", "p"},
	nfs3.ProcPathConf:    {"h", "pwwwwww", "p"},
	nfs3.ProcCommit:      {"hqw", "Wv", "W"},
}

// mountForms are the forms of MOUNT. Only MNT has a status.
var mountForms = [...][3]form{
	nfs3.MountMnt:    {"s", "hf", ""},
	nfs3.MountDump:   {"", "m", ""},
	nfs3.MountUmnt:   {"s", "", ""},
	nfs3.MountExport: {"", "x", ""},
}

// aclForms are the forms of NFSACL.
var aclForms = [...][3]form{
	nfs3.ProcGetACL: {"hw", "pwA", "p"},
	nfs3.ProcSetACL: {"hwA", "p", "p"},
}

// find returns the forms of a procedure.
func find(prog, proc uint32) (f [3]form, err error) {
	table := forms[:]
	switch prog {
	case nfs3.Program:
	case nfs3.MountProgram:
		table = mountForms[:]
	case nfs3.ACLProgram:
		table = aclForms[:]
	default:
		return f, fmt.Errorf("program %d is not of NFS version 3", prog)
	}
	if uint64(proc) >= uint64(len(table)) {
		return f, fmt.Errorf("program %d has no procedure %d", prog, proc)
	}
	return table[proc], nil
}

// Args checks that arguments decode to their last byte and encode to the same bytes.
// Opaque data at their end may have been moved to a chunk.
func Args(prog, proc uint32, b []byte) error {
	f, err := find(prog, proc)
	if err != nil {
		return err
	}
	return f[0].check(b)
}

// Results is Args for results.
func Results(prog, proc uint32, b []byte) error {
	f, err := find(prog, proc)
	if err != nil {
		return err
	}
	if proc == nfs3.ProcNull || prog == nfs3.MountProgram && proc != nfs3.MountMnt {
		return f[1].check(b)
	}
	d := xdr.NewDecoder(b)
	status := nfs.Status(d.Uint32())
	if d.Err() != nil {
		return d.Err()
	}
	if status != nfs.OK {
		return f[2].check(b[4:])
	}
	return f[1].check(b[4:])
}

func (f form) check(b []byte) error {
	d := xdr.NewDecoder(b)
	var e xdr.Encoder
	f.transcode(&d, &e)
	if d.Err() != nil || d.Remaining() != 0 || !bytes.Equal(e.B, b) {
		return fmt.Errorf("error %v, %d bytes left over:\n%x becomes\n%x", d.Err(), d.Remaining(), b, e.B)
	}
	return nil
}

// transcode decodes fields by a form, and encodes the result.
func (f form) transcode(d *xdr.Decoder, e *xdr.Encoder) {
	post := func(a *nfs3.Attr) {
		if a == nil {
			nfs3.EncodePostOp(e, nil, 0)
			return
		}
		nfs3.EncodePostOp(e, &a.Attr, a.FSID)
	}
	setAttr := func() {
		s := nfs3.DecodeSetAttr(d)
		nfs3.EncodeSetAttr(e, &s)
	}
	handle := func() {
		h := nfs3.DecodePostOpHandle(d)
		if e.Bool(h != nil); h != nil {
			nfs3.EncodeHandle(e, h)
		}
	}
	word := func() uint32 { v := d.Uint32(); e.Uint32(v); return v }
	for _, c := range f {
		switch c {
		case 'h':
			nfs3.EncodeHandle(e, nfs3.DecodeHandle(d))
		case 'H':
			handle()
		case 's':
			e.String(d.String(nfs3.NameLimit))
		case 'w':
			word()
		case 'q':
			e.Uint64(d.Uint64())
		case 'v':
			v := nfs3.DecodeVerifier(d)
			e.Fixed(v[:])
		case 'S':
			setAttr()
		case 'G':
			g := d.Bool()
			if e.Bool(g); g {
				nfs3.EncodeTime(e, nfs3.DecodeTime(d))
			}
		case 'a':
			a := nfs3.DecodeAttr(d)
			nfs3.EncodeAttr(e, &a.Attr, a.FSID)
		case 'p':
			post(nfs3.DecodePostOp(d))
		case 'W':
			w := nfs3.DecodeWcc(d)
			var in blockstore.Wcc
			var fsid uint64
			if w.Pre != nil {
				in.Pre = blockstore.Known(&blockstore.Attr{Size: w.Pre.Size, Mtime: w.Pre.Mtime, Ctime: w.Pre.Ctime})
			}
			if w.Post != nil {
				in.Post, fsid = blockstore.Known(&w.Post.Attr), w.Post.FSID
			}
			nfs3.EncodeWcc(e, &in, fsid)
		case 'C':
			if word() == nfs3.CreateExclusive {
				v := nfs3.DecodeVerifier(d)
				e.Fixed(v[:])
			} else {
				setAttr()
			}
		case 'M':
			switch blockstore.FileType(word()) {
			case blockstore.TypeChr, blockstore.TypeBlk:
				setAttr()
				word()
				word()
			case blockstore.TypeSock, blockstore.TypeFifo:
				setAttr()
			}
		case 'd', 'D':
			for d.Err() == nil && word() == 1 {
				e.Uint64(d.Uint64())
				e.String(d.String(nfs3.NameLimit))
				e.Uint64(d.Uint64())
				if c == 'D' {
					post(nfs3.DecodePostOp(d))
					handle()
				}
			}
			word()
		case 'f':
			for range min(word(), maxFlavors) {
				word()
			}
		case 'm':
			for d.Err() == nil && word() == 1 {
				e.String(d.String(nfs3.MountNameMax))
				e.String(d.String(nfs.PathMax))
			}
		case 'x':
			for d.Err() == nil && word() == 1 {
				e.String(d.String(nfs.PathMax))
				for d.Err() == nil && word() == 1 {
					e.String(d.String(nfs3.MountNameMax))
				}
			}
		case 'A':
			nfs3.EncodeACL(e, nfs3.DecodeACL(d), false)
			nfs3.EncodeACL(e, nfs3.DecodeACL(d), true)
		case 'B':
			n := word()
			if d.Remaining() > 0 {
				e.Fixed(d.Fixed(int(min(n, nfs.MaxIO))))
			}
		}
	}
}
