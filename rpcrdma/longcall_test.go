package rpcrdma

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"github.com/rstored/rstored/blockstore"
	"github.com/rstored/rstored/blockstore/memfs"
	"github.com/rstored/rstored/nfs"
	"github.com/rstored/rstored/nfs/nfs3"
	"github.com/rstored/rstored/nfs/nfs4"
	"github.com/rstored/rstored/rdma"
	"github.com/rstored/rstored/rpcrdma/rpc"
	"github.com/rstored/rstored/rpcrdma/xdr"
)

// step is a call of a procedure. data, if not empty, may have a Read chunk of its own (RFC 8267).
// It follows head, preceded by its length.
type step struct {
	name             string
	prog, vers, proc uint32
	head             []byte
	data             string
	tail             []byte
	cookie           bool   // the reply has an empty cookie before its status
	status           uint32 // of the reply; 0 if it has none
}

// longCalls are calls of every procedure of version 3, of NFSACL and of MOUNT, of otherCalls, and
// compounds of version 4. In this order all of them succeed. made is a file, and way a symlink.
func longCalls(root, made, way []byte) (steps []step) {
	enc := func(f func(e *xdr.Encoder)) []byte {
		var e xdr.Encoder
		f(&e)
		return e.B
	}
	opaque := func(b []byte) []byte { return enc(func(e *xdr.Encoder) { e.Opaque(b) }) }
	file := func(name string) []byte { return append(opaque(root), opaque([]byte(name))...) }
	keep := make([]byte, 6*4) // a sattr3 that sets nothing
	handle := opaque(root)
	v3 := func(name string, proc uint32, parts ...[]byte) {
		var all []byte
		for _, p := range parts {
			all = append(all, p...)
		}
		steps = append(steps, step{name: name, prog: nfs3.Program, vers: nfs3.Version, proc: proc, head: all})
	}
	words := func(w ...uint32) []byte { return enc(func(e *xdr.Encoder) { e.Uint32s(w...) }) }
	v3("NULL", nfs3.ProcNull)
	v3("GETATTR", nfs3.ProcGetAttr, handle)
	v3("SETATTR", nfs3.ProcSetAttr, handle, keep, words(0))
	v3("CREATE", nfs3.ProcCreate, file("file"), words(nfs3.CreateUnchecked), keep)
	v3("LOOKUP", nfs3.ProcLookup, file("file"))
	v3("ACCESS", nfs3.ProcAccess, handle, words(0x3f))
	v3("MKDIR", nfs3.ProcMkdir, file("dir"), keep)
	v3("SYMLINK", nfs3.ProcSymlink, file("link"), keep)
	steps[len(steps)-1].data = "where it leads"
	v3("MKNOD", nfs3.ProcMknod, file("fifo"), words(uint32(blockstore.TypeFifo)), keep)
	v3("RENAME", nfs3.ProcRename, file("fifo"), file("pipe"))
	v3("REMOVE", nfs3.ProcRemove, file("pipe"))
	v3("RMDIR", nfs3.ProcRmdir, file("dir"))
	v3("READDIR", nfs3.ProcReadDir, handle, words(0, 0, 0, 0, 1024))
	v3("READDIRPLUS", nfs3.ProcReadDirPlus, handle, words(0, 0, 0, 0, 1024, 2048))
	v3("FSSTAT", nfs3.ProcFSStat, handle)
	v3("FSINFO", nfs3.ProcFSInfo, handle)
	v3("PATHCONF", nfs3.ProcPathConf, handle)
	v3("WRITE", nfs3.ProcWrite, opaque(made), words(0, 0, 9, uint32(blockstore.FileSync)))
	steps[len(steps)-1].data = "some data"
	v3("READ", nfs3.ProcRead, opaque(made), words(0, 0, 100))
	v3("COMMIT", nfs3.ProcCommit, opaque(made), words(0, 0, 0))
	v3("READLINK", nfs3.ProcReadLink, opaque(way))
	v3("LINK", nfs3.ProcLink, opaque(made), file("another name"))
	mount := func(name string, proc uint32, args []byte) {
		steps = append(steps, step{name: name, prog: nfs3.MountProgram, vers: nfs3.MountVersion, proc: proc, head: args})
	}
	mount("MOUNT NULL", nfs3.MountNull, nil)
	mount("MNT", nfs3.MountMnt, opaque([]byte("/data")))
	mount("UMNT", nfs3.MountUmnt, opaque([]byte("/data")))
	mount("UMNTALL", nfs3.MountUmntAll, nil)
	mount("DUMP", nfs3.MountDump, nil)
	mount("EXPORT", nfs3.MountExport, nil)
	steps[len(steps)-1].status = 1 // there is an export
	steps = append(steps, otherCalls(made)...)
	acl := func(name string, proc uint32, args []byte) {
		steps = append(steps, step{name: name, prog: nfs3.ACLProgram, vers: nfs3.ACLVersion, proc: proc, head: args})
	}
	acl("NFSACL NULL", nfs3.ProcACLNull, nil)
	acl("GETACL", nfs3.ProcGetACL, append(append([]byte{}, handle...), words(0xf)...))
	acl("SETACL", nfs3.ProcSetACL, append(append([]byte{}, handle...), words(0, 0, 0, 0, 0)...))
	// Version 4.0 has no session. The WRITE uses the anonymous stateid.
	compound := func(name string, n uint32, head []byte, data string, tail []byte) {
		steps = append(steps, step{
			name: name, prog: nfs4.Program, vers: nfs4.Version, proc: nfs4.ProcCompound,
			head: append(enc(func(e *xdr.Encoder) { e.String("tag"); e.Uint32s(0, n) }), head...), data: data, tail: tail,
		})
	}
	at := func(name string) []byte {
		return enc(func(e *xdr.Encoder) {
			e.Uint32s(nfs4.OpPutRootFH, nfs4.OpLookup)
			e.String("data")
			e.Uint32(nfs4.OpLookup)
			e.String(name)
		})
	}
	compound("WRITE and GETATTR of version 4", 5, append(at("file"), words(nfs4.OpWrite, 0, 0, 0, 0, 0, 0, 2)...),
		"some data of an odd length!", words(nfs4.OpGetAttr, 1, 1<<4))
	compound("READ of version 4", 4, append(at("file"), words(nfs4.OpRead, 0, 0, 0, 0, 0, 0, 100)...), "", nil)
	compound("CREATE of a symlink by version 4", 3, enc(func(e *xdr.Encoder) {
		e.Uint32s(nfs4.OpPutRootFH, nfs4.OpLookup)
		e.String("data")
		e.Uint32s(nfs4.OpCreate, uint32(blockstore.TypeLnk))
	}), "another place", enc(func(e *xdr.Encoder) { e.String("link4"); e.Uint32s(0, 0) }))
	return steps
}

