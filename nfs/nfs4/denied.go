package nfs4

import (
	"net/netip"
	"sync"
	"time"

	"github.com/rstored/rstored/nfs"
)

// denials remembers which clients were refused which exports, so that a client that asks on and on
// has one line in the audit log for each refusedEvery.
type denials struct {
	mu   sync.Mutex
	seen map[denial]time.Time
}

type denial struct {
	host   netip.Addr
	path   string // of the pseudo file system
	status nfs.Status
}

const (
	refusedEvery = time.Minute
	// refusedMax bounds what is remembered. When it is full all of it is forgotten: lines are
	// repeated, and the audit log has a limit of its own.
	refusedMax = 4096
)

// fresh reports whether a refusal is to be written down.
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

// deny counts a client that an export, or what is below a directory of the pseudo file system, is
// not for.
func (k *compound) deny(path string, st nfs.Status) {
	k.s.cfg.Counters.DeniedClients.Add(1)
	k.auditDenied(path, st)
}

// auditDenied writes a refusal of an export, or of a directory that leads to exports, into the
// audit log.
func (k *compound) auditDenied(path string, st nfs.Status) {
	if k.s.denials.fresh(denial{k.c.Peer.Addr.Addr().Unmap(), path, st}, k.s.cfg.Now()) {
		k.s.cfg.Audit.Info("nfs4_denied", append(nfs.AuditCaller(k.c), "path", path, "result", st.String())...)
	}
}
