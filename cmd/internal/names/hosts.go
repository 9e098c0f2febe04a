package names

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"strings"
	"time"

	"go.uber.org/zap"

	"github.com/rstored/rstored/cmd/internal/telemetry"
	"github.com/rstored/rstored/nfs/hosts"
	"github.com/rstored/rstored/nfs/idmap"
)

// NewHosts knows clients by host name and netgroup.
func NewHosts(log *zap.Logger) *hosts.Hosts {
	return hosts.New(hosts.Config{Source: hostNames{}, Logger: telemetry.Slog(log)})
}

// hostNames knows hosts as the resolver of this one does, and netgroups by getent(1).
type hostNames struct{}

// resolveLimit bounds one question, as a name server may not answer.
const resolveLimit = 10 * time.Second

// nobody reports whether an error says that there is no such host.
func nobody(err error) bool {
	var dns *net.DNSError
	return errors.As(err, &dns) && dns.IsNotFound
}

// Addrs implements hosts.Source.
func (hostNames) Addrs(name string) ([]netip.Addr, error) {
	ctx, cancel := context.WithTimeout(context.Background(), resolveLimit)
	defer cancel()
	list, err := net.DefaultResolver.LookupNetIP(ctx, "ip", name)
	if nobody(err) {
		return nil, nil
	}
	return list, err
}

// Names implements hosts.Source.
func (hostNames) Names(a netip.Addr) ([]string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), resolveLimit)
	defer cancel()
	list, err := net.DefaultResolver.LookupAddr(ctx, a.String())
	if nobody(err) {
		return nil, nil
	}
	return list, err
}

// Members implements hosts.Source.
func (hostNames) Members(group string) ([]string, error) {
	out, err := getentRaw("netgroup", group)
	if errors.Is(err, idmap.ErrUnknown) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return netgroupHosts(out), nil
}

// netgroupHosts are the hosts in what getent netgroup prints: the name, and triples
// (host,user,domain). An empty host is any host, and "-" none; neither counts.
func netgroupHosts(s string) (out []string) {
	for {
		_, rest, ok := strings.Cut(s, "(")
		if !ok {
			return out
		}
		triple, rest, ok := strings.Cut(rest, ")")
		if !ok {
			return out
		}
		host, _, _ := strings.Cut(triple, ",")
		if host = strings.TrimSpace(host); host != "" && host != "-" {
			out = append(out, host)
		}
		s = rest
	}
}
