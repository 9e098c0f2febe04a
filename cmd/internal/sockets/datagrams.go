package sockets

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"strconv"
	"strings"

	"go.uber.org/zap"
)

// ListenUDP is Listen for datagrams. The caller calls release before it closes the socket: the
// socket is then no longer stored for the next process.
func (s *Set) ListenUDP(at netip.AddrPort, open func() (*net.UDPConn, error)) (
	c *net.UDPConn, release func(), err error,
) {
	s.mu.Lock()
	defer s.mu.Unlock()
	in, ok := s.claim(func(in *inherited) bool {
		return !in.stream && in.addr.Port() == at.Port() && !strings.HasPrefix(in.name, "rdma.") &&
			(in.addr.Addr().Unmap() == at.Addr().Unmap() || in.addr.Addr().IsUnspecified() && at.Addr().IsUnspecified())
	})
	name := in.name
	if ok {
		f := os.NewFile(uintptr(in.fd), in.name)
		p, err := net.FilePacketConn(f)
		_ = f.Close()
		if err != nil {
			return nil, nil, fmt.Errorf("inherited socket %s: %w", in.name, err)
		}
		s.log.Info("receiving on an inherited socket", zap.Stringer("on", in.addr))
		c = p.(*net.UDPConn)
	} else {
		if c, err = open(); err != nil {
			return nil, nil, err
		}
		name = label("udp", c.LocalAddr().String())
		if s.store != nil {
			s.tell(func() { s.keep(name, c) })
		}
	}
	s.open[name] = c.File
	return c, func() { s.forget(name) }, nil
}

// shardName names the UDP socket of one shard of a device.
func shardName(addr netip.Addr, shard, shards int) string {
	return label("rdma", addr.String(), strconv.Itoa(shard), strconv.Itoa(shards))
}

// Take returns the inherited UDP socket of a shard of the RDMA device of an address. The socket
// then belongs to the caller. A socket of a shard is used only if the device has the same number of
// shards as before. Take implements udp.Sockets.
func (s *Set) Take(addr netip.AddrPort, shard, shards int) (fd int, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	name := shardName(addr.Addr(), shard, shards)
	in, ok := s.claim(func(in *inherited) bool {
		// A socket of a unit file has another name. No other socket has its address.
		return !in.stream && in.addr == addr && (in.name == name || shards == 1 && !strings.HasPrefix(in.name, "rdma."))
	})
	if ok {
		s.log.Info("RDMA on an inherited socket", zap.Stringer("on", in.addr))
		s.open[name] = func() (*os.File, error) { return duplicate(in.fd) }
		return in.fd, true
	}
	// Remaining sockets on the address would keep the caller from binding a new socket.
	for {
		in, ok := s.claim(func(in *inherited) bool { return !in.stream && in.addr == addr && shard == 0 })
		if !ok {
			return -1, false
		}
		s.log.Info("an inherited socket does not fit the number of shards and is closed",
			zap.Stringer("on", in.addr), zap.String("name", in.name))
		s.discard(in)
	}
}

// Keep stores the socket of a shard for the next process. The socket stays the caller's. Keep
// implements udp.Sockets.
func (s *Set) Keep(addr netip.AddrPort, shard, shards, fd int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	name := shardName(addr.Addr(), shard, shards)
	s.open[name] = func() (*os.File, error) { return duplicate(fd) }
	if s.store == nil {
		return
	}
	s.tell(func() {
		if err := s.store.StoreFD(name, fd); err != nil {
			s.log.Warn("a socket is not kept over a restart", zap.Stringer("on", addr), zap.Error(err))
		}
	})
}

// Forget undoes Keep. It implements udp.Sockets.
func (s *Set) Forget(addr netip.AddrPort, shard, shards int) {
	s.forget(shardName(addr.Addr(), shard, shards))
}
