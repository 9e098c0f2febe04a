package cluster

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"strings"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/rstored/rstored/cmd/internal/grace"
	"github.com/rstored/rstored/cmd/internal/rados"
)

// Store has the objects of the cluster. It is a rados.Client.
type Store interface {
	Pairs(object, prefix string) (rados.Pairs, error)
	Change(object string, c rados.Change) error
}

// Config is what a Cluster works with.
type Config struct {
	Store Store
	Node  string // the name of this node
	// Place is different for each host and state directory. An earlier process of the same place has
	// ended.
	Place string
	// Timeout is how long a node counts as alive that does not beat. Grace is how long clients of a
	// lost node may reclaim.
	Timeout, Grace time.Duration
	Now            func() time.Time // of a clock that does not jump
	// Reset ends a session of another process at the MDS.
	Reset func(filesystem, session string) error
	// Lost ends the process: the other nodes have declared it lost, or another has its name.
	Lost func(error)
	// Drained is called once when this node was asked to leave.
	Drained func()
	Log     *zap.Logger
}

// Clients are the clients of this node: those of version 4 by their owner strings, and hosts with
// locks of version 3 as SetHosts had them.
type Clients interface {
	// BeginReclaim lets further clients reclaim until a time, and ForgetReclaims nobody any more.
	BeginReclaim(owners, hosts []string, until time.Time)
	ForgetReclaims()
	// Recovered reports whether all that may reclaim have done so, or had their time.
	Recovered(now time.Time) bool
}

// Looks is how often a node looks at the state in each Timeout.
const looks = 10

// Cluster is this node in the cluster.
type Cluster struct {
	Config
	boot   string
	secret []byte
	wake   chan struct{} // has room for one
	ctx    context.Context
	stop   context.CancelFunc
	loops  sync.WaitGroup

	reading  sync.Mutex // held by once
	mu       sync.Mutex
	self     grace.Self // written by work
	clients  Clients
	leaving  bool
	drained  bool
	raw      rados.Pairs // of the object cluster as read last
	state    grace.State
	watch    grace.Watch
	read     time.Time // begin of the last read
	valid    time.Time // until when this node may grant without another beat
	granting bool
	busy     int           // locks that are being granted, see Begin
	seen     chan struct{} // closed and replaced at each look
	follow   follow

	// records is held while records are written. It is taken before mu.
	records sync.Mutex
	owners  map[string]bool // by kind and name, see recordKey
	known   []string        // own clients, at the start
	hosts   []string
}

const (
	object  = "cluster"
	beats   = "beats"
	keyOf   = "key"
	stateOf = "state"
)

func nodeObject(node string) string { return "node-" + node }

// random is a name for a process.
func random() string {
	b := make([]byte, 8)
	_, _ = rand.Read(b) // it never fails
	return hex.EncodeToString(b)
}

// Open makes this process a node of the cluster. It waits until the other nodes grant nothing new,
// what an earlier process of this node had in the file system is released, and its clients may
// reclaim. ctx ends the wait.
func Open(ctx context.Context, cfg Config) (*Cluster, error) {
	c := &Cluster{
		Config: cfg, boot: cfg.Place + "-" + random(), wake: make(chan struct{}, 1), seen: make(chan struct{}),
		owners: make(map[string]bool),
	}
	c.watch = grace.Watch{Patience: int64(cfg.Timeout), Gap: int64(cfg.Timeout / 2)}
	c.self = grace.Self{Node: cfg.Node, Boot: c.boot, Loaded: make(map[string]string)}
	c.ctx, c.stop = context.WithCancel(context.Background())
	if err := c.start(ctx); err != nil {
		c.stop()
		return nil, err
	}
	c.loops.Go(c.look)
	c.loops.Go(c.work)
	if err := c.await(ctx, func() bool { return c.granting || c.state.Reclaimable(c.Node) }); err != nil {
		c.Close()
		return nil, fmt.Errorf("the other nodes of the cluster do not stop granting locks: %w", err)
	}
	if err := c.loadOwn(); err != nil {
		c.Close()
		return nil, err
	}
	return c, nil
}

