package daemon

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"github.com/rstored/rstored/cmd/internal/cli"
	"github.com/rstored/rstored/cmd/internal/config"
	"github.com/rstored/rstored/cmd/internal/control"
	"github.com/rstored/rstored/cmd/internal/failover"
	"github.com/rstored/rstored/cmd/internal/lease"
	"github.com/rstored/rstored/cmd/internal/ops"
	"github.com/rstored/rstored/cmd/internal/state"
	"github.com/rstored/rstored/cmd/internal/telemetry"
	"github.com/rstored/rstored/cmd/internal/upgrade"
)

// demotedVariable says that this process was demoted: it waits for a promotion.
const demotedVariable = "RSTORED_DEMOTED"

// standby is a daemon while it waits for the lease of another node.
type standby struct {
	d       *Daemon
	cfg     *config.Config
	access  control.Access
	node    string
	demoted bool          // the process before this one was
	may     atomic.Bool   // take a lease that nobody holds
	wake    chan struct{} // has room for one
	moving  []net.IP      // addresses that move between the nodes
	began   time.Time
	seen    atomic.Pointer[seenLease]
	fed     time.Time // the watchdog
	logged  string

	mu        sync.Mutex
	takes     *failover.Listener // nil: nobody can hand over to this node
	noSocket  bool
	stop      func()                 // of the control socket
	stopAwait func()                 // ends await
	ops       map[string]*ops.Server // by address
}

// seenLease is what a standby has read last, and when that was new.
type seenLease struct {
	lease.Record
	at time.Time
}

// standBy prepares the wait for the lease. It returns nil if the state directory is not shared with
// other nodes.
func (d *Daemon) standBy(cfg *config.Config, access control.Access) (*standby, error) {
	if cfg.HALease == 0 {
		return nil, nil
	}
	node := cfg.HANode
	if node == "" {
		var err error
		if node, err = os.Hostname(); err != nil {
			return nil, fmt.Errorf("ha_node is not set, and the host has no name: %w", err)
		}
	}
	s := &standby{
		d: d, cfg: cfg, access: access, node: node, demoted: os.Getenv(demotedVariable) != "",
		wake: make(chan struct{}, 1), began: time.Now(),
	}
	for _, a := range cfg.MovingAddresses() {
		s.moving = append(s.moving, a.AsSlice())
	}
	s.may.Store(cfg.HAPromote != config.PromoteManual && !s.demoted)
	return s, os.Unsetenv(demotedVariable)
}

// sharing is how the state directory is shared with other nodes, or nil.
func (s *standby) sharing() *state.Sharing {
	if s == nil {
		return nil
	}
	return &state.Sharing{
		Node: s.node, Term: s.cfg.HALease, Lost: s.d.leaseLost, Waiting: s.waiting, Demoted: s.demoted,
		May: s.mayTake, Abandon: s.byAddress(), Wake: s.wake,
	}
}

// byAddress reports whether the node takes a lease only while it has an address that moves.
func (s *standby) byAddress() bool { return s.cfg.HAPromote == config.PromoteAddress }

// mayTake reports whether this node may take a lease that nobody holds.
func (s *standby) mayTake() bool { return s.may.Load() && (!s.byAddress() || onHost(s.moving)) }

// A standby looks for its address every lookTime. While it has the address, and may take the lease
// because of that, it looks at the lease after lookTicks of these.
const (
	lookTime  = 20 * time.Millisecond
	lookTicks = 3
)

// await makes the wait look at the lease at once when the host gets an address that moves, and more
// often while the host has that address. It returns when ctx ends.
func (s *standby) await(ctx context.Context) {
	tick := time.NewTicker(lookTime)
	defer tick.Stop()
	for has, since := onHost(s.moving), 0; ; {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		had := has
		has = onHost(s.moving)
		if since++; has && (!had || s.byAddress() && since%lookTicks == 0) {
			s.look()
		}
	}
}

// reserve listens on the TCP addresses that move. A client that connects before this node serves
// then waits. If it were refused, it would try again seconds later.
func (s *standby) reserve() {
	for _, t := range s.cfg.TCPListen {
		l, err := config.ParseListen(t)
		if err != nil || l.Any() {
			continue
		}
		if err := s.d.sockets.Reserve(netip.AddrPortFrom(l.Addr, l.Port)); err != nil {
			s.d.log.Debug("a standby does not listen on an address that moves", zap.String("on", t), zap.Error(err))
		}
	}
}

// waiting is called at each look at the lease.
func (s *standby) waiting(r lease.Record) {
	if seen := s.seen.Load(); seen == nil || seen.Record != r {
		s.seen.Store(&seenLease{r, time.Now()})
	}
	s.listen()
	what := "waiting for a promotion"
	switch {
	case s.mayTake():
		what = "waiting for the lease of node " + r.Node
	case s.may.Load():
		what = "waiting for the address"
	}
	if line := fmt.Sprint(what, r.Epoch); line != s.logged {
		s.logged = line
		s.d.log.Info("this node is a standby", zap.String("state", what), zap.Uint64("epoch", r.Epoch),
			zap.Duration("at_least", s.cfg.HALease))
	}
	m := s.d.manager
	err := m.Starting(what, 2*s.cfg.HALease+startTime)
	// A process that was demoted is past its start, and watched.
	if waits := m.WatchdogInterval(); waits > 0 && time.Since(s.fed) > waits/3 {
		s.fed = time.Now()
		err = errors.Join(err, m.PingWatchdog())
	}
	if err != nil {
		s.d.log.Debug("the service manager cannot be told", zap.Error(err))
	}
}

