package dial

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"math/bits"
	"net"
	"net/netip"
	"os"
	"runtime"
	"strconv"
	"sync"
	"time"

	"github.com/rstored/rstored/nfs/client"
	"github.com/rstored/rstored/nfs/nfs3"
	"github.com/rstored/rstored/nfs/portmap"
	"github.com/rstored/rstored/rdma"
	"github.com/rstored/rstored/rdma/provider"
	"github.com/rstored/rstored/rdma/roce"
	"github.com/rstored/rstored/rpcrdma"
	"github.com/rstored/rstored/rpcrdma/gss"
	"github.com/rstored/rstored/rpcrdma/rpc"
	"github.com/rstored/rstored/rpcrdma/tcp"
)

// Dialer makes clients, one for each server and transport, and opens the RDMA
// devices that they need. The zero value is ready. Its fields are set before the
// first use; its methods may be called from any goroutine.
type Dialer struct {
	// Cred is the identity of the calls; nil is Self.
	Cred *rpc.Cred
	// Version is the version of NFS; the zero value takes the highest that each server
	// speaks.
	Version client.Version
	// MountPort is the TCP port of the MOUNT service; 0 asks the server.
	MountPort uint16
	// Source is the local address for RDMA. The zero value takes the address that routing chooses,
	// and a free loopback address for a server on this host.
	Source netip.Addr
	// Provider is the provider of the RDMA device if a URL does not name one: provider.Soft is the
	// stack in user space, provider.Verbs a device of the kernel. Empty is provider.Auto.
	Provider provider.Kind
	// PKey is the partition for RDMA; 0 is the default partition.
	PKey uint16
	// DSCP is the DSCP of RDMA packets if a URL has none, 1 to 63. 0 is the default of the device:
	// none in user space, a setting of the host on devices of the kernel.
	DSCP uint8
	// Security is the least security of every connection over TCP; a URL can ask for more. Nothing
	// is sent without it. TLS returns the configuration for a server, by its name or address in the
	// URL. nil verifies the server by the certificate authorities of the system. It has no
	// certificate of the client, so MutualTLS needs TLS.
	Security rpc.Security
	TLS      func(server string) (*tls.Config, error)
	// Secure, if not nil, makes NFS calls with RPCSEC_GSS. Its user is that of Cred.
	Secure *Secure
	// GiveUp, Depth and Connections are those of client.Config. Over RDMA the connections of a client
	// share its registered memory. A device in user space has a loop for each, as far as there are
	// processors.
	GiveUp      time.Duration
	Depth       int
	Connections int

	mu      sync.Mutex
	clients map[endpoint]*client.Client
	devices map[local]rdma.Device
}

// Secure is how calls are protected.
type Secure struct {
	Service gss.Service
	// Initiate begins a security context of a user with a server, by its name in the URL. The user is
	// that of Dialer.Cred, or of client.WithCred.
	Initiate func(ctx context.Context, host string, uid uint32) (rpc.Initiation, error)
}

// Protect protects the calls of a connection with host, except those of MOUNT. It owns the
// connection. Protect of nil returns the connection.
func (s *Secure) Protect(conn rpc.Client, host string) rpc.Client {
	if s == nil {
		return conn
	}
	return mountPlain{rpc.NewSecured(conn, s.Service, func(ctx context.Context, uid uint32) (rpc.Initiation, error) {
		return s.Initiate(ctx, host, uid)
	})}
}

// secured connects and protects the calls of the connection as Dialer.Secure says.
func (d *Dialer) secured(ctx context.Context, at endpoint, domain *rpcrdma.Domain) (rpc.Client, error) {
	conn, err := d.connect(ctx, at, domain, nil, tcp.ConnectReserved)
	if err != nil {
		return nil, err
	}
	host, _, err := net.SplitHostPort(at.host)
	if err != nil {
		host = at.host
	}
	return d.Secure.Protect(conn, host), nil
}

// mountPlain makes the calls of MOUNT without RPCSEC_GSS, as the clients of kernels do, because
// some servers answer MOUNT with RPCSEC_GSS wrongly. A handle that MOUNT returns gives no
// permission: the server checks each call of NFS.
type mountPlain struct{ *rpc.Secured }

// Call implements rpc.Client.
func (c mountPlain) Call(ctx context.Context, r *rpc.Request) error {
	if r.Prog == nfs3.MountProgram {
		return c.Client.Call(ctx, r)
	}
	return c.Secured.Call(ctx, r)
}

// dialFunc connects to a server over TCP, from any port or from one below 1024.
type dialFunc func(ctx context.Context, addr string) (net.Conn, error)

// endpoint is a server and how to connect to it. There is one client for each.
type endpoint struct {
	transport rpc.Transport
	host      string
	security  rpc.Security
	provider  provider.Kind
	dscp      uint8
}

// local identifies an open device.
type local struct {
	kind provider.Kind
	addr netip.Addr
}

