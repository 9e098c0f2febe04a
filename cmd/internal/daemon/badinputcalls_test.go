package daemon

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/rstored/rstored/nfs"
	"github.com/rstored/rstored/nfs/nfs3"
	"github.com/rstored/rstored/rpcrdma"
	"github.com/rstored/rstored/rpcrdma/rpc"
	"github.com/rstored/rstored/rpcrdma/xdr"
)

// call sends an RPC message in the usual frame of its transport.
func (p *badPeer) call(t *testing.T, msg []byte) {
	t.Helper()
	if p.c == nil {
		mark := rpc.RecordMark(len(msg))
		p.send(t, append(mark[:], msg...))
		return
	}
	var xid uint32
	if len(msg) >= 4 {
		xid = binary.BigEndian.Uint32(msg)
	}
	p.send(t, framed(rpcrdma.Header{XID: xid}, msg))
}

// framed is a message behind a transport header.
func framed(h rpcrdma.Header, msg []byte) []byte {
	h.Version, h.Credits = rpcrdma.Version, 8
	return append(h.Append(nil), msg...)
}

// next waits for a message and says what it is: an error of the transport, a
// refusal of RPC, or the first word of the results; and its XID.
func (p *badPeer) next(t *testing.T) (what string, xid uint32) {
	t.Helper()
	var b []byte
	select {
	case m, ok := <-p.replies:
		if !ok {
			return "the connection ended", 0
		}
		b = m
	case <-time.After(time.Minute):
		return "nothing", 0
	}
	if p.c != nil {
		var h rpcrdma.Header
		if len(b) < 8 {
			return fmt.Sprintf("% x", b), 0
		}
		binary.BigEndian.PutUint32(b[4:], rpcrdma.Version) // ERR_VERS has the version of the call
		rest, err := h.Parse(b)
		switch {
		case err != nil:
			return fmt.Sprintf("% x: %v", b, err), 0
		case h.Type == rpcrdma.TypeError && h.Code == rpcrdma.CodeVers:
			return fmt.Sprintf("ERR_VERS %d-%d", h.Low, h.High), h.XID
		case h.Type == rpcrdma.TypeError:
			return "ERR_CHUNK", h.XID
		}
		b = rest
	}
	xid = rpc.ReplyXID(b)
	d := xdr.NewDecoder(b)
	err := rpc.DecodeReply(&d, xid)
	var accepted *rpc.AcceptError
	var denied *rpc.DeniedError
	switch {
	case errors.As(err, &accepted) && accepted.Stat == rpc.ProgMismatch:
		return fmt.Sprintf("PROG_MISMATCH %d-%d", accepted.Low, accepted.High), xid
	case errors.As(err, &accepted):
		return fmt.Sprintf("accept_stat %d", accepted.Stat), xid
	case errors.As(err, &denied) && denied.Auth == 0:
		return fmt.Sprintf("RPC_MISMATCH %d-%d", denied.Low, denied.High), xid
	case errors.As(err, &denied):
		return fmt.Sprintf("auth_stat %d", denied.Auth), xid
	case err != nil:
		return err.Error(), xid
	}
	return fmt.Sprintf("status %d", d.Uint32()), xid
}

// Calls of XID 7.

func badCall(prog, vers, proc uint32, args func(*xdr.Encoder)) []byte {
	return callOf(7, prog, vers, proc, args)
}

func callOf(xid, prog, vers, proc uint32, args func(*xdr.Encoder)) []byte {
	var e xdr.Encoder
	rpc.EncodeCall(&e, xid, prog, vers, proc, &rpc.Cred{Flavor: rpc.AuthSys, Machine: "bad", UID: 1000})
	if args != nil {
		args(&e)
	}
	return e.B
}

func getAttr(fh []byte) []byte {
	return badCall(nfs3.Program, nfs3.Version, nfs3.ProcGetAttr, func(e *xdr.Encoder) { e.Opaque(fh) })
}

func badRead(fh []byte, n uint32) []byte {
	return badCall(nfs3.Program, nfs3.Version, nfs3.ProcRead, func(e *xdr.Encoder) {
		e.Opaque(fh)
		e.Uint64(0)
		e.Uint32(n)
	})
}

func be(words ...uint32) (b []byte) {
	for _, w := range words {
		b = binary.BigEndian.AppendUint32(b, w)
	}
	return b
}

func status(s nfs.Status) string { return fmt.Sprintf("status %d", uint32(s)) }

