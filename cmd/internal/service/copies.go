package service

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"sync"
	"syscall"
	"time"

	"go.uber.org/zap"

	"github.com/rstored/rstored/cmd/internal/config"
	"github.com/rstored/rstored/nfs"
	"github.com/rstored/rstored/nfs/client"
	"github.com/rstored/rstored/nfs/nfs4"
	"github.com/rstored/rstored/rpcrdma/rpc"
	"github.com/rstored/rstored/rpcrdma/tcp"
)

// Bounds of what a copy waits for its source: for the connection, by RDMA first, and for an answer.
const (
	sourceConnectsRDMA = 3 * time.Second
	sourceConnects     = 10 * time.Second
	sourceAnswers      = 30 * time.Second
)

// addressMoves is how long a copy waits for the own address, which a planned failover moves here
// after the state of the clients.
const addressMoves = 5 * time.Second

// sessionUser makes the session with the source of a copy. It is nobody: files are read as the user
// of the copy.
const sessionUser = 65534

// partners is nfs4.CopyPartners, by the setting copy_partners.
type partners struct {
	settings func() *config.Config
	rdma     func(ctx context.Context, local netip.Addr, to netip.AddrPort) (rpc.Client, error) // nil: there is none
	tcpOnly  *tcpSources
}

// tcpSources are the sources that RDMA did not reach. For tcpOnlyTime copies go to them by TCP at
// once: each attempt takes up to sourceConnectsRDMA.
type tcpSources struct {
	log *zap.Logger
	mu  sync.Mutex
	at  map[sourceKey]time.Time // when the attempt failed
}

type sourceKey struct {
	local netip.Addr
	to    netip.AddrPort
}

const (
	tcpOnlyTime = 5 * time.Minute
	tcpOnlyMax  = 64 // sources
)

func (s *tcpSources) has(at sourceKey) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	t, ok := s.at[at]
	return ok && time.Since(t) < tcpOnlyTime
}

func (s *tcpSources) add(at sourceKey, why error) {
	s.log.Info("the source of a copy is not reached by RDMA: copies read it by TCP for some minutes",
		zap.Stringer("source", at.to), zap.Error(why))
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.at == nil || len(s.at) >= tcpOnlyMax {
		s.at = make(map[sourceKey]time.Time)
	}
	s.at[at] = time.Now()
}

// Enabled implements nfs4.CopyPartners.
func (p partners) Enabled() bool { return len(p.settings().CopyPartners) > 0 }

// Admits implements nfs4.CopyPartners.
func (p partners) Admits(a netip.Addr) bool { return p.settings().CopyPartner(a) }

// Connects implements nfs4.CopyPartners.
func (p partners) Connects(to netip.AddrPort) bool { return p.settings().CopySource(to) }

// Open implements nfs4.CopyPartners. Each copy has a connection of its own: the bounds of
// asynchronous copies are those of the connections.
func (p partners) Open(_ context.Context, s *nfs4.CopySource) (nfs4.RemoteFile, error) {
	at := p.port(s.At)
	c := client.New(client.Config{
		Peer: at.String(), Version: client.Version42, GiveUp: sourceAnswers,
		Cred: &rpc.Cred{Flavor: rpc.AuthSys, Machine: "rstored", UID: sessionUser, GID: sessionUser},
		Dial: func(ctx context.Context) (rpc.Client, error) {
			if !p.Connects(at) { // not after a reload
				return nil, &rpc.ConnError{Peer: at.String(), Err: nfs.ErrOffloadDenied}
			}
			if t := p.dialRDMA(ctx, s); t != nil {
				return t, nil
			}
			ctx, cancel := context.WithTimeout(ctx, sourceConnects)
			defer cancel()
			conn, err := dialSource(ctx, s.From, at.String())
			if err != nil {
				return nil, &rpc.ConnError{Peer: at.String(), Err: err}
			}
			t := tcp.NewClient(conn)
			t.OnCall(rpc.BackwardOf(ctx))
			return t, nil
		},
	})
	who := &rpc.Cred{
		Flavor: rpc.AuthSys, Machine: "rstored", UID: s.UID, GID: s.GID,
		Groups: s.Groups[:min(len(s.Groups), rpc.GroupsMax)],
	}
	return &remoteFile{c, s, who, sourceAnswers}, nil
}

// port is the address to connect to. The Linux server says that it has TCP at the port of RDMA if
// the client came by that. The port of TCP is taken then, if the setting has it.
func (p partners) port(at netip.AddrPort) netip.AddrPort {
	a := netip.AddrPortFrom(at.Addr(), config.TCPPort)
	if at.Port() == config.RDMAPort && p.Connects(a) {
		return a
	}
	return at
}

// dialRDMA connects by RDMA, if the client came by RDMA, and the address that the source knows this
// server by is one of an RDMA device. It returns nil if that fails: the source is then read by TCP.
func (p partners) dialRDMA(ctx context.Context, s *nfs4.CopySource) rpc.Client {
	at := s.At
	if at.Port() == config.TCPPort {
		at = netip.AddrPortFrom(at.Addr(), config.RDMAPort)
	}
	if !s.RDMA || p.rdma == nil || !p.Connects(at) || p.tcpOnly.has(sourceKey{s.From, at}) {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, sourceConnectsRDMA)
	defer cancel()
	t, err := p.rdma(ctx, s.From, at)
	if err != nil {
		if !errors.Is(err, context.Canceled) {
			p.tcpOnly.add(sourceKey{s.From, at}, err)
		}
		return nil
	}
	return t
}

// dialSource connects from the address that the source knows this server by. A host that cannot
// reach the source from there connects from any address.
func dialSource(ctx context.Context, from netip.Addr, at string) (net.Conn, error) {
	conn, err := tcp.ConnectReservedFrom(ctx, from, at)
	end := time.Now().Add(addressMoves)
	for errors.Is(err, syscall.EADDRNOTAVAIL) && time.Now().Before(end) && ctx.Err() == nil {
		time.Sleep(addressMoves / 100)
		conn, err = tcp.ConnectReservedFrom(ctx, from, at)
	}
	if err != nil && from.IsValid() && ctx.Err() == nil {
		conn, err = tcp.ConnectReserved(ctx, at)
	}
	return conn, err
}

// remoteFile is nfs4.RemoteFile.
type remoteFile struct {
	c      *client.Client
	source *nfs4.CopySource
	who    *rpc.Cred
	wait   time.Duration // for an answer
}

// ReadAt implements nfs4.RemoteFile. It also bounds how long a source may answer DELAY.
func (f *remoteFile) ReadAt(ctx context.Context, p []byte, off uint64) (n int, eof bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, f.wait)
	defer cancel()
	return f.c.ReadStateid(client.WithCred(ctx, f.who), f.source.Stateid, f.source.Handle, p, off)
}

// Close implements nfs4.RemoteFile.
func (f *remoteFile) Close() error { return f.c.Close() }
