package client

import (
	"errors"
	"fmt"
	"net"
	"net/url"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/rstored/rstored/rpcrdma/rpc"
)

// Ports where NFS is served (RFC 8267 section 9, RFC 7530 section 3.1).
const (
	PortRDMA = "20049"
	PortTCP  = "2049"
)

// URL names a file or directory on a server: nfs+rdma://host[:port]/path or
// nfs+tcp://host[:port]/path.
type URL struct {
	Transport rpc.Transport
	Host      string // host:port
	Path      string // absolute and clean; the server knows which part of it is the export
	// Security is the least protection of a connection over TCP. A better one is used too.
	Security rpc.Security
	// Provider is the provider of the RDMA device, one of Providers; empty if the URL has none.
	Provider string
	// DSCP is the DSCP of RDMA packets, 1 to 63; 0 if the URL has none.
	DSCP uint8
}

// Providers are the values of the option provider; see package rdma/provider.
var Providers = []string{"auto", "soft", "verbs"}

// Options of a connection, at the end of a URL after a question mark, separated by ampersands.
const (
	securityKey = "xprtsec="
	providerKey = "provider="
	dscpKey     = "dscp="

	dscpMax = 63
)

// splitOptions cuts the options off a URL. If no option follows a question mark, the question mark
// is part of a name.
func splitOptions(s string) (rest, options string) {
	at := -1
	for _, key := range [...]string{securityKey, providerKey, dscpKey} {
		at = max(at, strings.LastIndex(s, "?"+key))
	}
	if at < 0 {
		return s, ""
	}
	return s[:at], s[at+1:]
}

// setOptions reads the options of a URL.
func (u *URL) setOptions(options string) error {
	for o := range strings.SplitSeq(options, "&") {
		key, value, _ := strings.Cut(o, "=")
		switch key + "=" {
		case securityKey:
			var err error
			if u.Security, err = ParseSecurity(value); err != nil {
				return err
			}
		case providerKey:
			if u.Provider = value; !slices.Contains(Providers, value) {
				return fmt.Errorf("the provider %q is not one of %s", value, strings.Join(Providers, ", "))
			}
		case dscpKey:
			n, err := strconv.ParseUint(value, 10, 8)
			if err != nil || n == 0 || n > dscpMax {
				return fmt.Errorf("the DSCP %q is not a number from 1 to %d", value, dscpMax)
			}
			u.DSCP = uint8(n)
		default:
			return fmt.Errorf("unknown option %q", o)
		}
	}
	return nil
}

// ParseSecurity reads a value of the mount option xprtsec: none, tls or mtls.
func ParseSecurity(s string) (rpc.Security, error) {
	for _, k := range [...]rpc.Security{rpc.Cleartext, rpc.TLS, rpc.MutualTLS} {
		if s == k.String() {
			return k, nil
		}
	}
	return 0, fmt.Errorf("unknown xprtsec %q: use none, tls or mtls", s)
}

// ParseURL parses a URL. The path is taken literally, byte by byte, except for the percent-encoding
// of bytes that a URL cannot hold (%25, %3F, %23). Options may stand at its end, with an ampersand
// between two of them: with TCP ?xprtsec=tls or mtls, with RDMA ?provider=soft, verbs or auto, and
// ?dscp=26.
func ParseURL(s string) (URL, error) {
	scheme, rest, ok := strings.Cut(s, "://")
	if !ok {
		return URL{}, fmt.Errorf("%q is not a URL: use nfs+rdma://host/path or nfs+tcp://host/path", s)
	}
	u := URL{}
	rest, options := splitOptions(rest)
	if options != "" {
		if err := u.setOptions(options); err != nil {
			return URL{}, fmt.Errorf("%q: %w; a question mark of a name is written %%3F", s, err)
		}
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
	if (u.Provider != "" || u.DSCP != 0) && u.Transport != rpc.TransportRDMA {
		return URL{}, fmt.Errorf("%q: provider and dscp are options of RDMA; use nfs+rdma", s)
	}
	host, p, _ := strings.Cut(rest, "/")
	if host == "" {
		return URL{}, fmt.Errorf("%q names no host", s)
	}
	if h, given, err := net.SplitHostPort(host); err == nil {
		if n, err := strconv.ParseUint(given, 10, 16); err != nil || n == 0 {
			return URL{}, fmt.Errorf("%q: %q is not a port number", s, given)
		}
		host, port = h, given
	}
	u.Host = net.JoinHostPort(strings.Trim(host, "[]"), port)
	if decoded, err := url.PathUnescape(p); err == nil {
		p = decoded
	}
	u.Path = path.Clean("/" + p)
	return u, nil
}

// ErrNoTLSByRDMA says that a URL asks for TLS over RDMA.
var ErrNoTLSByRDMA = errors.New("there is no TLS over RDMA; use nfs+tcp")

// IsURL reports whether s looks like a URL rather than a local path.
func IsURL(s string) bool {
	scheme, _, ok := strings.Cut(s, "://")
	return ok && strings.HasPrefix(strings.ToLower(scheme), "nfs")
}

// String returns the URL in the form that ParseURL reads.
func (u URL) String() string {
	scheme := "nfs+tcp"
	if u.Transport == rpc.TransportRDMA {
		scheme = "nfs+rdma"
	}
	s := scheme + "://" + u.Host + strings.NewReplacer("%", "%25", "?", "%3F", "#", "%23").Replace(u.Path)
	var options []string
	if u.Security != rpc.Cleartext {
		options = append(options, securityKey+u.Security.String())
	}
	if u.Provider != "" {
		options = append(options, providerKey+u.Provider)
	}
	if u.DSCP != 0 {
		options = append(options, fmt.Sprint(dscpKey, u.DSCP))
	}
	if len(options) > 0 {
		s += "?" + strings.Join(options, "&")
	}
	return s
}

// Join returns the URL of a name below u.
func (u URL) Join(name string) URL {
	u.Path = path.Join(u.Path, name)
	return u
}
