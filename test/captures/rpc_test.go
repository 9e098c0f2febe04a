package captures_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"

	"github.com/rstored/rstored/nfs"
	"github.com/rstored/rstored/nfs/nfs3"
	"github.com/rstored/rstored/nfs/nfs3/nfs3test"
	"github.com/rstored/rstored/rpcrdma"
	"github.com/rstored/rstored/rpcrdma/rpc"
	"github.com/rstored/rstored/rpcrdma/xdr"
)

// half is a call or a reply.
type half struct {
	number   int
	header   *rpcrdma.Header // nil by TCP
	msg      []byte          // without what went by chunks
	src, dst netip.Addr
	tcp      bool
	port     uint16 // of the client, by TCP
}

func (m *half) xid() uint32 {
	if m.header != nil {
		return m.header.XID
	}
	return rpc.ReplyXID(m.msg)
}

type callKey struct {
	client netip.Addr
	tcp    bool
	port   uint16
	xid    uint32
}

func (w *walk) call(m *half) {
	k := callKey{m.src, m.tcp, m.port, m.xid()}
	if w.calls[k] != nil {
		w.count["RPC calls sent again"]++
	}
	w.calls[k] = m
}

func (w *walk) reply(m *half) {
	k := callKey{m.dst, m.tcp, m.port, m.xid()}
	x := w.calls[k]
	if x == nil {
		w.count["RPC replies without their call"]++
		return
	}
	delete(w.calls, k)
	w.exchange(x, m)
}

// finish deals with calls that were not answered.
func (w *walk) finish() {
	for _, x := range w.calls {
		w.count["RPC calls without a reply"]++
		w.exchange(x, nil)
	}
}

// whole puts a call together with what the server fetched for it.
func (w *walk) whole(m *half) ([]byte, bool) {
	if m.header == nil || len(m.header.Reads) == 0 {
		return m.msg, true
	}
	out, rest := []byte(nil), m.msg
	for i := 0; i < len(m.header.Reads); {
		pos := m.header.Reads[i].Position
		var segs []rpcrdma.Segment
		for ; i < len(m.header.Reads) && m.header.Reads[i].Position == pos; i++ {
			segs = append(segs, m.header.Reads[i].Segment)
		}
		data, ok := w.mem.read(m.src, segs)
		if !ok {
			return nil, false
		}
		if n := int(pos) - len(out); n > 0 && n <= len(rest) {
			out, rest = append(out, rest[:n]...), rest[n:]
		}
		if len(out) != int(pos) {
			return nil, false
		}
		out = append(out, data...)
		if pos > 0 { // a chunk at position 0 is a message, not an item
			out = append(out, make([]byte, xdr.Pad(len(data)))...)
		}
	}
	return append(out, rest...), true
}

// wholeReply puts a reply together with what the server wrote into the client's memory.
func (w *walk) wholeReply(m *half) ([]byte, bool) {
	out := m.msg
	if m.header == nil {
		return out, true
	}
	if m.header.Type == rpcrdma.TypeNoMsg {
		b, ok := w.mem.read(m.dst, m.header.Reply)
		if !ok {
			return nil, false
		}
		out = b
	}
	for _, c := range m.header.Writes {
		data, ok := w.mem.read(m.dst, c)
		if !ok {
			return nil, false
		}
		out = append(bytes.Clone(out), data...) // version 3 has its data at the end
		out = append(out, make([]byte, xdr.Pad(len(data)))...)
	}
	return out, true
}

var programs = map[uint32]string{
	nfs3.MountProgram: "MOUNT", 100000: "portmap", 100021: "NLM", 100024: "NSM",
	nfs3.ACLProgram: "NFSACL",
}

// kind names what a call is of.
func kind(prog, vers uint32) string {
	if prog == nfs3.Program {
		return fmt.Sprintf("NFSv%d", vers)
	}
	if name := programs[prog]; name != "" {
		return name
	}
	if prog >= 0x40000000 {
		return "NFSv4 callback"
	}
	return fmt.Sprintf("program %d", prog)
}

