package bridge

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/rstored/rstored/nfs"
	"github.com/rstored/rstored/nfs/client"
	"github.com/rstored/rstored/nfs/nfs3"
	"github.com/rstored/rstored/nfs/nfs4"
	"github.com/rstored/rstored/nfs/portmap"
	"github.com/rstored/rstored/rpcrdma"
	"github.com/rstored/rstored/rpcrdma/rpc"
	"github.com/rstored/rstored/rpcrdma/tcp"
	"github.com/rstored/rstored/rpcrdma/xdr"
)

// defaultWorkers is how many calls are under way at once.
const defaultWorkers = 64

// Config describes a Bridge.
type Config struct {
	// Dial connects to the far server. backward gets the server's calls on the connection, as whole
	// messages, and replies to them by its argument.
	Dial func(ctx context.Context, backward func(msg []byte, reply func(msg []byte))) (rpc.Client, error)
	// Version is the only version of NFS to be passed on; the zero value is all of them.
	Version client.Version
	// Workers is the number of calls under way at once; more wait. 0 means 64.
	Workers int
	// Logger gets what an operator should know; nil is silent.
	Logger *slog.Logger
}

// Bridge forwards calls. Its methods may be called from any goroutine.
type Bridge struct {
	cfg    Config
	log    *slog.Logger
	srv    *rpc.Server
	ctx    context.Context
	cancel context.CancelFunc

	mu    sync.Mutex
	nfs   netip.AddrPort // where portmap says that NFS and MOUNT are
	ports []*tcp.Listener
	fars  map[int64]*far // by the number of the client's connection
}

// far is the connection to the server that belongs to a client's connection.
type far struct {
	back   rpc.Caller // calls the client
	dialed sync.Once
	conn   rpc.Client
	err    error
}

// New makes a bridge that listens nowhere yet.
func New(cfg Config) *Bridge {
	if cfg.Workers <= 0 {
		cfg.Workers = defaultWorkers
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	b := &Bridge{cfg: cfg, log: cfg.Logger, fars: make(map[int64]*far)}
	b.ctx, b.cancel = context.WithCancel(context.Background())
	programs := portmap.Programs(b.services)
	// The tables of our own server have the names of the procedures, and which
	// of them are not to be done twice: a call that a TCP client sends again is
	// answered from the bridge's reply cache.
	if b.has(client.Version3) {
		for _, p := range nfs3.Programs(nfs.Config{}) {
			own := p.Procs
			p.Procs = make([]rpc.Proc, len(own))
			for i := range own {
				p.Procs[i] = rpc.Proc{Name: own[i].Name, Mutates: own[i].Mutates, Serve: b.forward}
			}
			programs = append(programs, p)
		}
	}
	if cfg.Version != client.Version3 {
		programs = append(programs, rpc.Program{Name: "nfs4", Prog: nfs4.Program, Vers: nfs4.Version, Procs: []rpc.Proc{
			nfs4.ProcNull:     {Name: "NULL", Serve: b.forward},
			nfs4.ProcCompound: {Name: "COMPOUND", Serve: b.forward, Once: nfs4.Once},
		}})
	}
	b.srv = rpc.NewServer(rpc.ServerConfig{Programs: programs, Workers: cfg.Workers, Logger: cfg.Logger})
	return b
}

// has reports whether the bridge passes a version on.
func (b *Bridge) has(v client.Version) bool {
	return b.cfg.Version == client.VersionAuto || b.cfg.Version == v
}

// hasMinor is has for a minor version of version 4.
func (b *Bridge) hasMinor(minor uint32) bool {
	return b.cfg.Version == client.VersionAuto || minor <= 2 && client.Version(40+minor) == b.cfg.Version
}

// Serve takes calls from a listener until Close. The first listener is the one
// that portmap queries are answered with; serve another on port 111 for clients
// that ask there.
func (b *Bridge) Serve(l net.Listener) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if a, ok := l.Addr().(*net.TCPAddr); ok && !b.nfs.IsValid() {
		b.nfs = a.AddrPort()
	}
	b.ports = append(b.ports, tcp.Config{Closed: b.closed, Logger: b.log}.Serve(l, b.srv))
}

// services returns what portmap answers.
func (b *Bridge) services() []portmap.Service {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.nfs.IsValid() {
		return nil
	}
	var out []portmap.Service
	add := func(prog, vers uint32) {
		out = append(out, portmap.Service{Program: prog, Version: vers, Transport: rpc.TransportTCP, Addr: b.nfs})
	}
	if b.has(client.Version3) {
		add(nfs3.Program, nfs3.Version)
		add(nfs3.MountProgram, nfs3.MountVersion)
		add(nfs3.ACLProgram, nfs3.ACLVersion)
	}
	if b.cfg.Version != client.Version3 {
		add(nfs4.Program, nfs4.Version)
	}
	return out
}

// Close ends the listeners and the calls under way.
func (b *Bridge) Close() error {
	b.cancel()
	b.mu.Lock()
	ports := b.ports
	b.ports = nil
	b.mu.Unlock()
	var err error
	for _, l := range ports {
		err = errors.Join(err, l.Close())
	}
	b.srv.Close()
	return err
}

// dialTime is how long the far server may take to accept a connection.
const dialTime = 20 * time.Second