// start adds this process to the state.
func (c *Cluster) start(ctx context.Context) error {
	for logged := false; ; {
		if err := c.once(); err != nil {
			return err
		}
		n, was := c.state.Nodes[c.Node]
		same := strings.HasPrefix(n.Boot, c.Place+"-")
		if !was || n.Lost() || same || c.watch.Lost(c.Node) {
			next := c.state.Start(c.Node, c.boot)
			err := c.write(c.raw, next)
			if err == nil {
				c.self.Epoch = next.Current
				return c.makeSecret()
			}
			if !errors.Is(err, rados.ErrChanged) {
				return err
			}
			continue
		}
		if c.watch.AliveSince(c.Node, 0) {
			return fmt.Errorf("another process serves as node %q of the cluster: give each node a name of its own (ha_node)",
				c.Node)
		}
		if !logged {
			logged = true
			c.Log.Info("a process of this node's name on another host may live; waiting", zap.String("node", c.Node),
				zap.Duration("at_most", c.Timeout))
		}
		select {
		case <-time.After(c.Timeout / looks):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// makeSecret reads the secret of file handles, and makes it if there is none.
func (c *Cluster) makeSecret() error {
	b := make([]byte, 32)
	_, _ = rand.Read(b) // it never fails
	err := c.Store.Change(object, rados.Change{Is: rados.Pairs{keyOf: nil}, Set: rados.Pairs{keyOf: b}})
	if err != nil && !errors.Is(err, rados.ErrChanged) {
		return err
	}
	p, err := c.Store.Pairs(object, keyOf)
	if err == nil && len(p[keyOf]) != len(b) {
		err = fmt.Errorf("the key of file handles in the cluster's pool is %d bytes long", len(p[keyOf]))
	}
	c.secret = p[keyOf]
	return err
}

// once reads the state and the beats of all nodes.
func (c *Cluster) once() error {
	c.reading.Lock()
	defer c.reading.Unlock()
	begun := c.Now()
	p, err := c.Store.Pairs(object, "")
	if err != nil {
		return err
	}
	counts, err := c.Store.Pairs(beats, "")
	if err != nil {
		return err
	}
	var s grace.State
	if len(p[stateOf]) > 0 {
		if err := json.Unmarshal(p[stateOf], &s); err != nil {
			return fmt.Errorf("the state of the cluster is damaged: %w", err)
		}
	}
	all := make(map[string]string)
	for id, n := range s.Nodes {
		if !n.Lost() {
			all[id] = n.Boot + " " + string(counts[id])
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.watch.Read(begun.UnixNano(), c.Now().UnixNano(), all)
	c.raw, c.state, c.read = p, s, begun
	c.granting = !c.leaving && s.MayGrant(&c.self)
	close(c.seen)
	c.seen = make(chan struct{})
	c.applyExports()
	if s.Nodes[c.Node].Boot == c.boot && s.Nodes[c.Node].Drain && !c.drained {
		c.drained = true
		go c.Drained()
	}
	return nil
}

// look beats, and reads the state, again and again.
func (c *Cluster) look() {
	count, failed := 0, false
	for {
		begun := c.Now()
		count++
		err := c.Store.Change(beats, rados.Change{Set: rados.Pairs{c.Node: fmt.Appendf(nil, "%s %d", c.boot, count)}})
		if err == nil {
			err = c.once()
		}
		c.mu.Lock()
		if err == nil && c.state.Nodes[c.Node].Boot == c.boot {
			c.valid = begun.Add(c.Timeout * 4 / 5) // before the others count this node as lost
		}
		c.mu.Unlock()
		if err != nil && !failed {
			c.Log.Warn("the state of the cluster cannot be read or written: no client gets new opens or locks until it can",
				zap.Error(err))
		} else if err == nil && failed {
			c.Log.Info("the state of the cluster can be read and written again")
		}
		failed = err != nil
		c.again()
		select {
		case <-time.After(c.Timeout / looks):
		case <-c.ctx.Done():
			return
		}
	}
}

// write writes a state over the one that was read.
func (c *Cluster) write(over rados.Pairs, next grace.State) error {
	b, err := json.Marshal(next)
	if err != nil {
		return err
	}
	return c.Store.Change(object, rados.Change{Is: rados.Pairs{stateOf: over[stateOf]}, Set: rados.Pairs{stateOf: b}})
}

// update changes the state, until no other node is faster.
func (c *Cluster) update(change func(grace.State) (grace.State, error)) error {
	for {
		if err := c.once(); err != nil {
			return err
		}
		c.mu.Lock()
		raw, s := c.raw, c.state
		c.mu.Unlock()
		next, err := change(s)
		if err != nil {
			return err
		}
		if err = c.write(raw, next); !errors.Is(err, rados.ErrChanged) {
			return errors.Join(err, c.once())
		}
	}
}

// await waits until a condition is true, which is called with mu held.
func (c *Cluster) await(ctx context.Context, done func() bool) error {
	for {
		c.mu.Lock()
		ok, seen := done(), c.seen
		c.mu.Unlock()
		if ok {
			return nil
		}
		select {
		case <-seen:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// Attach passes the clients of this node, once there can be any.
func (c *Cluster) Attach(clients Clients) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.clients = clients
}

// Begin and End implement lock.Gate: this node enforces no grace period while a lock is being
// granted. A lock that is taken in the file system after that could be one that a client reclaims.
func (c *Cluster) Begin() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.granting || c.Now().After(c.valid) {
		return false
	}
	c.busy++
	return true
}

// End is called after each Begin that was true.
func (c *Cluster) End() {
	c.mu.Lock()
	c.busy--
	wake := c.busy == 0 && !c.granting
	c.mu.Unlock()
	if wake {
		c.again()
	}
}

// again makes work look for something to do.
func (c *Cluster) again() {
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// Grace reports whether nobody may get new opens and locks: clients of any node may reclaim, or
// this node cannot show the others that it lives.
func (c *Cluster) Grace() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return !c.granting || c.Now().After(c.valid)
}

// Undecided reports whether a client that came at a time may turn out to be one of a node that is
// lost, whose records are not here yet.
func (c *Cluster) Undecided(since time.Time) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.state.Recovery != 0 || !c.read.After(since) {
		return true
	}
	for id, n := range c.state.Nodes {
		if id != c.Node && (n.Lost() || !c.watch.AliveSince(id, since.UnixNano())) {
			return true
		}
	}
	return false
}

// Drain asks a node to leave.
func (c *Cluster) Drain(node string) error {
	return c.update(func(s grace.State) (grace.State, error) {
		if n, ok := s.Nodes[node]; !ok || n.Lost() {
			return s, fmt.Errorf("the cluster has no node %q that serves", node)
		}
		return s.Drain(node), nil
	})
}

// State returns the state as it was read last, and how long ago.
func (c *Cluster) State() (s grace.State, ago time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	s = c.state
	s.Nodes = maps.Clone(s.Nodes)
	return s, c.Now().Sub(c.read)
}
