package tcp

import (
	"context"
	"errors"
	"math/rand/v2"
	"net"
	"net/netip"
	"syscall"

	"golang.org/x/sys/unix"
)

// Ports from which clients of NFS connect: the range of the Linux kernel's client. Services have
// most of the ports below it.
const (
	reservedFirst = 665
	reservedLast  = 1023
)

// ConnectReserved connects from a port below 1024 if this process may bind one, as root may.
// Exports with the option secure of exports(5), the default of the Linux server, require such a
// port. If the process may not bind one, or if none is free, ConnectReserved connects from any
// port.
func ConnectReserved(ctx context.Context, addr string) (net.Conn, error) {
	return ConnectReservedFrom(ctx, netip.Addr{}, addr)
}

// ConnectReservedFrom is ConnectReserved from the address from of this host. If from is not valid,
// routing chooses the address.
func ConnectReservedFrom(ctx context.Context, from netip.Addr, addr string) (net.Conn, error) {
	const count = reservedLast - reservedFirst + 1
	first := rand.IntN(count) //nolint:gosec // nobody gains by guessing
	for i := range count {
		d := net.Dialer{
			LocalAddr: &net.TCPAddr{
				IP: from.AsSlice(), Zone: from.Zone(), Port: reservedFirst + (first+i)%count,
			},
			// Binding can succeed and connecting fail: a service may listen on the port, and an
			// earlier connection from it may still be in TIME_WAIT.
			Control: func(_, _ string, c syscall.RawConn) error {
				var err error
				if e := c.Control(func(fd uintptr) {
					err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEADDR, 1)
				}); e != nil {
					return e
				}
				return err
			},
		}
		conn, err := d.DialContext(ctx, "tcp", addr)
		switch {
		case errors.Is(err, syscall.EADDRINUSE), errors.Is(err, syscall.EADDRNOTAVAIL):
		case errors.Is(err, syscall.EACCES):
			return connectFrom(ctx, from, addr)
		default:
			return conn, err
		}
	}
	return connectFrom(ctx, from, addr)
}

func connectFrom(ctx context.Context, from netip.Addr, addr string) (net.Conn, error) {
	if !from.IsValid() {
		return Connect(ctx, addr)
	}
	d := net.Dialer{LocalAddr: &net.TCPAddr{IP: from.AsSlice(), Zone: from.Zone()}}
	return d.DialContext(ctx, "tcp", addr)
}

// Connect connects to a server from any port.
func Connect(ctx context.Context, addr string) (net.Conn, error) {
	return new(net.Dialer).DialContext(ctx, "tcp", addr)
}