// exchange checks a call and its reply, which is nil if there was none.
func (w *walk) exchange(x, m *half) {
	call, ok := w.whole(x)
	if !ok {
		w.count["RPC calls whose chunks were not captured"]++
		return
	}
	var prog, vers, proc uint32
	if len(call) >= 24 {
		prog, vers, proc = binary.BigEndian.Uint32(call[12:]), binary.BigEndian.Uint32(call[16:]),
			binary.BigEndian.Uint32(call[20:])
	}
	k := kind(prog, vers)
	ours := prog == nfs3.Program && vers == nfs3.Version || prog == nfs3.MountProgram && vers == nfs3.MountVersion ||
		prog == nfs3.ACLProgram && vers == nfs3.ACLVersion
	if !ours {
		k += " (not decoded)"
	}
	w.count[k+" calls"]++
	var args, results []byte
	var cut int
	if ours {
		var err error
		if cut, err = w.echo.call(call); err == nil {
			args = call[cut:]
			err = nfs3test.Args(prog, proc, args)
		}
		if err == nil {
			err = w.server.decodes(call)
		}
		if err != nil {
			w.t.Errorf("%v: call of %s procedure %d: %v", x, k, proc, err)
			return
		}
	}
	if m == nil {
		return
	}
	if m.header != nil && m.header.Type == rpcrdma.TypeError {
		w.count[k+" calls answered by RDMA_ERROR"]++
		return
	}
	reply, ok := w.wholeReply(m)
	if !ok {
		w.count["RPC replies whose chunks were not captured"]++
		return
	}
	w.count[k+" replies"]++
	if !ours {
		return
	}
	d := xdr.NewDecoder(reply)
	err := rpc.DecodeReply(&d, m.xid())
	var refused *rpc.AcceptError
	if errors.As(err, &refused) {
		w.count[k+" calls refused by RPC"]++
		return
	}
	if err == nil {
		results = reply[d.Offset():]
		err = nfs3test.Results(prog, proc, results)
	}
	if err == nil {
		err = w.echo.reply(call, results, reply)
	}
	if err != nil {
		w.t.Errorf("%v: reply of %s procedure %d: %v", m, k, proc, err)
		return
	}
	if prog == nfs3.Program && proc != nfs3.ProcNull && proc != nfs3.ProcReadDir { // it only asks for READDIRPLUS
		if err := replay(proc, args, results); err != nil {
			w.t.Errorf("%v: procedure %d through our client: %v", m, proc, err)
			return
		}
		w.count[k+" exchanges through our client"]++
	}
}

// echo is a server that takes calls apart and answers what it is told to.
type echo struct {
	srv     *rpc.Server
	cred    rpc.Cred
	args    int
	called  bool
	results []byte
}

func newEcho() *echo {
	e := new(echo)
	procs := make([]rpc.Proc, 22)
	for i := range procs {
		procs[i] = rpc.Proc{Name: "echo", Inline: true, Serve: func(c *rpc.Call, _ bool) rpc.Status {
			e.called, e.args = true, c.Args.Remaining()
			e.cred = c.Cred
			e.cred.Groups = append([]uint32(nil), c.Cred.Groups...)
			c.Res.Fixed(e.results)
			return rpc.Done
		}}
	}
	e.srv = rpc.NewServer(rpc.ServerConfig{Workers: 1, Programs: []rpc.Program{
		{Name: "nfs3", Prog: nfs3.Program, Vers: nfs3.Version, Procs: procs},
		{Name: "mount3", Prog: nfs3.MountProgram, Vers: nfs3.MountVersion, Procs: procs},
		{Name: "nfsacl", Prog: nfs3.ACLProgram, Vers: nfs3.ACLVersion, Procs: procs},
	}})
	return e
}

// dispatch has the server take a call, and returns its reply.
func (e *echo) dispatch(msg []byte) []byte {
	var reply []byte
	c := &rpc.Call{BulkMax: -1, Reply: func(c *rpc.Call, _ bool) { reply = c.Res.AppendFlat(nil) }}
	e.called = false
	e.srv.Dispatch(c, xdr.NewDecoder(msg), true)
	return reply
}

// stampAt is where the stamp of an AUTH_SYS credential is: any number will do
// (RFC 5531 appendix A), and our client has 0.
const stampAt = 32

// call checks that a call's header encodes to the same bytes, and returns its length.
func (e *echo) call(msg []byte) (int, error) {
	e.results = nil
	reply := e.dispatch(msg)
	if !e.called {
		return 0, fmt.Errorf("not understood; the reply would be %x", reply)
	}
	n := len(msg) - e.args
	word := func(at int) uint32 { return binary.BigEndian.Uint32(msg[at:]) }
	var head xdr.Encoder
	rpc.EncodeCall(&head, word(0), word(12), word(16), word(20), &e.cred)
	if e.cred.Flavor == rpc.AuthSys {
		copy(head.B[stampAt:], msg[stampAt:stampAt+4])
	}
	if !bytes.Equal(head.B, msg[:n]) {
		return 0, fmt.Errorf("header\n%x encodes as\n%x", msg[:n], head.B)
	}
	return n, nil
}

// reply checks that a reply's header is what our server has for these results.
func (e *echo) reply(call, results, want []byte) error {
	e.results = results
	if got := e.dispatch(call); !bytes.Equal(got, want) {
		return fmt.Errorf("reply\n%x encodes as\n%x", want, got)
	}
	return nil
}

// decoder is the file server without an export: all that it can do with a call is to
// decode it, which every procedure does to the end before anything else.
type decoder struct{ srv *rpc.Server }

func newDecoder() *decoder {
	codec := nfs.NewCodec(make([]byte, 32))
	return &decoder{rpc.NewServer(rpc.ServerConfig{
		Workers:  1,
		Programs: nfs3.Programs(nfs.Config{Exports: nfs.NewTable(nil), Codec: codec}),
	})}
}

func (s *decoder) decodes(msg []byte) error {
	var err error
	c := &rpc.Call{BulkMax: -1, Reply: func(c *rpc.Call, _ bool) {
		d := xdr.NewDecoder(c.Res.AppendFlat(nil))
		if err = rpc.DecodeReply(&d, c.XID); err == nil && c.Args.Remaining() != 0 {
			err = fmt.Errorf("our server leaves %d bytes of the arguments", c.Args.Remaining())
		}
	}}
	s.srv.Dispatch(c, xdr.NewDecoder(msg), true)
	return err
}
