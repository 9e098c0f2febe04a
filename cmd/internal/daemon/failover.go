package daemon

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strings"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"github.com/rstored/rstored/cmd/internal/cli"
	"github.com/rstored/rstored/cmd/internal/control"
	"github.com/rstored/rstored/cmd/internal/failover"
	"github.com/rstored/rstored/cmd/internal/lease"
	"github.com/rstored/rstored/cmd/internal/upgrade"
)

// This file runs a planned failover on the node that serves. The protocol is in
// cmd/internal/failover.
//
// What happens on failure depends on the release of the lease. Before this node closes its stores
// every failure thaws the components, and this node continues. From then on it never serves again.
// If the standby does not take over, the next node has the lease after its term, with a grace
// period.

// errShared is returned if the state directory is not shared with other nodes (ha_lease).
var errShared = errors.New("no nodes share the state directory: ha_lease is not set")

// closeTime bounds the time for stores to close before the lease is released to a standby. Other
// nodes get the lease after its term when it is over.
const closeTime = 5 * time.Second

// HA implements control.Backend.
func (d *Daemon) HA() (control.HA, error) {
	l := d.state.Lease()
	if l == nil {
		return control.HA{}, errShared
	}
	s := l.Status()
	h := control.HA{Node: s.Node, Role: control.RoleServing, Holder: s.Node, Epoch: s.Epoch}
	h.Since = time.Now().Add(-s.Held)
	list, err := failover.List(d.state.Dir())
	for _, x := range list {
		h.Standbys = append(h.Standbys, control.StandbyNode(x))
	}
	return h, err
}

// Demote implements control.Backend.
func (d *Daemon) Demote() error {
	if d.state.Lease() == nil {
		return errShared
	}
	if err := d.mayChange(); err != nil {
		return err
	}
	defer d.mu.Unlock()
	select {
	case d.demoted <- struct{}{}:
	default: // by an earlier request
	}
	return nil
}

// Failover implements control.Backend. After a success the process starts anew as a standby.
func (d *Daemon) Failover(to string) (control.FailedOver, error) {
	if !d.reloading.TryLock() {
		return control.FailedOver{}, errUpgrading
	}
	defer d.reloading.Unlock()
	out, err := d.failover(to)
	if err != nil {
		d.log.Error("the planned failover has failed", zap.String("to", to), zap.Error(err))
	}
	d.audit.Record("failover", zap.String("to", to), zap.Error(err))
	return out, err
}

// standbyOf finds a standby by its name.
func (d *Daemon) standbyOf(node string) (failover.Standby, error) {
	list, err := failover.List(d.state.Dir())
	if err != nil {
		return failover.Standby{}, err
	}
	var names []string
	for _, s := range list {
		if s.Node == node {
			return s, nil
		}
		names = append(names, s.Node)
	}
	if len(names) == 0 {
		names = []string{"none"}
	}
	return failover.Standby{}, fmt.Errorf("no standby %q waits for the lease with ha_listen set; there are: %s", node,
		strings.Join(names, ", "))
}

// failover is Failover, with reloading held.
func (d *Daemon) failover(to string) (out control.FailedOver, err error) {
	held := d.state.Lease()
	if held == nil {
		return out, errShared
	}
	if d.isReplaced() {
		return out, errReplaced
	}
	began := time.Now()
	target, err := d.standbyOf(to)
	if err != nil {
		return out, err
	}
	secret, err := d.state.Secret()
	if err != nil {
		return out, err
	}
	token := make([]byte, 8)
	_, _ = rand.Read(token) // it never fails
	hello := upgrade.Hello{
		Version: cli.ReadBuild().String(), Node: held.Status().Node, Token: hex.EncodeToString(token),
	}
	h, err := failover.Dial(context.Background(), target, secret)
	if err != nil {
		return out, err
	}
	said, err := h.Prepare(d.times.Prepare, hello)
	if err != nil {
		return out, errors.Join(fmt.Errorf("node %s did not get ready: %w", to, err), h.Kill())
	}
	out = control.FailedOver{From: hello.Node, To: to, Version: said.Version, PrepareMillis: millis(time.Since(began))}
	if err := d.mayChange(); err != nil {
		return out, errors.Join(err, h.Kill())
	}
	defer d.mu.Unlock()
	if !d.acting.TryLock() {
		return out, errors.Join(errActing, h.Kill())
	}
	defer d.acting.Unlock()
	stood := time.Now()
	f := d.freezer()
	if err = f.Freeze(); err == nil {
		_, err = h.HandOver([]upgrade.Component{d.Service}, d.times.Restore)
	}
	if err == nil && d.draining.Load() { // since it began
		err = errDraining
	}
	if err == nil && !held.Serving() {
		err = errors.New("this node has lost the lease")
	}
	if err != nil {
		err = fmt.Errorf("%w; node %s goes on", errors.Join(err, h.Kill()), hello.Node)
		return out, errors.Join(err, f.Thaw())
	}
	// There is no way back from here.
	d.handedOver = true
	out.Dropped = f.Dropped
	if err := d.giveTo(to, hello.Token, closeTime); err != nil {
		err = fmt.Errorf("%w; the lease goes to the next node after its term: %w", errGivenUp, err)
		d.failed <- err
		return out, errors.Join(err, h.Kill())
	}
	_ = h.Go() // the standby finds the lease released without it
	err = h.Await(upgrade.WordServing, d.times.Serving, nil)
	out.PauseMillis = millis(time.Since(stood))
	h.Release()
	d.movedFrom = d.ports.Addresses()
	close(d.replaced)
	if err != nil {
		return out, fmt.Errorf("node %s has the lease, or the next one gets it, and clients may have a grace period: "+
			"it did not say that it serves: %w", to, err)
	}
	d.log.Info("another node serves", zap.String("node", to), zap.Float64("pause_ms", out.PauseMillis),
		zap.Int("dropped", out.Dropped))
	return out, nil
}

