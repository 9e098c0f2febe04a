package client

import (
	"errors"
	"fmt"
	"net"
	"net/url"
	"path"
	"slices"
	"strings"

	"github.com/rstored/rstored/rpcrdma/rpc"
)

// Ports where NFS is served (RFC 5666 section 8, RFC 7530 section 18).
const (
	PortRDMA = "20049"
	PortTCP  = "2049"
)

// URL names a file or directory on a server: nfs+rdma://host[:port]/path or
// nfs+tcp://host[:port]/path.
type URL struct {
	Transport rpc.Transport
	Host      string // host:port
	Path      string // absolute and clean; which part of it is the export, the server says
	// Security is what a connection over TCP must have: that and better is used, nothing less.
	Security rpc.Security
	// Provider is who provides the RDMA device, one of Providers; empty if the URL does not say.
	Provider string
}

// Providers are what a URL may ask for: see package rdma/provider.
var Providers = []string{"auto", "soft", "verbs"}

// securityKey begins the end of a URL that says what its connection must have, providerKey of one that says
// by which RDMA device.
const (
	securityKey = "?xprtsec="
	providerKey = "?provider="
)

// ParseSecurity reads what the mount option xprtsec has: none, tls or mtls.
func ParseSecurity(s string) (rpc.Security, error) {
	for _, k := range [...]rpc.Security{rpc.Cleartext, rpc.TLS, rpc.MutualTLS} {
		if s == k.String() {
			return k, nil
		}
	}
	return 0, fmt.Errorf("xprtsec %q is none of none, tls and mtls", s)
}

// ParseURL parses a URL. The path is taken literally, byte by byte, but for
// percent-encoding of what a URL cannot hold (%25, %3F, %23), and an end of ?xprtsec=tls or
// ?xprtsec=mtls, or of ?provider=soft, verbs or auto with RDMA.
func ParseURL(s string) (URL, error) {
	scheme, rest, ok := strings.Cut(s, "://")
	if !ok {
		return URL{}, fmt.Errorf("%q is no URL: use nfs+rdma://host/path or nfs+tcp://host/path", s)
	}
	u := URL{}
	if i := strings.LastIndex(rest, securityKey); i >= 0 {
		var err error
		if u.Security, err = ParseSecurity(rest[i+len(securityKey):]); err != nil {
			return URL{}, fmt.Errorf("%q: %w; a question mark of a name is written %%3F", s, err)
		}
		rest = rest[:i]
	} else if i := strings.LastIndex(rest, providerKey); i >= 0 {
		if u.Provider = rest[i+len(providerKey):]; !slices.Contains(Providers, u.Provider) {
			return URL{}, fmt.Errorf("%q: the provider %q is none of %s; a question mark of a name is written %%3F", s, u.Provider, strings.Join(Providers, ", "))
		}
		rest = rest[:i]
	}
	port := PortRDMA
	switch strings.ToLower(scheme) {
	case "nfs+rdma":
		u.Transport = rpc.TransportRDMA
	case "nfs+tcp", "nfs":
		u.Transport, port = rpc.TransportTCP, PortTCP
	default:
		return URL{}, fmt.Errorf("%q: unknown scheme %s: use nfs+rdma or nfs+tcp", s, scheme)
	}
	if u.Security != rpc.Cleartext && u.Transport == rpc.TransportRDMA {
		return URL{}, fmt.Errorf("%q: %w", s, ErrNoTLSByRDMA)
	}
	if u.Provider != "" && u.Transport != rpc.TransportRDMA {
		return URL{}, fmt.Errorf("%q: a provider is of RDMA; use nfs+rdma", s)
	}
	host, p, _ := strings.Cut(rest, "/")
	if host == "" {
		return URL{}, fmt.Errorf("%q names no host", s)
	}
	if h, given, err := net.SplitHostPort(host); err == nil {
		host, port = h, given
	}
	u.Host = net.JoinHostPort(strings.Trim(host, "[]"), port)
	if decoded, err := url.PathUnescape(p); err == nil {
		p = decoded
	}
	u.Path = path.Clean("/" + p)
	return u, nil
}

// ErrNoTLSByRDMA is of TLS that is asked for where there is none.
var ErrNoTLSByRDMA = errors.New("there is no TLS over RDMA; use nfs+tcp")

// IsURL reports whether s looks like one, rather than like a local path.
func IsURL(s string) bool {
	scheme, _, ok := strings.Cut(s, "://")
	return ok && strings.HasPrefix(strings.ToLower(scheme), "nfs")
}

// String is the URL in the form that ParseURL takes.
func (u URL) String() string {
	scheme := "nfs+tcp"
	if u.Transport == rpc.TransportRDMA {
		scheme = "nfs+rdma"
	}
	s := scheme + "://" + u.Host + strings.NewReplacer("%", "%25", "?", "%3F", "#", "%23").Replace(u.Path)
	switch {
	case u.Security != rpc.Cleartext:
		s += securityKey + u.Security.String()
	case u.Provider != "":
		s += providerKey + u.Provider
	}
	return s
}

// Join is the URL of a name below u.
func (u URL) Join(name string) URL {
	u.Path = path.Join(u.Path, name)
	return u
}