// TestLongProcedures sends the calls of longCalls in a Read chunk at position zero, of one segment
// and of many, as clients send calls that are too long for an inline message (RFC 8166 section
// 3.5.3). Data that may have a chunk of its own is in the call, or in another chunk beside the one
// at position zero. Statuses and lengths of the replies are those of inline calls.
func TestLongProcedures(t *testing.T) {
	type result struct {
		status uint32
		length int
	}
	run := func(send func(r *rawClient, xid uint32, s *step, call []byte, at int)) map[string]result {
		table := nfs.NewTable(nil)
		store := memfs.New(memfs.Options{FSID: 7, MaxBytes: 1 << 20})
		codec := nfs.NewCodec([]byte("secret"))
		if err := table.Add(&nfs.Export{
			ID: 1, Pseudo: "/data", FS: store,
			Clients: []nfs.ClientRule{{CIDR: netip.MustParsePrefix("0.0.0.0/0"), Squash: nfs.NoRootSquash}},
		}); err != nil {
			t.Fatal(err)
		}
		cfg := nfs.Config{Exports: table, Codec: codec}
		four := nfs4.New(nfs4.Config{Config: cfg, Identity: []byte("id"), Boot: 1})
		others, lm := otherPrograms(cfg, four)
		t.Cleanup(lm.Close)
		w := newWorldOf(t, Config{}, slices.Concat(nfs3.Programs(cfg), four.Programs(), others))
		r := w.rawUp()
		root, err := store.Root()
		if err != nil {
			t.Fatal(err)
		}
		made, _, _, err := store.Create(nil, root, "made", blockstore.Guarded, &blockstore.SetAttr{}, [8]byte{})
		if err != nil {
			t.Fatal(err)
		}
		way, _, _, err := store.Symlink(nil, root, "way", "to somewhere", &blockstore.SetAttr{})
		if err != nil {
			t.Fatal(err)
		}
		of := func(h blockstore.Handle) []byte { return codec.Append(nil, 1, &h) }
		out := make(map[string]result)
		for i, s := range longCalls(of(root), of(made), of(way)) {
			var e xdr.Encoder
			xid := uint32(i + 1)
			rpc.EncodeCall(&e, xid, s.prog, s.vers, s.proc, &rpc.Cred{Flavor: rpc.AuthSys, Machine: "client"})
			e.B = append(e.B, s.head...)
			at := len(e.B)
			if s.data != "" {
				e.String(s.data)
			}
			e.B = append(e.B, s.tail...)
			send(r, xid, &s, e.B, at)
			_, rest := r.reply()
			d := xdr.NewDecoder(rest)
			const replyHead = 6 * 4 // xid, reply, accepted, verifier of AUTH_NONE, accept status
			if d.Skip(replyHead); len(rest) < replyHead || d.Err() != nil {
				t.Fatalf("%s: a reply of %d bytes", s.name, len(rest))
			}
			var st uint32
			if s.cookie && len(d.Opaque(8)) > 0 {
				t.Errorf("%s: a cookie", s.name)
			}
			if d.Remaining() > 0 {
				st = d.Uint32()
			}
			out[s.name] = result{st, len(rest)}
		}
		return out
	}
	// long sends a call at position zero in segments of n bytes. If apart is set, the data is in a
	// chunk of its own, at the position of its bytes in the call.
	long := func(n int, apart bool) func(r *rawClient, xid uint32, s *step, call []byte, at int) {
		return func(r *rawClient, xid uint32, s *step, call []byte, at int) {
			var reads []ReadSegment
			add := func(position uint32, b []byte) {
				m := r.region(len(b), rdma.RemoteRead)
				copy(m.buf, b)
				var lengths []int
				for left := len(b); left > 0; left -= min(n, left) {
					lengths = append(lengths, min(n, left))
				}
				for _, g := range segments(m, lengths...) {
					reads = append(reads, ReadSegment{position, g})
				}
			}
			if apart && s.data != "" {
				from := at + 4
				padded := from + xdr.Padded(len(s.data))
				add(0, append(append([]byte{}, call[:from]...), call[padded:]...))
				add(uint32(from), []byte(s.data))
			} else {
				add(0, call)
			}
			r.send(message(&Header{XID: xid, Type: TypeNoMsg, Credits: 32, Reads: reads}, nil))
		}
	}
	steps := make(map[string]step)
	called := make(map[[3]uint32]bool)
	for _, s := range longCalls(nil, nil, nil) {
		steps[s.name], called[[3]uint32{s.prog, s.vers, s.proc}] = s, true
	}
	others, lm := otherPrograms(nfs.Config{Exports: nfs.NewTable(nil)}, nil)
	defer lm.Close()
	for _, p := range append(nfs3.Programs(nfs.Config{Exports: nfs.NewTable(nil)}), others...) {
		for proc := range p.Procs {
			if p.Procs[proc].Serve != nil && !called[[3]uint32{p.Prog, p.Vers, uint32(proc)}] {
				t.Errorf("no call of procedure %d of %s", proc, p.Name)
			}
		}
	}
	want := run(func(r *rawClient, xid uint32, _ *step, call []byte, _ int) {
		r.send(message(&Header{XID: xid, Type: TypeMsg, Credits: 32}, call))
	})
	for name, got := range want {
		if got.status != steps[name].status {
			t.Errorf("%s, inline: status %d instead of %d", name, got.status, steps[name].status)
		}
	}
	for _, c := range []struct {
		segment int
		apart   bool
	}{{1 << 20, false}, {1 << 20, true}, {28, false}, {37, true}} {
		t.Run(fmt.Sprintf("%d,%v", c.segment, c.apart), func(t *testing.T) {
			for name, got := range run(long(c.segment, c.apart)) {
				if got != want[name] {
					t.Errorf("%s: %+v, but inline %+v", name, got, want[name])
				}
			}
		})
	}
}