// farOf returns the connection for a client's connection. The first call makes it.
func (b *Bridge) farOf(c *rpc.Call) (rpc.Client, error) {
	b.mu.Lock()
	f := b.fars[c.Peer.Conn]
	if f == nil {
		f = &far{back: c.Back}
		b.fars[c.Peer.Conn] = f
	}
	b.mu.Unlock()
	f.dialed.Do(func() {
		ctx, cancel := context.WithTimeout(b.ctx, dialTime)
		defer cancel()
		f.conn, f.err = b.cfg.Dial(ctx, f.called)
	})
	return f.conn, f.err
}

// closed ends the connection to the server that belongs to the connection p of a client.
func (b *Bridge) closed(p rpc.Peer) {
	b.mu.Lock()
	f := b.fars[p.Conn]
	delete(b.fars, p.Conn)
	b.mu.Unlock()
	if f != nil && f.conn != nil {
		_ = f.conn.Close()
	}
}

// end closes a client's connection, so that it connects anew and sends its calls again.
func (b *Bridge) end(p *rpc.Peer) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, l := range b.ports {
		l.End(p.Conn)
	}
}

// forward sends one call on and waits for its reply.
func (b *Bridge) forward(c *rpc.Call, mayBlock bool) rpc.Status {
	if !mayBlock {
		return rpc.Again
	}
	p, ok := planOf(c)
	if !ok {
		return rpc.Garbage
	}
	if c.Prog == nfs4.Program && c.Vers == nfs4.Version && c.Proc == nfs4.ProcCompound && !b.hasMinor(p.minor) {
		c.Res.Uint32(uint32(nfs.ErrMinorVersMismatch))
		c.Res.Opaque(p.tag)
		c.Res.Uint32(0)
		return rpc.Done
	}
	if p.result > 0 {
		if p.dst = c.Payload(p.result); len(p.dst) != p.result {
			b.log.Warn("no memory for the data of a call", "bytes", p.result)
			return rpc.Drop // the client sends it again
		}
	}
	base := len(c.Res.B)
	cred := c.Cred
	conn, err := b.farOf(c)
	if err == nil {
		err = conn.Call(b.ctx, &rpc.Request{
			XID: c.XID, Prog: c.Prog, Vers: c.Vers, Proc: c.Proc, Cred: &cred, Args: p.encode, Dst: p.dst, ResMax: p.resMax,
			Res: p.relay(&c.Res),
		})
	}
	if err == nil {
		return rpc.Done
	}
	c.Res.Truncate(base)
	var refused *rpc.AcceptError
	var denied *rpc.DeniedError
	var remote *rpcrdma.RemoteError
	switch {
	case errors.As(err, &refused) && refused.Stat == rpc.GarbageArgs:
		return rpc.Garbage
	case errors.As(err, &denied):
		return rpc.BadCred
	case errors.As(err, &refused), errors.As(err, &remote):
		b.log.Warn("a call failed", "program", c.Prog, "procedure", c.Proc, "error", err)
		return rpc.Failed
	}
	if b.ctx.Err() == nil {
		b.log.Warn("a call was lost", "program", c.Prog, "procedure", c.Proc, "error", err)
		b.end(&c.Peer)
	}
	return rpc.Drop
}

// callbackTime is how long a client may take to answer a call of the server, which has a shorter
// limit of its own.
const callbackTime = time.Minute

// called passes a call of the server to the client.
func (f *far) called(msg []byte, reply func(msg []byte)) {
	d := xdr.NewDecoder(msg)
	xid := d.Uint32()
	d.Skip(2 * 4)
	prog, vers, proc := d.Uint32(), d.Uint32(), d.Uint32()
	cred := &rpc.Cred{Flavor: rpc.AuthFlavor(d.Uint32())}
	body := xdr.NewDecoder(d.Opaque(rpc.AuthBodyMax))
	d.Uint32()
	d.Opaque(rpc.AuthBodyMax)
	if cred.Flavor == rpc.AuthSys {
		body.Uint32()
		cred.Machine = body.String(rpc.MachineNameMax)
		cred.UID, cred.GID = body.Uint32(), body.Uint32()
		for range min(body.Uint32(), rpc.GroupsMax) {
			cred.Groups = append(cred.Groups, body.Uint32())
		}
	}
	if d.Err() != nil || body.Err() != nil || f.back == nil {
		return
	}
	f.back.Call(&rpc.BackwardCall{
		Prog: prog, Vers: vers, Proc: proc, Cred: cred, Args: d.AppendRest(nil), Timeout: callbackTime,
		Done: func(res *xdr.Decoder, err error) {
			var e xdr.Encoder
			head := func(stat rpc.AcceptStat) {
				for _, w := range [...]uint32{xid, rpc.MsgReply, 0, 0, 0, uint32(stat)} {
					e.Uint32(w)
				}
			}
			var refused *rpc.AcceptError
			switch {
			case err == nil:
				head(rpc.RPCSuccess)
				e.B = res.AppendRest(e.B)
			case errors.As(err, &refused):
				head(refused.Stat)
				if refused.Stat == rpc.ProgMismatch {
					e.Uint32(refused.Low)
					e.Uint32(refused.High)
				}
			default:
				return
			}
			reply(e.B)
		},
	})
}