// TestBadInput: what broken and hostile clients send is answered as the
// specifications say, is counted, costs at most its own connection, and is no
// matter for others.
func TestBadInput(t *testing.T) {
	h := newBadServer(t)
	h.served(t)
	null := badCall(nfs3.Program, nfs3.Version, nfs3.ProcNull, nil)
	forged := bytes.Clone(h.file)
	forged[len(forged)-1] ^= 1
	other := bytes.Clone(h.file) // of another export, if it could be had so
	other[4] ^= 3
	withCred := func(flavor uint32, length uint32, body ...byte) []byte {
		b := be(7, rpc.MsgCall, rpc.Version, nfs3.Program, nfs3.Version, nfs3.ProcNull, flavor, length)
		return append(append(b, body...), be(0, 0)...)
	}
	truncated := getAttr(h.file)
	truncated = truncated[:len(truncated)-8]

	// The bare numbers are those of RFC 5531 (accept_stat, auth_stat) and RFC
	// 1813 (nfsstat3, mountstat3). No answer is "".
	calls := []struct {
		name    string
		msg     []byte
		want    string
		counter string
	}{
		{"an RPC header cut short", null[:20], "", "rpc_not_a_call"},
		{"a reply", be(7, rpc.MsgReply, 0, 0, 0, 0), "", ""},
		{"arguments cut short", truncated, "accept_stat 4", "rpc_garbage_arguments"},
		{"a handle longer than any", getAttr(make([]byte, 68)), "accept_stat 4", "nfs_garbage"},
		{"RPC version 3", append(be(7, rpc.MsgCall, 3), null[12:]...), "RPC_MISMATCH 2-2", "rpc_version_mismatch"},
		{"unknown program", badCall(400_000, 1, 0, nil), "accept_stat 1", "rpc_program_unavailable"},
		{"wrong version", badCall(nfs3.Program, 2, 0, nil), "PROG_MISMATCH 3-4", "rpc_program_mismatch"},
		{"unknown procedure", badCall(nfs3.Program, nfs3.Version, 22, nil), "accept_stat 3", "rpc_procedure_unavailable"},
		{
			"a huge procedure number", badCall(nfs3.Program, nfs3.Version, 1<<32-1, nil), "accept_stat 3",
			"rpc_procedure_unavailable",
		},
		{
			"a credential shorter than what is in it", withCred(uint32(rpc.AuthSys), 4, 0, 0, 0, 0), "auth_stat 1",
			"rpc_bad_credential",
		},
		{"a credential of 17 groups", withCred(uint32(rpc.AuthSys), 22*4-4,
			be(append([]uint32{0, 0, 0, 0, 17}, make([]uint32, 16)...)...)...), "auth_stat 1", "rpc_bad_credential"},
		{"a verifier cut short", null[:len(null)-4], "auth_stat 3", "rpc_bad_credential"},
		{
			"a credential of 404 bytes", withCred(uint32(rpc.AuthSys), 404, make([]byte, 404)...), "auth_stat 1",
			"rpc_bad_credential",
		},
		{"a credential longer than the message", withCred(uint32(rpc.AuthSys), 300), "auth_stat 1", "rpc_bad_credential"},
		{"a credential of 4 GiB", withCred(uint32(rpc.AuthSys), 1<<32-1), "auth_stat 1", "rpc_bad_credential"},
		{"an unknown flavor", withCred(3, 4, 0, 0, 0, 0), "auth_stat 2", "rpc_bad_credential"},
		{"a cut credential of RPCSEC_GSS", withCred(6, 4, 0, 0, 0, 1), "auth_stat 1", "rpc_bad_credential"},
		{
			"a call in an unknown security context", withCred(6, 20, be(1, 0, 1, 1, 0)...), "auth_stat 13",
			"gss_unknown_context",
		},
		{"a forged handle", getAttr(forged), status(nfs.ErrBadHandle), "nfs_forged_handles"},
		{"a handle moved to another export", getAttr(other), status(nfs.ErrBadHandle), "nfs_forged_handles"},
		{"a handle of no form", getAttr([]byte("nothing")), status(nfs.ErrBadHandle), "nfs_bad_handles"},
		{"a handle of a removed export", getAttr(h.gone), status(nfs.ErrStale), "nfs_gone_exports"},
		{
			"a call in an export that lets the client in no more", getAttr(h.closed), status(nfs.ErrAcces),
			"nfs_denied_clients",
		},
		{"a mount of it", badCall(nfs3.MountProgram, nfs3.MountVersion, nfs3.MountMnt,
			func(e *xdr.Encoder) { e.String("/closed") }), status(nfs.ErrAcces), "nfs_denied_clients"},
		{"a mount of nothing", badCall(nfs3.MountProgram, nfs3.MountVersion, nfs3.MountMnt,
			func(e *xdr.Encoder) { e.String("/a/../../etc") }), status(nfs.ErrNoEnt), "nfs_status_NOENT"},
		{
			"a mount of a path that never ends",
			badCall(nfs3.MountProgram, nfs3.MountVersion, nfs3.MountMnt,
				func(e *xdr.Encoder) { e.String("/" + strings.Repeat("a", 1100)) }), "accept_stat 4", "nfs_garbage",
		},
	}
	var rows []badRow
	for _, c := range calls {
		do := func(t *testing.T, p *badPeer) { p.call(t, c.msg) }
		overRDMA := badRow{name: "rdma/" + c.name, rdma: true, do: do, want: c.want, counters: []string{c.counter}}
		overTCP := badRow{name: "tcp/" + c.name, do: do, want: c.want, counters: []string{c.counter}}
		if c.counter == "" { // a reply: RDMA has calls in both directions
			overRDMA.counters, overTCP.counters = []string{"rpcrdma_backward_message"}, []string{"rpc_not_a_call"}
		}
		rows = append(rows, overRDMA, overTCP)
	}
	rows = append(rows, recordRows()...)
	rows = append(rows, h.headerRows(null)...)
	rows = append(rows, h.memoryRows()...)
	for _, r := range rows {
		t.Run(r.name, func(t *testing.T) { r.run(t, h) })
	}
}
