package nfs

import (
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/rstored/rstored/rpcrdma/rpc"
)

// Why says which part of the export's rules denies a call of a peer with a flavor: the partition,
// the missing rule, or the option of the rule. It is empty if nothing denies the call, or if the
// client's name is still being resolved. It does not name the port of the peer, so that a client
// which connects again has the same reason.
func (x *Export) Why(p *rpc.Peer, flavor rpc.AuthFlavor) string {
	if !x.inPartition(p) {
		if p.PKey == 0 {
			return "pkey: the export is for partitions of RDMA, and this connection is in none"
		}
		return fmt.Sprintf("pkey: the connection is in partition %#04x, which is not one of the export", p.PKey)
	}
	r, st := x.Rule(p.Addr.Addr())
	if st == ErrJukebox {
		return ""
	}
	if st != OK {
		return "no rule is for this client"
	}
	what := func(option, format string, a ...any) string {
		return fmt.Sprintf("%s, of the rule for %s: %s", option, r.who(), fmt.Sprintf(format, a...))
	}
	switch {
	case r.fromOpenPort(p):
		return what("secure", "calls over TCP must come from a port below 1024, which only root of the client can use")
	case !r.Transports.has(p.Transport):
		return what("transport", "it is not for %s", p.Transport)
	case !r.Protects(p):
		return what("xprtsec", "the connection has %s", p.Security)
	case !r.Flavors.Has(flavor):
		return what("sec", "calls with sec=%s are not accepted, but %s", flavor, r.Flavors)
	}
	return ""
}

// who names the clients of the rule in the form of exports(5).
func (r *ClientRule) who() string {
	switch {
	case !r.CIDR.IsValid():
		return r.Name
	case r.CIDR.Bits() == 0:
		return "*"
	}
	return r.CIDR.String()
}

// Denial records that the rules of an export, or the setting nfs_versions, have denied a client.
type Denial struct {
	Client netip.Addr
	Export string // its name; empty if the client asked for a version that is not served
	Reason string // see Export.Why; begins with "version:" without an export
	Count  uint64
	Last   time.Time
}

// Bounds of Denials: a client with many addresses cannot fill memory or the log.
const (
	denialsMax = 64
	// denialLogEvery is how often the same denial is logged, denialLogBurst how many different ones
	// are logged in that time.
	denialLogEvery = time.Minute
	denialLogBurst = 16
)

// Denials remembers the last clients that were denied, and why. The zero value is ready for use,
// from any goroutine.
type Denials struct {
	mu     sync.Mutex
	list   []Denial // the latest last
	since  time.Time
	logged int // different denials logged since then
}

// Add records that an export has denied a peer, and logs it unless the log has it already. It
// returns the reason (Export.Why). If nothing denies the peer any more, Add records nothing and the
// reason is empty.
func (d *Denials) Add(x *Export, p *rpc.Peer, flavor rpc.AuthFlavor, now time.Time, log *slog.Logger) (reason string) {
	if reason = x.Why(p, flavor); reason == "" {
		return reason
	}
	n := Denial{Client: p.Addr.Addr().Unmap(), Export: x.Pseudo, Reason: reason, Count: 1, Last: now}
	if d.add(n) {
		log.Warn("a client was denied", "client", n.Client.String(), "export", n.Export, "reason", reason)
	}
	return reason
}

// AddVersion records that a peer has asked for a version of NFS that is not served, at the time
// now. It logs that unless the log has it already. A client that negotiates then tries another
// version.
func (d *Denials) AddVersion(p *rpc.Peer, version string, now time.Time, log *slog.Logger) {
	n := Denial{
		Client: p.Addr.Addr().Unmap(), Reason: "version: NFS version " + version + " is not served", Count: 1, Last: now,
	}
	if d.add(n) {
		log.Info("a client asked for a version that is not served", "client", n.Client.String(), "version", version)
	}
}

// add reports whether the denial is to be logged.
func (d *Denials) add(n Denial) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	fresh := true
	if i := slices.IndexFunc(d.list, func(o Denial) bool {
		return o.Client == n.Client && o.Export == n.Export && o.Reason == n.Reason
	}); i >= 0 {
		n.Count += d.list[i].Count
		fresh = n.Last.Sub(d.list[i].Last) >= denialLogEvery
		d.list = slices.Delete(d.list, i, i+1)
	} else if len(d.list) == denialsMax {
		d.list = slices.Delete(d.list, 0, 1)
	}
	d.list = append(d.list, n)
	if n.Last.Sub(d.since) >= denialLogEvery {
		d.since, d.logged = n.Last, 0
	}
	if fresh {
		d.logged++
	}
	return fresh && d.logged <= denialLogBurst
}

// List returns the denials, the latest first. The caller owns the list.
func (d *Denials) List() []Denial {
	d.mu.Lock()
	defer d.mu.Unlock()
	out := slices.Clone(d.list)
	slices.Reverse(out)
	return out
}
