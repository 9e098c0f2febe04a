package control

import (
	"context"
	"net"
	"net/http"
	"time"

	"go.uber.org/zap"

	"github.com/rstored/rstored/cmd/internal/telemetry"
)

// Roles of a node.
const (
	RoleServing = "serving" // it has the lease
	RoleStandby = "standby" // it waits for the lease
)

// HA is a node of several that share a state directory.
type HA struct {
	Node string `json:"node"`
	Role string `json:"role"`
	// Holder is the node that had the lease last, and Released says that it has given it up.
	Holder   string `json:"holder"`
	Epoch    uint64 `json:"epoch"` // claims so far, by any node
	Released bool   `json:"released,omitempty"`
	// Since is when this node began to serve or to wait.
	Since time.Time `json:"since"`
	// Manual says that a standby takes the lease only after a promotion, or if it is handed over.
	Manual bool `json:"manual,omitempty"`
	// Needs are addresses, one of which the host of a standby needs before the standby takes the lease
	// (ha_promote: address). The host has none of them.
	Needs []string `json:"needs,omitempty"`
	// Standbys are the nodes to which a serving one can hand over.
	Standbys []StandbyNode `json:"standbys,omitempty"`
}

// StandbyNode is a node that waits for the lease.
type StandbyNode struct {
	Node    string `json:"node"`
	Address string `json:"address"`
}

// FailedOver is the result of a planned failover.
type FailedOver struct {
	From    string `json:"from"`
	To      string `json:"to"`
	Version string `json:"version"` // of the node that serves now
	// PrepareMillis is the time in which this node still served. PauseMillis is from then until the
	// other one reported that it serves.
	PrepareMillis float64 `json:"prepare_ms"`
	PauseMillis   float64 `json:"pause_ms"`
	Dropped       int     `json:"dropped_connections"` // whose clients did not answer
}

// HABackend is the part of a Backend for nodes that share a state directory.
type HABackend interface {
	HA() (HA, error)
	// Failover hands the clients over to a standby. After a success this process serves no more.
	Failover(to string) (FailedOver, error)
	// Demote makes this node release the lease and wait for a promotion. It returns before.
	Demote() error
}

// Waiter is a daemon that waits for the lease.
type Waiter interface {
	HA() (HA, error)
	// Promote lets it take the lease when that is free.
	Promote()
}

// haRoutes are the requests of a daemon that serves.
func haRoutes(b HABackend) map[string]http.HandlerFunc {
	return map[string]http.HandlerFunc{
		"GET /v1/ha":           get(func(*http.Request) (any, error) { return b.HA() }),
		"POST /v1/ha/failover": get(func(r *http.Request) (any, error) { return b.Failover(r.FormValue("to")) }),
		"POST /v1/ha/demote":   order(func(*http.Request) error { return b.Demote() }),
		"POST /v1/ha/promote":  order(func(*http.Request) error { _, err := b.HA(); return err }),
	}
}

// ServeStandby answers on the listener for a daemon that waits, until stop is called. Every request
// that needs a daemon that serves fails, as of health checks.
func ServeStandby(l net.Listener, w Waiter, access Access, log *zap.Logger) (stop func()) {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v1/ha", get(func(*http.Request) (any, error) { return w.HA() }))
	mux.HandleFunc("POST /v1/ha/promote", order(func(r *http.Request) error {
		p, _ := r.Context().Value(peerKey{}).(Peer)
		log.Info("this node may take the lease", zap.Stringer("by", p))
		w.Promote()
		return nil
	}))
	mux.HandleFunc("/", func(rw http.ResponseWriter, _ *http.Request) {
		why := "this node is a standby"
		if h, err := w.HA(); err == nil && h.Holder != "" && !h.Released {
			why += ": node " + h.Holder + " had the lease last"
		}
		reply(rw, http.StatusServiceUnavailable, failure{why + "; see 'rstorectl ha status'"})
	})
	s := http.Server{
		Handler: http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
			p, ok := r.Context().Value(peerKey{}).(Peer)
			if !ok || !access.Allows(p) {
				reply(rw, http.StatusForbidden, failure{p.String() + " may not control this server"})
				return
			}
			mux.ServeHTTP(rw, r)
		}),
		ReadHeaderTimeout: headerTime, IdleTimeout: idleTime, ErrorLog: telemetry.ErrorLog(log),
		ConnContext: withPeer(log),
	}
	go func() { _ = s.Serve(l) }()
	return func() {
		_ = s.Close()
		_ = l.Close() // Serve may not have begun
	}
}

// HA returns what a node is.
func (d *Dialer) HA(ctx context.Context) (HA, error) {
	return send[HA](ctx, d, http.MethodGet, "/v1/ha", nil)
}

// Failover makes the serving node hand its clients over to a standby.
func (d *Dialer) Failover(ctx context.Context, to string) (FailedOver, error) {
	return send[FailedOver](ctx, d, http.MethodPost, "/v1/ha/failover", nil, "to", to)
}

// Promote lets a standby take the lease when that is free.
func (d *Dialer) Promote(ctx context.Context) error {
	return d.order(ctx, http.MethodPost, "/v1/ha/promote", nil)
}

// Demote makes the serving node release the lease.
func (d *Dialer) Demote(ctx context.Context) error {
	return d.order(ctx, http.MethodPost, "/v1/ha/demote", nil)
}
