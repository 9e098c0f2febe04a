package gonfs

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/netip"
	"sync"

	"github.com/go-git/go-billy/v5"
	gonfs "github.com/willscott/go-nfs"
	"github.com/willscott/go-nfs/helpers"

	"github.com/rstored/rstored/nfs"
	"github.com/rstored/rstored/nfs/nfs3"
	"github.com/rstored/rstored/rdma"
	"github.com/rstored/rstored/rpcrdma"
	"github.com/rstored/rstored/rpcrdma/rpc"
	"github.com/rstored/rstored/rpcrdma/xdr"
)

// handles is how many filehandles ServeFS remembers. A client gets ESTALE for a handle that others
// have displaced.
const handles = 1 << 16

// Server is a go-nfs handler on a port of an RDMA device.
type Server struct {
	*rpcrdma.Listener
	in *listener
}

// Close ends the connections and stops the go-nfs server.
func (s *Server) Close() error {
	return errors.Join(s.Listener.Close(), s.in.Close())
}

// Serve serves a go-nfs handler over RPC-over-RDMA on a port of dev, usually 20049, until Close.
// The net.Conn that the handler's Mount gets has the addresses of the RDMA connection, as
// *net.UDPAddr: the peer's UDP port carries no privilege. The caller closes dev after the Server.
func Serve(dev rdma.Device, port uint16, h gonfs.Handler, cfg rpcrdma.Config) (*Server, error) {
	in := &listener{conns: make(chan net.Conn), closed: make(chan struct{})}
	log := cfg.Logger
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	l, err := serveStream(dev, port, cfg, &proxy{dial: in.dial, cut: cut, log: log})
	if err != nil {
		return nil, err
	}
	go func() {
		if err := gonfs.Serve(in, h); !errors.Is(err, net.ErrClosed) {
			log.Error("the go-nfs server has stopped", "error", err)
		}
	}()
	return &Server{l, in}, nil
}

// ServeFS serves a file system to every client that reaches the port, with the rights of this
// process. go-nfs sets attributes, and so creates files with the mode that a client names, only if
// the file system implements billy.Change. Filehandles do not survive the process.
func ServeFS(dev rdma.Device, port uint16, fs billy.Filesystem, cfg rpcrdma.Config) (*Server, error) {
	return Serve(dev, port, helpers.NewCachingHandler(helpers.NewNullAuthHandler(fs), handles), cfg)
}

// listener hands in-memory streams to the go-nfs server.
type listener struct {
	conns  chan net.Conn
	closed chan struct{}
	once   sync.Once
}

// dial opens a stream to the go-nfs server for an RDMA connection.
func (l *listener) dial(ctx context.Context, p rpc.Peer) (net.Conn, error) {
	near, far := net.Pipe()
	select {
	case l.conns <- &conn{far, p}:
		return near, nil
	case <-l.closed:
		return nil, net.ErrClosed
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// Accept implements net.Listener.
func (l *listener) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

// Close implements net.Listener.
func (l *listener) Close() error {
	l.once.Do(func() { close(l.closed) })
	return nil
}

// Addr implements net.Listener.
func (l *listener) Addr() net.Addr { return new(net.UDPAddr) }

// conn is a stream with the addresses of its RDMA connection.
type conn struct {
	net.Conn
	peer rpc.Peer
}

// RemoteAddr implements net.Conn.
func (c *conn) RemoteAddr() net.Addr { return udp(c.peer.Addr) }

// LocalAddr implements net.Conn.
func (c *conn) LocalAddr() net.Addr { return udp(c.peer.Local) }

func udp(a netip.AddrPort) net.Addr { return net.UDPAddrFromAddrPort(a) }

// cut finds the data of READ and READLINK in a reply message, which Write chunks take (RFC 8267
// section 4).
func cut(prog, vers, proc uint32, reply []byte) (at, n int) {
	if prog != nfs3.Program || vers != nfs3.Version || proc != nfs3.ProcRead && proc != nfs3.ProcReadLink {
		return 0, 0
	}
	d := xdr.NewDecoder(reply)
	if rpc.DecodeReply(&d, rpc.ReplyXID(reply)) != nil || d.Uint32() != uint32(nfs.OK) {
		return 0, 0
	}
	nfs3.DecodePostOp(&d)
	if proc == nfs3.ProcRead {
		d.Skip(4 + 4) // count, eof
	}
	n = int(d.Uint32())
	if d.Err() != nil {
		return 0, 0
	}
	return d.Offset(), n
}
