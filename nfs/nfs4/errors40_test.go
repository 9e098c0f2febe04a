package nfs4

import (
	"bytes"
	"slices"
	"strings"
	"testing"

	"github.com/rstored/rstored/nfs"
	"github.com/rstored/rstored/nfs/state"
	"github.com/rstored/rstored/rpcrdma/xdr"
)

// errors40 are the errors that RFC 7530 section 13.2 has for each operation, by the
// names that nfs.Status gives them. RESOURCE is not among them: a compound may be too
// long at any of its operations.
var errors40 = map[string]string{
	"ACCESS":              "ACCES BADHANDLE BADXDR JUKEBOX FHEXPIRED INVAL IO MOVED NOFILEHANDLE SERVERFAULT STALE",
	"CLOSE":               "ADMIN_REVOKED BADHANDLE BAD_SEQID BAD_STATEID BADXDR JUKEBOX EXPIRED FHEXPIRED INVAL ISDIR LEASE_MOVED LOCKS_HELD MOVED NOFILEHANDLE OLD_STATEID SERVERFAULT STALE STALE_STATEID",
	"COMMIT":              "ACCES BADHANDLE BADXDR JUKEBOX FHEXPIRED INVAL IO ISDIR MOVED NOFILEHANDLE ROFS SERVERFAULT STALE SYMLINK",
	"CREATE":              "ACCES ATTRNOTSUPP BADCHAR BADHANDLE BADNAME BADOWNER BADTYPE BADXDR JUKEBOX DQUOT EXIST FHEXPIRED INVAL IO MOVED NAMETOOLONG NOFILEHANDLE NOSPC NOTDIR PERM ROFS SERVERFAULT STALE",
	"DELEGPURGE":          "BADXDR JUKEBOX LEASE_MOVED NOTSUPP SERVERFAULT STALE_CLIENTID",
	"DELEGRETURN":         "ADMIN_REVOKED BAD_STATEID BADXDR JUKEBOX EXPIRED INVAL LEASE_MOVED MOVED NOFILEHANDLE NOTSUPP OLD_STATEID SERVERFAULT STALE STALE_STATEID",
	"GETATTR":             "ACCES BADHANDLE BADXDR JUKEBOX FHEXPIRED GRACE INVAL IO MOVED NOFILEHANDLE SERVERFAULT STALE",
	"GETFH":               "BADHANDLE FHEXPIRED MOVED NOFILEHANDLE SERVERFAULT STALE",
	"ILLEGAL":             "BADXDR OP_ILLEGAL",
	"LINK":                "ACCES BADCHAR BADHANDLE BADNAME BADXDR JUKEBOX DQUOT EXIST FHEXPIRED FILE_OPEN INVAL IO ISDIR MLINK MOVED NAMETOOLONG NOENT NOFILEHANDLE NOSPC NOTDIR NOTSUPP ROFS SERVERFAULT STALE WRONGSEC XDEV",
	"LOCK":                "ACCES ADMIN_REVOKED BADHANDLE BAD_RANGE BAD_SEQID BAD_STATEID BADXDR DEADLOCK JUKEBOX DENIED EXPIRED FHEXPIRED GRACE INVAL ISDIR LEASE_MOVED LOCK_NOTSUPP LOCK_RANGE MOVED NOFILEHANDLE NO_GRACE OLD_STATEID OPENMODE RECLAIM_BAD RECLAIM_CONFLICT SERVERFAULT STALE STALE_CLIENTID STALE_STATEID",
	"LOCKT":               "ACCES BADHANDLE BAD_RANGE BADXDR JUKEBOX DENIED EXPIRED FHEXPIRED GRACE INVAL ISDIR LEASE_MOVED LOCK_RANGE MOVED NOFILEHANDLE SERVERFAULT STALE STALE_CLIENTID",
	"LOCKU":               "ACCES ADMIN_REVOKED BADHANDLE BAD_RANGE BAD_SEQID BAD_STATEID BADXDR JUKEBOX EXPIRED FHEXPIRED GRACE INVAL ISDIR LEASE_MOVED LOCK_RANGE MOVED NOFILEHANDLE OLD_STATEID SERVERFAULT STALE STALE_STATEID",
	"LOOKUP":              "ACCES BADCHAR BADHANDLE BADNAME BADXDR JUKEBOX FHEXPIRED INVAL IO MOVED NAMETOOLONG NOENT NOFILEHANDLE NOTDIR SERVERFAULT STALE SYMLINK WRONGSEC",
	"LOOKUPP":             "ACCES BADHANDLE JUKEBOX FHEXPIRED IO MOVED NOENT NOFILEHANDLE NOTDIR SERVERFAULT STALE SYMLINK WRONGSEC",
	"NVERIFY":             "ACCES ATTRNOTSUPP BADCHAR BADHANDLE BADXDR JUKEBOX FHEXPIRED GRACE INVAL IO MOVED NOFILEHANDLE SAME SERVERFAULT STALE",
	"OPEN":                "ACCES ADMIN_REVOKED ATTRNOTSUPP BADCHAR BADHANDLE BADNAME BADOWNER BAD_SEQID BAD_STATEID BADXDR JUKEBOX DQUOT EXIST EXPIRED FBIG FHEXPIRED GRACE INVAL IO ISDIR MOVED NAMETOOLONG NOENT NOFILEHANDLE NO_GRACE NOSPC NOTDIR NOTSUPP OLD_STATEID PERM RECLAIM_BAD RECLAIM_CONFLICT ROFS SERVERFAULT SHARE_DENIED STALE STALE_CLIENTID SYMLINK WRONGSEC",
	"OPENATTR":            "ACCES BADHANDLE BADXDR JUKEBOX DQUOT FHEXPIRED IO MOVED NOENT NOFILEHANDLE NOSPC NOTSUPP ROFS SERVERFAULT STALE",
	"OPEN_CONFIRM":        "ADMIN_REVOKED BADHANDLE BAD_SEQID BAD_STATEID BADXDR EXPIRED FHEXPIRED INVAL ISDIR LEASE_MOVED MOVED NOFILEHANDLE OLD_STATEID SERVERFAULT STALE STALE_STATEID",
	"OPEN_DOWNGRADE":      "ADMIN_REVOKED BADHANDLE BAD_SEQID BAD_STATEID BADXDR JUKEBOX EXPIRED FHEXPIRED INVAL LEASE_MOVED LOCKS_HELD MOVED NOFILEHANDLE OLD_STATEID ROFS SERVERFAULT STALE STALE_STATEID",
	"PUTFH":               "BADHANDLE BADXDR JUKEBOX FHEXPIRED MOVED SERVERFAULT STALE WRONGSEC",
	"PUTPUBFH":            "JUKEBOX SERVERFAULT WRONGSEC",
	"PUTROOTFH":           "JUKEBOX SERVERFAULT WRONGSEC",
	"READ":                "ACCES ADMIN_REVOKED BADHANDLE BAD_STATEID BADXDR JUKEBOX EXPIRED FHEXPIRED GRACE INVAL IO ISDIR LEASE_MOVED LOCKED MOVED NOFILEHANDLE OLD_STATEID OPENMODE SERVERFAULT STALE STALE_STATEID SYMLINK",
	"READDIR":             "ACCES BAD_COOKIE BADHANDLE BADXDR JUKEBOX FHEXPIRED INVAL IO MOVED NOFILEHANDLE NOTDIR NOT_SAME SERVERFAULT STALE TOOSMALL",
	"READLINK":            "ACCES BADHANDLE JUKEBOX FHEXPIRED INVAL IO ISDIR MOVED NOFILEHANDLE NOTSUPP SERVERFAULT STALE",
	"RELEASE_LOCKOWNER":   "BADXDR EXPIRED LEASE_MOVED LOCKS_HELD SERVERFAULT STALE_CLIENTID",
	"REMOVE":              "ACCES BADCHAR BADHANDLE BADNAME BADXDR JUKEBOX FHEXPIRED FILE_OPEN GRACE INVAL IO MOVED NAMETOOLONG NOENT NOFILEHANDLE NOTDIR NOTEMPTY ROFS SERVERFAULT STALE",
	"RENAME":              "ACCES BADCHAR BADHANDLE BADNAME BADXDR JUKEBOX DQUOT EXIST FHEXPIRED FILE_OPEN GRACE INVAL IO MOVED NAMETOOLONG NOENT NOFILEHANDLE NOSPC NOTDIR NOTEMPTY ROFS SERVERFAULT STALE WRONGSEC XDEV",
	"RENEW":               "ACCES BADXDR CB_PATH_DOWN EXPIRED LEASE_MOVED SERVERFAULT STALE_CLIENTID",
	"RESTOREFH":           "BADHANDLE FHEXPIRED MOVED RESTOREFH SERVERFAULT STALE WRONGSEC",
	"SAVEFH":              "BADHANDLE FHEXPIRED MOVED NOFILEHANDLE SERVERFAULT STALE",
	"SECINFO":             "ACCES BADCHAR BADHANDLE BADNAME BADXDR JUKEBOX FHEXPIRED INVAL MOVED NAMETOOLONG NOENT NOFILEHANDLE NOTDIR SERVERFAULT STALE",
	"SETATTR":             "ACCES ADMIN_REVOKED ATTRNOTSUPP BADCHAR BADHANDLE BADOWNER BAD_STATEID BADXDR JUKEBOX DQUOT EXPIRED FBIG FHEXPIRED GRACE INVAL IO ISDIR LEASE_MOVED LOCKED MOVED NOFILEHANDLE NOSPC OLD_STATEID OPENMODE PERM ROFS SERVERFAULT STALE STALE_STATEID",
	"SETCLIENTID":         "BADXDR CLID_INUSE JUKEBOX INVAL SERVERFAULT",
	"SETCLIENTID_CONFIRM": "BADXDR CLID_INUSE JUKEBOX SERVERFAULT STALE_CLIENTID",
	"VERIFY":              "ACCES ATTRNOTSUPP BADCHAR BADHANDLE BADXDR JUKEBOX FHEXPIRED GRACE INVAL IO MOVED NOFILEHANDLE NOT_SAME SERVERFAULT STALE",
	"WRITE":               "ACCES ADMIN_REVOKED BADHANDLE BAD_STATEID BADXDR JUKEBOX DQUOT EXPIRED FBIG FHEXPIRED GRACE INVAL IO ISDIR LEASE_MOVED LOCKED MOVED NOFILEHANDLE NOSPC NXIO OLD_STATEID OPENMODE ROFS SERVERFAULT STALE STALE_STATEID SYMLINK",
}