// freezer freezes what another node takes over. What belongs to this host alone is left out: stores
// and sockets.
func (d *Daemon) freezer() upgrade.Freezer {
	return upgrade.Freezer{
		Components: []upgrade.Component{d.ports, d.Service, d.state}, Work: d.work, Slow: d.RPC.InProgress, Times: d.times,
	}
}

// addressesGone reports whether the addresses of the ports have moved to another node. The caller
// holds mu.
func (d *Daemon) addressesGone() bool {
	if d.state.Lease() == nil {
		return false
	}
	list := moving(d.ports.Addresses())
	return len(list) > 0 && !onHost(list)
}

// Limits of a stop after the addresses have moved. Their sum must be less than the 3 s after which
// deploy/keepalived/rstored-ha kills a daemon that does not stop.
const (
	leaveTime  = 100 * time.Millisecond // for calls of clients that cannot be reached, and again for their connections
	leaveClose = 2 * time.Second        // for stores to close
)

// leave stops a server that its clients cannot reach any more, and releases the lease. It closes no
// connection: a client could not learn of it, and the next node finds the connection in the lists
// and resets it. From its begin the lease is not renewed: the next node waits for a store that does
// not close no longer than for a node that is lost. The caller holds mu.
func (d *Daemon) leave() error {
	d.audit.Record("stop")
	defer func() { _ = d.audit.Close() }()
	d.state.Lease().Expire()
	f := d.freezer()
	f.Drain, f.Drop = leaveTime, leaveTime
	if err := f.Freeze(); err != nil {
		return errors.Join(fmt.Errorf("the lease goes to the next node after its term: %w", err), d.closeControl())
	}
	err := errors.Join(d.giveTo("", "", leaveClose), d.closeControl())
	d.log.Info("stopped; the address has moved", zap.Error(err))
	return err
}

// errGivenUp ends a process that gave its clients to another node, which cannot have them.
var errGivenUp = errors.New("this node serves no more, and could not hand over")

// giveTo releases the locks and leases of files, within limit, and then the lease of the state
// directory. The standby takes them on its own node.
func (d *Daemon) giveTo(node, token string, limit time.Duration) error {
	closed := make(chan error, 1)
	go func() { closed <- d.ExportSet.Close() }()
	select {
	case err := <-closed:
		if err != nil {
			// As at a stop: if data could not be written, the next node has another write verifier.
			d.log.Warn("closing the exports", zap.Error(err))
		}
	case <-time.After(limit):
		return fmt.Errorf("the exports do not close within %v: their storage does not answer", limit)
	}
	return d.state.GiveTo(node, token)
}

// Limits of the wait for the address to move.
const (
	addressTime = 5 * time.Second
	addressTick = 20 * time.Millisecond
)

// awaitMove keeps the connections of a node that has handed over until its addresses have moved. If
// they ended before, clients would connect again to this node, and be refused. It reports whether a
// signal asked for a stop meanwhile.
func (d *Daemon) awaitMove(sig <-chan os.Signal) (stop bool) {
	list := moving(d.movedFrom)
	for end := time.Now().Add(addressTime); onHost(list) && time.Now().Before(end); {
		select {
		case s := <-sig:
			if s != unix.SIGHUP {
				return true
			}
		case <-time.After(addressTick):
		}
	}
	return false
}

// moving returns the addresses that can move to another node.
func moving(list []net.IP) []net.IP {
	return slices.DeleteFunc(list, func(a net.IP) bool { return a.IsUnspecified() || a.IsLoopback() })
}

// moved restores what another node has handed over, before the ports open.
func (d *Daemon) moved(from *upgrade.Predecessor, before lease.Record) error {
	d.mu.Lock()
	err := d.Restore()
	d.mu.Unlock()
	if err != nil {
		return fmt.Errorf("%w: %w", errNotRestored, err)
	}
	from.Begin()
	d.log.Info("the clients of another node continue here", zap.String("node", before.Node))
	return nil
}

// errNotRestored ends a standby that cannot use what another node has handed over. The process
// starts anew, with a grace period.
var errNotRestored = errors.New("what another node has handed over cannot be used")
