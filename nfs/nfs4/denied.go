package nfs4

import (
	"fmt"
	"net/netip"
	"sync"
	"time"

	"github.com/rstored/rstored/nfs"
)

// denials remembers which clients were refused which exports. A client that repeats its request
// gets one line in the audit log for each refusedEvery. mu is taken last: nothing is called while
// it is held. The zero value is ready for use.
type denials struct {
	mu   sync.Mutex
	seen map[denial]time.Time
}

// denial is one refusal. The port is not part of it, so that a client which connects anew for each
// attempt still gets one line. An IPv4 address is never in its mapped form here.
type denial struct {
	host   netip.Addr
	path   string // of the pseudo file system
	status nfs.Status
}

const (
	refusedEvery = time.Minute
	// refusedMax bounds the entries: a client may have many addresses of an IPv6 network. A full map
	// is emptied. Then some lines are repeated, but the audit log has a limit of its own. To drop the
	// oldest entry instead would need an order.
	refusedMax = 4096
)

// fresh reports whether a refusal gets a line in the audit log.
func (d *denials) fresh(k denial, now time.Time) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if at, ok := d.seen[k]; ok && now.Sub(at) < refusedEvery {
		return false
	}
	if d.seen == nil || len(d.seen) >= refusedMax {
		d.seen = make(map[denial]time.Time)
	}
	d.seen[k] = now
	return true
}

// deny counts and logs a client that no rule of an export admits, or that may see no export below a
// directory of the pseudo file system. The counter has each refusal. The log does not.
func (k *compound) deny(path string, st nfs.Status) {
	k.s.cfg.Counters.DeniedClients.Add(1)
	k.auditDenied(path, st)
}

// auditRule notes that the rules of an export have denied the call, and writes it into the audit
// log with the reason.
func (k *compound) auditRule(x *nfs.Export, st nfs.Status) {
	reason := k.s.cfg.Denials.Add(x, &k.c.Peer, k.c.Cred.Flavor, k.s.cfg.Now(), k.s.cfg.Logger)
	k.auditDenied(x.Pseudo, st, "reason", reason)
}

// unservedMinor counts a compound of a minor version that is not served. If the setting
// nfs_versions could enable the version, it also records the client as denied.
func (k *compound) unservedMinor() {
	k.s.cfg.Counters.Status(nfs.ErrMinorVersMismatch)
	if k.minor <= minorMax {
		k.s.cfg.Denials.AddVersion(&k.c.Peer, fmt.Sprintf("4.%d", k.minor), k.s.cfg.Now(), k.s.cfg.Logger)
	}
}

// auditDenied writes a refusal of an export, or of a directory that leads to exports, into the
// audit log.
func (k *compound) auditDenied(path string, st nfs.Status, more ...any) {
	if k.s.denials.fresh(denial{k.c.Peer.Addr.Addr().Unmap(), path, st}, k.s.cfg.Now()) {
		k.s.cfg.Audit.Info("nfs4_denied", append(append(nfs.AuditCaller(k.c), "path", path, "result", st.String()),
			more...)...)
	}
}