// valid40 checks that the error with which a compound of version 4.0 ends is one of those
// of its operation. It is in the last words of the reply; what some errors have behind
// them is passed over.
func valid40(t testing.TB, args xdr.Decoder, raw []byte) {
	t.Helper()
	args.Opaque(tagMax)
	if args.Uint32() != 0 || args.Err() != nil || len(raw) < 28 {
		return
	}
	w := words(raw)
	st := nfs.Status(w[6])
	if st == nfs.OK || st == nfs.ErrResource || st == nfs.ErrMinorVersMismatch || len(w) <= 10 || st == nfs.ErrInval && w[len(w)-1] == 0 {
		return
	}
	for i := len(w) - 2; i > 9; i-- {
		op := w[i]
		if nfs.Status(w[i+1]) != st || op != OpIllegal && (op >= numOps || table[op].name == "") {
			continue
		}
		name := "ILLEGAL"
		if op != OpIllegal {
			name = table[op].name
		}
		if !slices.Contains(strings.Fields(errors40[name]), st.String()) {
			t.Errorf("%s ends with %v, which RFC 7530 does not have there", name, st)
		}
		return
	}
	t.Errorf("no operation ends with %v: % x", st, raw)
}

// TestEveryObject40: each operation of version 4.0, on whatever a file handle can be of,
// ends as the RFC has it, whoever asks and whether there is a grace period or not. That
// send checks.
func TestEveryObject40(t *testing.T) {
	r := newRig(t)
	c := r.client40("x", 1)
	dir := r.root()
	fh, id := c.make("o", "file")
	l := c.on(fh, c.lockOp(c.next("o"), id, 1, "l", lockWrite, 0, 10)).ok(OpLock).id()
	made := func(typ uint32, name string, how ...any) []byte {
		t.Helper()
		p := r.compound(0, op(OpPutFH, dir), op(OpCreate, typ, part(how...), name, attrs(bitmap{})), op(OpGetFH)).ok(OpPutFH).ok(OpCreate)
		p.change()
		decodeBitmap(p.Decoder)
		return bytes.Clone(p.ok(OpGetFH).Opaque(fhMax))
	}
	gone := made(2, "gone")
	r.compound(0, op(OpPutFH, dir), op(OpRemove, "gone")).ok(OpPutFH).ok(OpRemove)
	forged := bytes.Clone(fh)
	forged[len(forged)-1]++
	objects := map[string][]args{
		"file": {op(OpPutFH, fh)}, "directory": {op(OpPutFH, dir)}, "link": {op(OpPutFH, made(5, "link", "target"))},
		"fifo": {op(OpPutFH, made(7, "fifo"))}, "device": {op(OpPutFH, made(4, "device", uint32(1), uint32(3)))},
		"gone": {op(OpPutFH, gone)}, "forged": {op(OpPutFH, forged)}, "nothing": nil, "root": {op(OpPutRootFH)},
		"pseudo": {op(OpPutRootFH), op(OpLookup, "deep")}, "read-only": {op(OpPutRootFH), op(OpLookup, "deep"), op(OpLookup, "two")},
	}
	stale, old := id, l
	stale.Other[0]++
	old.Seq--
	var ops []args
	for _, name := range []string{"file", "link", "directory", "none", "", ".", "..", "a/b", "\xff", strings.Repeat("n", 300), "nested", "one"} {
		ops = append(ops, op(OpLookup, name), op(OpSecInfo, name), op(OpRemove, name), op(OpRename, name, name+"2"), op(OpRename, "fifo", name), op(OpLink, name))
		for _, typ := range []uint32{1, 2, 6, 7, 8, 9} {
			ops = append(ops, op(OpCreate, typ, name, attrs(bits4(attrMode), uint32(0o700))))
		}
		ops = append(ops, op(OpCreate, uint32(5), "", name, attrs(bitmap{})), op(OpCreate, uint32(5), "to", name, attrs(bits4(attrSize), uint64(3))))
		for _, how := range []args{
			part(uint32(openNoCreate)), part(uint32(openCreate), uint32(createUnchecked), attrs(bitmap{})),
			part(uint32(openCreate), uint32(createGuarded), attrs(bits4(attrSize), uint64(0))), part(uint32(openCreate), uint32(createExclusive), [8]byte{1}),
			part(uint32(openCreate), uint32(createUnchecked), attrs(bits4(attrExclCreat), uint32(0))),
		} {
			ops = append(ops, args(func(e *xdr.Encoder) {
				op(OpOpen, c.next("many"), uint32(3), uint32(0), c.id, "many", how, uint32(claimNull), name)(e)
			}))
			for _, d := range []state.Stateid{id, stale} {
				ops = append(ops, args(func(e *xdr.Encoder) {
					op(OpOpen, c.next("many"), uint32(1), uint32(0), c.id, "many", how, uint32(claimDelegCur), d, name)(e)
				}))
			}
		}
	}
	for _, s := range []state.Stateid{id, l, stale, old, state.Anonymous, state.Bypass, state.Current, state.Invalid} {
		next := func(f func(seq uint32) args) args {
			return func(e *xdr.Encoder) {
				seq := c.seqs["o"] + 1
				f(seq)(e)
			}
		}
		ops = append(
			ops, op(OpRead, s, uint64(0), uint32(9)), op(OpWrite, s, uint64(0), uint32(2), "x"), op(OpSetAttr, s, attrs(bits4(attrSize), uint64(9))),
			op(OpSetAttr, s, attrs(bits4(attrMode), uint32(0o600))), op(OpDelegReturn, s),
			next(func(seq uint32) args { return op(OpClose, seq+5, s) }), next(func(seq uint32) args { return op(OpOpenConfirm, s, seq+5) }),
			next(func(seq uint32) args { return op(OpOpenDowngrade, s, seq+5, uint32(1), uint32(0)) }),
			next(func(seq uint32) args { return c.lockOp(seq+5, s, 1, "m", lockRead, 0, 1) }), lockMore(99, s, lockWrite, 0, 1), lockUOp(99, s, 0, 1),
		)
	}
	ops = append(
		ops, op(OpAccess, uint32(63)), op(OpCommit, uint64(0), uint32(0)), op(OpDelegPurge, c.id), op(OpGetAttr, supported41.without(writeOnly)),
		op(OpGetAttr, writeOnly), op(OpGetFH), op(OpLockT, lockRead, uint64(0), uint64(1), c.id, "z"), op(OpLockT, lockRead, uint64(5), uint64(0), c.id, "z"),
		op(OpLockT, lockRead, uint64(0), uint64(1), c.id+9, "z"), op(OpLookupP), op(OpVerify, attrs(bits4(attrType), uint32(1))), op(OpNVerify, attrs(bits4(attrType), uint32(1))),
		op(OpVerify, attrs(bits4(attrRdattrError), uint32(1))), op(OpOpenAttr, true), op(OpReadDir, uint64(0), [8]byte{}, uint32(0), uint32(4096), bits4(attrType)),
		op(OpReadDir, uint64(0), [8]byte{}, uint32(0), uint32(8), bits4(attrType)), op(OpReadDir, uint64(1), [8]byte{}, uint32(0), uint32(4096), bits4(attrType)),
		op(OpReadDir, uint64(0), [8]byte{}, uint32(0), uint32(4096), writeOnly), op(OpReadLink), op(OpRestoreFH), op(OpSaveFH),
		op(OpSetAttr, state.Anonymous, attrs(bits4(attrOwner), "nobody at all")), op(OpSetAttr, state.Anonymous, attrs(bits4(attrType), uint32(1))),
		op(OpReleaseLockOwner, c.id, "none"), op(OpReleaseLockOwner, c.id+9, "none"), op(OpRenew, c.id), op(OpRenew, c.id+9), op(OpPutFH, "xyz"),
		args(func(e *xdr.Encoder) { c.reclaimOp(c.next("again"), 1, "again")(e) }),
	)
	round := func(grace string) {
		for what, at := range objects {
			for _, peer := range []string{friend, reader, stranger} {
				for i, o := range ops {
					if strings.HasPrefix(what, "d") && peer == friend && i%7 == 3 {
						continue // not everything is to be removed at once
					}
					r.peer, r.uid = peer, uint32(i%2*1000)
					r.compound(0, append(at[:len(at):len(at)], o)...)
					saved := append(at[:len(at):len(at)], op(OpSaveFH), op(OpPutFH, dir), o)
					r.compound(0, saved...)
					if t.Failed() {
						t.Fatalf("operation %d on %s by %s, %s", i, what, peer, grace)
					}
				}
			}
		}
		r.peer, r.uid = friend, 0
	}
	round("no grace period")
	r.known = []string{"x", "y"}
	r.start(9)
	round("after a restart")
}