// Self returns the user of this process, with its groups, as AUTH_SYS credentials.
func Self() *rpc.Cred {
	c := &rpc.Cred{Flavor: rpc.AuthSys, UID: uint32(os.Getuid()), GID: uint32(os.Getgid())}
	c.Machine, _ = os.Hostname()
	groups, _ := os.Getgroups()
	for _, g := range groups {
		c.Groups = append(c.Groups, uint32(g))
	}
	return c
}

func (d *Dialer) endpoint(u client.URL) endpoint {
	kind := cmp.Or(provider.Kind(u.Provider), d.Provider, provider.Auto)
	return endpoint{u.Transport, u.Host, max(u.Security, d.Security), kind, cmp.Or(u.DSCP, d.DSCP)}
}

// Client returns the client for a URL's server. It connects with its first call. The Dialer owns
// it: Dialer.Close closes it.
func (d *Dialer) Client(u client.URL) *client.Client {
	d.mu.Lock()
	defer d.mu.Unlock()
	at := d.endpoint(u)
	if c := d.clients[at]; c != nil {
		return c
	}
	cred := d.Cred
	if cred == nil {
		cred = Self()
	}
	var c *client.Client
	domain := new(rpcrdma.Domain)
	c = client.New(client.Config{
		Peer: u.Host, Cred: cred, Version: d.Version, GiveUp: d.GiveUp, Depth: d.Depth, Connections: d.Connections,
		Dial:      func(ctx context.Context) (rpc.Client, error) { return d.secured(ctx, at, domain) },
		DialMount: func(ctx context.Context) (rpc.Client, error) { return d.dialMount(ctx, at, c.RPC()) },
	})
	if d.clients == nil {
		d.clients = make(map[endpoint]*client.Client)
	}
	d.clients[at] = c
	return c
}

// Connect makes one connection to a URL's server, for calls of the caller, who closes it. backward
// gets the calls of the server, see rpcrdma.ClientConfig. Over TCP the local port is not below
// 1024: some servers believe the user IDs in calls from such a port, and the calls here are those
// of others.
func (d *Dialer) Connect(ctx context.Context, u client.URL, backward func(msg []byte, reply func(msg []byte))) (
	rpc.Client, error,
) {
	return d.connect(ctx, d.endpoint(u), nil, backward, tcp.Connect)
}

// FS is the directory that a URL names as an fs.FS, symbolic links followed.
func (d *Dialer) FS(ctx context.Context, url string) (*client.FS, error) {
	u, err := client.ParseURL(url)
	if err != nil {
		return nil, err
	}
	return d.Client(u).FS(ctx, u.Path)
}

// Open opens the file that a URL names for reading and writing.
func (d *Dialer) Open(ctx context.Context, url string) (*client.File, error) {
	u, err := client.ParseURL(url)
	if err != nil {
		return nil, err
	}
	return d.Client(u).Open(ctx, u.Path)
}

// Close ends all connections and closes the devices. Calls in flight fail.
func (d *Dialer) Close() error {
	d.mu.Lock()
	clients := d.clients
	d.clients = nil
	d.mu.Unlock()
	var errs []error
	for _, c := range clients { // before the devices: a client may connect again to end its session
		errs = append(errs, c.Close())
	}
	d.mu.Lock()
	devices := d.devices
	d.devices = nil
	d.mu.Unlock()
	for _, dev := range devices {
		errs = append(errs, dev.Close())
	}
	return errors.Join(errs...)
}

// connect connects to a server's NFS port.
func (d *Dialer) connect(
	ctx context.Context, at endpoint, domain *rpcrdma.Domain, backward func(msg []byte, reply func(msg []byte)),
	from dialFunc,
) (rpc.Client, error) {
	if at.transport != rpc.TransportRDMA {
		return d.dialTCP(rpc.WithBackward(ctx, backward), at, at.host, nfs3.Program, nfs3.Version, from)
	}
	if at.security != rpc.Cleartext {
		return nil, client.ErrNoTLSByRDMA
	}
	remote, err := resolve(ctx, at.host)
	if err != nil {
		return nil, err
	}
	dev, err := d.device(at.provider, remote.Addr())
	if err != nil {
		return nil, err
	}
	return rpcrdma.Dial(ctx, dev, remote, rpcrdma.ClientConfig{
		PKey: d.PKey, DSCP: at.dscp, Backward: backward, Domain: domain,
	})
}