// listen makes a standby reachable: for a planned failover, and for commands.
func (s *standby) listen() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.listenOps()
	if s.stopAwait == nil {
		s.reserve()
		ctx, cancel := context.WithCancel(context.Background())
		s.stopAwait = cancel
		go s.await(ctx)
	}
	if s.stop == nil && !s.noSocket {
		l, err := control.Listen(s.cfg.Control, s.access)
		if err != nil {
			s.noSocket = true
			s.d.log.Warn("a standby without a control socket cannot be promoted", zap.Error(err))
		} else {
			s.stop = control.ServeStandby(l, s, s.access, s.d.log.Library("control"))
		}
	}
	if s.takes != nil || s.cfg.HAListen == "" {
		return
	}
	secret, err := state.ReadSecret(s.cfg.StateDir)
	if err == nil {
		s.takes, err = failover.Listen(failover.Config{
			Dir: s.cfg.StateDir, Node: s.node, Address: s.cfg.HAListen, Secret: secret, Version: cli.ReadBuild().String(),
			Held:   s.look,
			Failed: func(err error) { s.d.log.Warn("nothing was handed over", zap.Error(err)) },
		})
	}
	if err != nil {
		s.d.log.Debug("no node can hand over to this one; it tries again", zap.Error(err))
	}
}

// listenOps opens the ports for metrics and health checks that are not open. An address can be one
// that moves, which this host does not have.
func (s *standby) listenOps() {
	for _, at := range s.cfg.OpsListen {
		if s.ops[at] != nil {
			continue
		}
		l, err := net.Listen("tcp", at)
		if err != nil {
			s.d.log.Debug("a standby without a port for metrics; it tries again", zap.Error(err))
			continue
		}
		if s.ops == nil {
			s.ops = make(map[string]*ops.Server)
		}
		r := prometheus.NewRegistry()
		r.MustRegister(ops.NewStandbyCollector(s.metrics), collectors.NewGoCollector(),
			collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
		s.ops[at] = ops.Serve(l, ops.Config{
			Gatherer: r, Live: func(context.Context) []ops.Check { return nil }, Ready: s.ready,
			Profiles: func() bool { return false }, Names: s.d.opsNames, Logger: s.d.log.Library("ops"),
		})
	}
}

// metrics is what a standby knows.
func (s *standby) metrics() ops.Standby {
	x := ops.Standby{Build: cli.ReadBuild(), Since: s.began, Lag: time.Since(s.began), Term: s.cfg.HALease}
	if seen := s.seen.Load(); seen != nil {
		x.Holder, x.Lag = seen.Node, time.Since(seen.at)
	}
	return x
}

// ready says why no client is served here.
func (s *standby) ready(context.Context) []ops.Check {
	return []ops.Check{{Name: "lease", Err: errors.New("this node is a standby; see 'rstorectl ha status'")}}
}

// look makes the wait look at the lease at once.
func (s *standby) look() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// Promote implements control.Waiter.
func (s *standby) Promote() {
	s.may.Store(true)
	s.look()
}

// HA implements control.Waiter.
func (s *standby) HA() (control.HA, error) {
	h := control.HA{Node: s.node, Role: control.RoleStandby, Since: s.began, Manual: !s.may.Load()}
	if s.byAddress() && !onHost(s.moving) {
		for _, a := range s.moving {
			h.Needs = append(h.Needs, a.String())
		}
	}
	if r := s.seen.Load(); r != nil {
		h.Holder, h.Epoch, h.Released = r.Node, r.Epoch, r.Released
	}
	return h, nil
}

// end ends the wait, after the lease was claimed over the record before, or after an error. It
// returns the state that another node has handed over, or nil.
func (s *standby) end(before lease.Record) (from *upgrade.Predecessor) {
	if s == nil {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stop != nil {
		s.stop()
	}
	if s.stopAwait != nil {
		s.stopAwait()
	}
	now, cancel := context.WithCancel(context.Background())
	cancel() // nobody waits for a request
	for _, o := range s.ops {
		_ = o.Close(now)
	}
	token := ""
	if before.Released && before.To == s.node {
		token = before.Token
	}
	if s.takes != nil {
		from = s.takes.Close(token)
	}
	if token != "" && from == nil {
		s.d.log.Warn("another node has handed over to this one, but what it sent is not here: clients have a grace period",
			zap.String("node", before.Node))
	}
	return from
}

// again replaces this process by a new one, which waits for the lease. It returns only an error.
func again(log *telemetry.Log, env ...string) error {
	log.Info("starting anew as a standby")
	_ = log.Sync()
	exe, err := upgrade.Executable()
	if err == nil {
		err = unix.Exec(exe, os.Args, append(os.Environ(), env...)) // this process has no demotedVariable
	}
	return fmt.Errorf("%s cannot be started anew: %w", os.Args[0], err)
}

// onHost reports whether the host has any of some addresses.
func onHost(list []net.IP) bool {
	have, err := net.InterfaceAddrs()
	if err != nil {
		return false
	}
	for _, a := range have {
		n, ok := a.(*net.IPNet)
		if !ok {
			continue
		}
		for _, ip := range list {
			if n.IP.Equal(ip) {
				return true
			}
		}
	}
	return false
}
