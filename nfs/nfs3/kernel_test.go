package nfs3

import (
	"bufio"
	"bytes"
	"encoding/hex"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/rstored/rstored/blockstore"
	"github.com/rstored/rstored/nfs"
	"github.com/rstored/rstored/rpcrdma/xdr"
)

// A form spells the fields of arguments or results, a letter each:
//
//	h handle   H post_op_fh3   s string   w word   q hyper   v verifier
//	S sattr3   G guard         a fattr3   p post_op_attr     W wcc_data
//	C createhow3   M mknoddata3   d entries   D entries with attributes
//	B opaque data whose bytes may have been moved to a chunk
type form string

// forms are, by procedure, the arguments, the results, and the results of a failure.
var forms = [numProcs][3]form{
	ProcGetAttr:     {"h", "a", ""},
	ProcSetAttr:     {"hSG", "W", "W"},
	ProcLookup:      {"hs", "hpp", "p"},
	ProcAccess:      {"hw", "pw", "p"},
	ProcReadLink:    {"h", "pB", "p"},
	ProcRead:        {"hqw", "pwwB", "p"},
	ProcWrite:       {"hqwwB", "Wwwv", "W"},
	ProcCreate:      {"hsC", "HpW", "W"},
	ProcMkdir:       {"hsS", "HpW", "W"},
	ProcSymlink:     {"hsSB", "HpW", "W"},
	ProcMknod:       {"hsM", "HpW", "W"},
	ProcRemove:      {"hs", "W", "W"},
	ProcRmdir:       {"hs", "W", "W"},
	ProcRename:      {"hshs", "WW", "WW"},
	ProcLink:        {"hhs", "pW", "pW"},
	ProcReadDir:     {"hqvw", "pvd", "p"},
	ProcReadDirPlus: {"hqvww", "pvD", "p"},
	ProcFSStat:      {"h", "pqqqqqqw", "p"},
	ProcFSInfo:      {"h", "pwwwwwwwqqw", "p"},
	ProcPathConf:    {"h", "pwwwwww", "p"},
	ProcCommit:      {"hqw", "Wv", "W"},
}

// transcode decodes by a form and encodes what it found.
func (f form) transcode(d *xdr.Decoder, e *xdr.Encoder) {
	post := func(a *Attr) {
		if a == nil {
			EncodePostOp(e, nil, 0)
			return
		}
		EncodePostOp(e, &a.Attr, a.FSID)
	}
	setAttr := func() {
		s := DecodeSetAttr(d)
		EncodeSetAttr(e, &s)
	}
	handle := func() {
		h := DecodePostOpHandle(d)
		if e.Bool(h != nil); h != nil {
			EncodeHandle(e, h)
		}
	}
	word := func() uint32 { v := d.Uint32(); e.Uint32(v); return v }
	for _, c := range f {
		switch c {
		case 'h':
			EncodeHandle(e, DecodeHandle(d))
		case 'H':
			handle()
		case 's':
			e.String(d.String(NameLimit))
		case 'w':
			word()
		case 'q':
			e.Uint64(d.Uint64())
		case 'v':
			v := DecodeVerifier(d)
			e.Fixed(v[:])
		case 'S':
			setAttr()
		case 'G':
			g := d.Bool()
			if e.Bool(g); g {
				EncodeTime(e, DecodeTime(d))
			}
		case 'a':
			a := DecodeAttr(d)
			EncodeAttr(e, &a.Attr, a.FSID)
		case 'p':
			post(DecodePostOp(d))
		case 'W':
			w := DecodeWcc(d)
			var in blockstore.Wcc
			var fsid uint64
			if w.Pre != nil {
				in.Pre = &blockstore.Attr{Size: w.Pre.Size, Mtime: w.Pre.Mtime, Ctime: w.Pre.Ctime}
			}
			if w.Post != nil {
				in.Post, fsid = &w.Post.Attr, w.Post.FSID
			}
			EncodeWcc(e, &in, fsid)
		case 'C':
			if word() == CreateExclusive {
				v := DecodeVerifier(d)
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
				e.String(d.String(NameLimit))
				e.Uint64(d.Uint64())
				if c == 'D' {
					post(DecodePostOp(d))
					handle()
				}
			}
			word()
		case 'B':
			n := word()
			if d.Remaining() > 0 {
				e.Fixed(d.Fixed(int(min(n, nfs.MaxIO))))
			}
		}
	}
}

// TestKernel: what the kernel's client and server say to each other is decoded to
// its last byte and encoded to the same bytes.
func TestKernel(t *testing.T) {
	file, err := os.Open("testdata/kernel.txt")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	seen := make(map[int]int)
	check := func(what string, proc int, f form, b []byte) {
		t.Helper()
		d := xdr.NewDecoder(b)
		var e xdr.Encoder
		f.transcode(&d, &e)
		if d.Err() != nil || d.Remaining() != 0 || !bytes.Equal(e.B, b) {
			t.Errorf("%s of procedure %d, %v, %d bytes left over:\n%x becomes\n%x", what, proc, d.Err(), d.Remaining(), b, e.B)
		}
	}
	lines := bufio.NewScanner(file)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		field := strings.Fields(lines.Text())
		if field[0] == "#" {
			continue
		}
		proc, err := strconv.Atoi(field[0])
		if err != nil || proc >= numProcs || len(field) != 3 {
			t.Fatalf("line %q", lines.Text())
		}
		var b [2][]byte
		for i := range b {
			if field[1+i] == "-" {
				continue
			}
			if b[i], err = hex.DecodeString(field[1+i]); err != nil {
				t.Fatal(err)
			}
		}
		seen[proc]++
		check("arguments", proc, forms[proc][0], b[0])
		if proc == ProcNull {
			continue
		}
		d := xdr.NewDecoder(b[1])
		f := forms[proc][1]
		if nfs.Status(d.Uint32()) != nfs.OK {
			f = forms[proc][2]
		}
		check("results", proc, f, b[1][4:])
	}
	if len(seen) < 18 {
		t.Errorf("%d procedures", len(seen))
	}
	t.Logf("calls by procedure: %v", seen)
}
