package filecmd

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strconv"
	"sync"
	"time"

	"github.com/spf13/pflag"

	"github.com/rstored/rstored/nfs/client"
	"github.com/rstored/rstored/nfs/nfs3"
	"github.com/rstored/rstored/nfs/portmap"
	"github.com/rstored/rstored/rdma/roce"
	"github.com/rstored/rstored/rpcrdma"
	"github.com/rstored/rstored/rpcrdma/rpc"
	"github.com/rstored/rstored/rpcrdma/tcp"
)

// dialer makes clients from URLs, one for each server and transport, and the
// RDMA devices that they need. Its methods may be called from any goroutine.
type dialer struct {
	mountPort uint16        // where MOUNT is; 0 asks the server
	source    string        // local address for RDMA; "" as routing says
	giveUp    time.Duration // how long calls wait for a server that has gone

	mu      sync.Mutex
	clients map[endpoint]*client.Client
	devices map[netip.Addr]*roce.Device
}

// endpoint is a server as a URL names it.
type endpoint struct {
	transport rpc.Transport
	host      string
}

// flags adds the flags that all commands which connect have.
func (d *dialer) flags(f *pflag.FlagSet) {
	f.Uint16Var(&d.mountPort, "mount-port", 0, "TCP `PORT` of the MOUNT service (default: the server's NFS port, or what its portmap says)")
	f.StringVar(&d.source, "source", "", "local `ADDRESS` for RDMA (default: as routing says; a free loopback address for a server on this host)")
	f.DurationVar(&d.giveUp, "give-up", 2*time.Minute, "how long to wait for a server that has gone away")
}

// credential is the caller's identity on this host.
func credential() *rpc.Cred {
	c := &rpc.Cred{Flavor: rpc.AuthSys, UID: uint32(os.Getuid()), GID: uint32(os.Getgid())}
	c.Machine, _ = os.Hostname()
	groups, _ := os.Getgroups()
	for _, g := range groups {
		c.Groups = append(c.Groups, uint32(g))
	}
	return c
}

// client returns the client for a URL's server. It connects with the first call.
func (d *dialer) client(u client.URL) *client.Client {
	d.mu.Lock()
	defer d.mu.Unlock()
	at := endpoint{u.Transport, u.Host}
	if c := d.clients[at]; c != nil {
		return c
	}
	var c *client.Client
	c = client.New(client.Config{
		Peer: u.Host, Cred: credential(), GiveUp: d.giveUp,
		Dial:      func(ctx context.Context) (rpc.Client, error) { return d.dial(ctx, at) },
		DialMount: func(ctx context.Context) (rpc.Client, error) { return d.dialMount(ctx, at, c.RPC()) },
	})
	if d.clients == nil {
		d.clients = make(map[endpoint]*client.Client)
	}
	d.clients[at] = c
	return c
}

// dial connects to a server's NFS port.
func (d *dialer) dial(ctx context.Context, at endpoint) (rpc.Client, error) {
	if at.transport != rpc.TransportRDMA {
		return tcp.Dial(ctx, at.host)
	}
	remote, err := resolve(ctx, at.host)
	if err != nil {
		return nil, err
	}
	dev, err := d.device(remote.Addr())
	if err != nil {
		return nil, err
	}
	return rpcrdma.Dial(ctx, dev, remote, rpcrdma.ClientConfig{})
}

// resolve looks a host up; RDMA connects to addresses.
func resolve(ctx context.Context, host string) (netip.AddrPort, error) {
	name, port, err := net.SplitHostPort(host)
	if err != nil {
		return netip.AddrPort{}, err
	}
	n, err := strconv.ParseUint(port, 10, 16)
	if err != nil {
		return netip.AddrPort{}, fmt.Errorf("%q is no port", port)
	}
	addrs, err := net.DefaultResolver.LookupNetIP(ctx, "ip", name)
	if err != nil {
		return netip.AddrPort{}, err
	}
	return netip.AddrPortFrom(addrs[0].Unmap(), uint16(n)), nil
}

// device opens the RDMA device from which a server is reached, once.
func (d *dialer) device(remote netip.Addr) (*roce.Device, error) {
	var local netip.Addr
	var err error
	if d.source != "" {
		local, err = netip.ParseAddr(d.source)
	} else {
		local, err = roce.SourceFor(remote)
	}
	if err != nil {
		return nil, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if dev := d.devices[local]; dev != nil {
		return dev, nil
	}
	dev, err := roce.Open(roce.Config{Addr: local})
	if err != nil {
		return nil, fmt.Errorf("opening an RDMA device: %w", err)
	}
	if d.devices == nil {
		d.devices = make(map[netip.Addr]*roce.Device)
	}
	d.devices[local] = dev
	return dev, nil
}

// dialMount finds the MOUNT service: at the port the user gave, on the
// connection of NFS where rstored has it, or where portmap says.
func (d *dialer) dialMount(ctx context.Context, at endpoint, own rpc.Client) (rpc.Client, error) {
	name, _, err := net.SplitHostPort(at.host)
	if err != nil {
		return nil, err
	}
	if d.mountPort != 0 {
		return tcp.Dial(ctx, net.JoinHostPort(name, strconv.Itoa(int(d.mountPort))))
	}
	err = own.Call(ctx, &rpc.Request{Prog: nfs3.MountProgram, Vers: nfs3.MountVersion, Proc: nfs3.MountNull})
	var refused *rpc.AcceptError
	if !errors.As(err, &refused) {
		return borrowed{own}, err
	}
	pm, err := tcp.Dial(ctx, net.JoinHostPort(name, strconv.Itoa(portmap.Port)))
	if err != nil {
		return nil, fmt.Errorf("the server has MOUNT elsewhere, and its portmap cannot be asked (give --mount-port): %w", err)
	}
	defer pm.Close()
	port, err := client.Port(ctx, pm, nfs3.MountProgram, nfs3.MountVersion)
	if err != nil {
		return nil, err
	}
	return tcp.Dial(ctx, net.JoinHostPort(name, strconv.Itoa(int(port))))
}

// borrowed is a connection that somebody else will close.
type borrowed struct{ rpc.Client }

func (borrowed) Close() error { return nil }

// close ends all connections and closes the devices.
func (d *dialer) close() {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, c := range d.clients {
		_ = c.Close()
	}
	for _, dev := range d.devices {
		_ = dev.Close()
	}
	d.clients, d.devices = nil, nil
}