// dialTCP connects to a port of a server, with TLS if it has to have that.
func (d *Dialer) dialTCP(
	ctx context.Context, at endpoint, addr string, prog, vers uint32, from dialFunc,
) (rpc.Client, error) {
	if at.security == rpc.Cleartext {
		conn, err := from(ctx, addr)
		if err != nil {
			return nil, &rpc.ConnError{Peer: addr, Err: err}
		}
		c := tcp.NewClient(conn)
		c.OnCall(rpc.BackwardOf(ctx))
		return c, nil
	}
	name, _, err := net.SplitHostPort(addr)
	if err != nil {
		return nil, err
	}
	cfg := &tls.Config{ServerName: name, MinVersion: tls.VersionTLS13}
	if d.TLS != nil {
		if cfg, err = d.TLS(name); err != nil {
			return nil, err
		}
	}
	if at.security == rpc.MutualTLS && len(cfg.Certificates) == 0 && cfg.GetClientCertificate == nil {
		return nil, ErrNoCertificate
	}
	conn, err := from(ctx, addr)
	if err != nil {
		return nil, &rpc.ConnError{Peer: addr, Err: err}
	}
	return tcp.NewTLSClient(ctx, conn, addr, cfg, prog, vers)
}

// ErrNoCertificate says that mutual TLS is wanted without a certificate of the client.
var ErrNoCertificate = errors.New("xprtsec=mtls needs a certificate of this client and its key")

// resolve looks up the address of a host.
func resolve(ctx context.Context, host string) (netip.AddrPort, error) {
	name, port, err := net.SplitHostPort(host)
	if err != nil {
		return netip.AddrPort{}, err
	}
	n, err := strconv.ParseUint(port, 10, 16)
	if err != nil {
		return netip.AddrPort{}, fmt.Errorf("%q is not a port number", port)
	}
	addrs, err := net.DefaultResolver.LookupNetIP(ctx, "ip", name)
	if err != nil {
		return netip.AddrPort{}, err
	}
	return netip.AddrPortFrom(addrs[0].Unmap(), uint16(n)), nil
}

// device returns the RDMA device that reaches a server, and opens it if it is not open. It opens
// a device of the kernel again after its removal.
func (d *Dialer) device(kind provider.Kind, remote netip.Addr) (rdma.Device, error) {
	host := provider.System()
	choice, err := host.ChooseFor(kind, remote, d.Source)
	if err != nil {
		return nil, err
	}
	at := local{choice.Kind, choice.Addr}
	d.mu.Lock()
	defer d.mu.Unlock()
	if dev := d.devices[at]; dev != nil {
		if !removed(dev) {
			return dev, nil
		}
		delete(d.devices, at)
		_ = dev.Close() // nothing of it is left
	}
	var soft roce.Config
	if d.PKey != 0 {
		soft.PKeys = []uint16{d.PKey}
	}
	dev, err := host.Open(provider.Config{Choice: choice, Loops: d.loops(), Soft: soft})
	if err != nil {
		return nil, fmt.Errorf("opening an RDMA device: %w", err)
	}
	if d.devices == nil {
		d.devices = make(map[local]rdma.Device)
	}
	d.devices[at] = dev
	return dev, nil
}

// loops is the number of loops of a device: a power of two.
func (d *Dialer) loops() int {
	n := min(d.Connections, runtime.GOMAXPROCS(0), roce.ShardsMax)
	return 1 << (bits.Len(uint(max(n, 1))) - 1)
}

// removed reports whether the kernel has removed a device.
func removed(dev rdma.Device) bool {
	k, ok := dev.(provider.Kernel)
	if !ok {
		return false
	}
	select {
	case <-k.Removed():
		return true
	default:
		return false
	}
}

// dialMount connects to the MOUNT service: at MountPort, else on the connection of NFS if the
// server has it there, as rstored does, else at the port that portmap returns.
func (d *Dialer) dialMount(ctx context.Context, at endpoint, own rpc.Client) (rpc.Client, error) {
	name, _, err := net.SplitHostPort(at.host)
	if err != nil {
		return nil, err
	}
	if d.MountPort != 0 {
		return d.dialTCP(ctx, at, net.JoinHostPort(name, strconv.Itoa(int(d.MountPort))), nfs3.MountProgram,
			nfs3.MountVersion, tcp.ConnectReserved)
	}
	err = own.Call(ctx, &rpc.Request{Prog: nfs3.MountProgram, Vers: nfs3.MountVersion, Proc: nfs3.MountNull})
	var refused *rpc.AcceptError
	if !errors.As(err, &refused) {
		return shared{own}, err
	}
	// portmap has no TLS. Where the client wants TLS a forged port gains nothing: the service there
	// must have the server's certificate.
	pm, err := tcp.Dial(ctx, net.JoinHostPort(name, strconv.Itoa(portmap.Port)))
	if err != nil {
		return nil, fmt.Errorf("the server has MOUNT elsewhere, and its portmap cannot be asked: %w", err)
	}
	defer func() { _ = pm.Close() }()
	port, err := client.Port(ctx, pm, nfs3.MountProgram, nfs3.MountVersion, portmap.ProtoTCP)
	if err != nil {
		return nil, err
	}
	return d.dialTCP(ctx, at, net.JoinHostPort(name, strconv.Itoa(int(port))), nfs3.MountProgram, nfs3.MountVersion,
		tcp.ConnectReserved)
}

// shared is a connection that the client's own session closes.
type shared struct{ rpc.Client }

func (shared) Close() error { return nil }
