package portmap

import (
	"net/netip"
	"strconv"
	"strings"
	"time"

	"github.com/rstored/rstored/rpcrdma/rpc"
	"github.com/rstored/rstored/rpcrdma/xdr"
)

// Program is the RPC program number of portmap and rpcbind, and Port is their port.
const (
	Program = 100000
	Port    = 111
)

// Versions.
const (
	Version2 = 2
	Version3 = 3
	Version4 = 4
)

// Procedures. In version 2 ProcGetAddr is GETPORT.
const (
	ProcNull        = 0
	ProcSet         = 1
	ProcUnset       = 2
	ProcGetAddr     = 3
	ProcDump        = 4
	ProcCallIt      = 5
	ProcGetTime     = 6
	ProcUaddr2Taddr = 7
	ProcTaddr2Uaddr = 8
	ProcGetVersAddr = 9 // version 4
)

// Netids (RFC 5665, RFC 8166 section 10).
const (
	NetTCP   = "tcp"
	NetTCP6  = "tcp6"
	NetUDP   = "udp"
	NetUDP6  = "udp6"
	NetRDMA  = "rdma"
	NetRDMA6 = "rdma6"
)

// Numbers of the transports that version 2 knows (IPPROTO_TCP and IPPROTO_UDP).
const (
	ProtoTCP = 6
	ProtoUDP = 17
)

// stringMax bounds the strings of a query, in bytes.
const stringMax = 1024

// owner is the owner of every service in answers.
const owner = "superuser"

// Service is one version of a program at one address.
type Service struct {
	Program, Version uint32
	Transport        rpc.Transport
	// Addr is the address. If it is unspecified, it stands for the address at which the caller has
	// reached this server.
	Addr netip.AddrPort
}

// netid returns the netid of the service at an address.
func (s *Service) netid(a netip.Addr) string {
	switch six := a.Is6() && !a.Is4In6(); {
	case s.Transport == rpc.TransportRDMA && six:
		return NetRDMA6
	case s.Transport == rpc.TransportRDMA:
		return NetRDMA
	case s.Transport == rpc.TransportUDP && six:
		return NetUDP6
	case s.Transport == rpc.TransportUDP:
		return NetUDP
	case six:
		return NetTCP6
	}
	return NetTCP
}

// Programs returns versions 2, 3 and 4. services is called for every query, from any goroutine. It
// lists the services at that moment.
func Programs(services func() []Service) []rpc.Program {
	b := &binder{services: services}
	null := rpc.Proc{Name: "NULL", Inline: true, Serve: func(*rpc.Call, bool) rpc.Status { return rpc.Done }}
	refuse2 := func(name string) rpc.Proc { return rpc.Proc{Name: name, Inline: true, Serve: refuse(4)} }
	v2 := []rpc.Proc{
		ProcNull: null, ProcSet: refuse2("SET"), ProcUnset: refuse2("UNSET"),
		ProcGetAddr: {Name: "GETPORT", Serve: b.getPort},
		ProcDump:    {Name: "DUMP", Serve: b.dump2},
	}
	v3 := []rpc.Proc{
		ProcNull:    null,
		ProcSet:     {Name: "SET", Inline: true, Serve: refuse(0)},
		ProcUnset:   {Name: "UNSET", Inline: true, Serve: refuse(0)},
		ProcGetAddr: {Name: "GETADDR", Serve: b.getAddr(false)},
		ProcDump:    {Name: "DUMP", Serve: b.dump3},
		ProcGetTime: {Name: "GETTIME", Inline: true, Serve: getTime},
	}
	v4 := make([]rpc.Proc, ProcGetVersAddr+1)
	copy(v4, v3)
	v4[ProcGetVersAddr] = rpc.Proc{Name: "GETVERSADDR", Serve: b.getAddr(true)}
	return []rpc.Program{
		{Name: "portmap2", Prog: Program, Vers: Version2, Procs: v2},
		{Name: "rpcbind3", Prog: Program, Vers: Version3, Procs: v3},
		{Name: "rpcbind4", Prog: Program, Vers: Version4, Procs: v4},
	}
}

type binder struct{ services func() []Service }

// refuse answers FALSE to SET and UNSET. words is the length of the arguments in version 2, a
// mapping. 0 means an rpcb of version 3 or 4.
//
//	mapping   prog | vers | prot | port
func refuse(words int) func(*rpc.Call, bool) rpc.Status {
	return func(c *rpc.Call, _ bool) rpc.Status {
		if words > 0 {
			c.Args.Skip(4 * words)
		} else {
			decodeQuery(&c.Args)
		}
		if c.Args.Err() != nil {
			return rpc.Garbage
		}
		c.Res.Bool(false)
		return rpc.Done
	}
}

// at returns the address of a service for a caller; ok is false if it is not known.
func (s *Service) at(c *rpc.Call) (netip.AddrPort, bool) {
	a := s.Addr.Addr()
	if a.IsUnspecified() {
		a = c.Peer.Local.Addr()
	}
	a = a.Unmap().WithZone("")
	return netip.AddrPortFrom(a, s.Addr.Port()), a.IsValid()
}

// protocols are the netids that version 2 has numbers for.
var protocols = map[uint32]string{ProtoTCP: NetTCP, ProtoUDP: NetUDP}

// getPort is PMAPPROC_GETPORT. The result is 0 if there is no such service.
func (b *binder) getPort(c *rpc.Call, _ bool) rpc.Status {
	prog, vers, proto := c.Args.Uint32(), c.Args.Uint32(), c.Args.Uint32()
	c.Args.Uint32() // port, ignored
	if c.Args.Err() != nil {
		return rpc.Garbage
	}
	var port uint16
	if netid := protocols[proto]; netid != "" {
		if a, ok := b.find(c, prog, vers, netid, false); ok {
			port = a.Port()
		}
	}
	c.Res.Uint32(uint32(port))
	return rpc.Done
}

// find finds a service. Unless exact is true, another version of the program is good enough, as in
// rpcbind. A netid without "6" also finds services by IPv6.
func (b *binder) find(c *rpc.Call, prog, vers uint32, netid string, exact bool) (netip.AddrPort, bool) {
	var best *Service
	var bestAt netip.AddrPort
	list := b.services()
	for i := range list {
		s := &list[i]
		a, ok := s.at(c)
		if !ok || s.Program != prog || (s.Version != vers && (exact || best != nil)) {
			continue
		}
		if id := s.netid(a.Addr()); id != netid && strings.TrimSuffix(id, "6") != netid {
			continue
		}
		best, bestAt = s, a
		if s.Version == vers {
			break
		}
	}
	return bestAt, best != nil
}

func (b *binder) dump2(c *rpc.Call, _ bool) rpc.Status {
	list := b.services()
	for i := range list {
		s := &list[i]
		proto := uint32(ProtoTCP)
		switch s.Transport {
		case rpc.TransportTCP:
		case rpc.TransportUDP:
			proto = ProtoUDP
		default:
			continue
		}
		c.Res.Bool(true)
		c.Res.Uint32(s.Program)
		c.Res.Uint32(s.Version)
		c.Res.Uint32(proto)
		c.Res.Uint32(uint32(s.Addr.Port()))
	}
	c.Res.Bool(false)
	return rpc.Done
}

// query has the fields of an rpcb that are used (RFC 1833 section 2.1):
//
//	r_prog | r_vers | r_netid<> | r_addr<> | r_owner<>
type query struct {
	prog, vers uint32
	netid      string
}

func decodeQuery(d *xdr.Decoder) query {
	q := query{prog: d.Uint32(), vers: d.Uint32(), netid: d.String(stringMax)}
	d.Opaque(stringMax) // address
	d.Opaque(stringMax) // owner
	return q
}

// getAddr is RPCBPROC_GETADDR and RPCBPROC_GETVERSADDR. The result is an empty string if there is
// no such service. An empty netid means the transport of the call.
func (b *binder) getAddr(exact bool) func(*rpc.Call, bool) rpc.Status {
	return func(c *rpc.Call, _ bool) rpc.Status {
		q := decodeQuery(&c.Args)
		if c.Args.Err() != nil {
			return rpc.Garbage
		}
		if q.netid == "" {
			q.netid = (&Service{Transport: c.Peer.Transport}).netid(c.Peer.Local.Addr())
		}
		var addr string
		if a, ok := b.find(c, q.prog, q.vers, q.netid, exact); ok {
			addr = UniversalAddr(a)
		}
		c.Res.String(addr)
		return rpc.Done
	}
}

func (b *binder) dump3(c *rpc.Call, _ bool) rpc.Status {
	list := b.services()
	for i := range list {
		s := &list[i]
		a, ok := s.at(c)
		if !ok {
			continue
		}
		c.Res.Bool(true)
		c.Res.Uint32(s.Program)
		c.Res.Uint32(s.Version)
		c.Res.String(s.netid(a.Addr()))
		c.Res.String(UniversalAddr(a))
		c.Res.String(owner)
	}
	c.Res.Bool(false)
	return rpc.Done
}

func getTime(c *rpc.Call, _ bool) rpc.Status {
	c.Res.Uint32(uint32(time.Now().Unix()))
	return rpc.Done
}

// UniversalAddr returns the universal address (RFC 5665 section 5.2.3.3) of an address: a dot and
// the high byte of the port, and a dot and the low byte, follow the text of the IP address.
func UniversalAddr(a netip.AddrPort) string {
	b := a.Addr().WithZone("").AppendTo(nil)
	b = append(b, '.')
	b = strconv.AppendUint(b, uint64(a.Port()>>8), 10)
	b = append(b, '.')
	b = strconv.AppendUint(b, uint64(a.Port()&0xff), 10)
	return string(b)
}
