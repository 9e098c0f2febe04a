package cluster

import (
	"errors"
	"fmt"

	"go.uber.org/zap"

	"github.com/rstored/rstored/cmd/internal/grace"
	"github.com/rstored/rstored/cmd/internal/rados"
)

// work does what the rules want of this node.
func (c *Cluster) work() {
	last := ""
	for {
		select {
		case <-c.wake:
		case <-c.ctx.Done():
			return
		}
		done, err := c.step()
		if err != nil && !errors.Is(err, rados.ErrChanged) && err.Error() != last {
			last = err.Error()
			c.Log.Warn("a step of the cluster's grace period has failed; it is tried again", zap.Error(err))
		}
		if done && c.ctx.Err() == nil {
			_ = c.once() // what fails now fails in look, too
			c.again()
		}
	}
}

// lose declares a node lost that does not beat. It is called with mu held.
func (c *Cluster) lose() (next grace.State, lost string) {
	for id, n := range c.state.Nodes {
		if id != c.Node && !n.Lost() && c.watch.Lost(id) {
			return c.state.Lose(id, c.Node), id
		}
	}
	return next, ""
}

// step does one thing. done says that there may be more to do.
func (c *Cluster) step() (done bool, err error) {
	c.mu.Lock()
	clients, raw, s := c.clients, c.raw, c.state
	next, lost := c.lose()
	leaving := c.leaving
	c.self.Busy = c.busy > 0
	c.mu.Unlock()
	if lost != "" {
		c.Log.Warn("a node of the cluster does not show that it lives: its clients may reclaim at other nodes",
			zap.String("node", lost), zap.Duration("after", c.Timeout))
		return true, c.write(raw, next)
	}
	c.self.Recovered = clients != nil && clients.Recovered(c.Now())
	step := s.Next(&c.self)
	switch step.Action {
	case grace.None:
		if s.Recovery == 0 && clients != nil && len(c.self.Loaded) > 0 {
			clients.ForgetReclaims()
			c.self.Loaded = make(map[string]string)
		}
		return false, nil
	case grace.Stop:
		if !leaving {
			c.Lost(errLost)
		}
		return false, nil
	case grace.Copy:
		err = c.copy(s.Current, clients)
	case grace.Release:
		err = c.release(step.Node, step.Boots)
	case grace.Load:
		if clients == nil {
			return false, nil // the service is being made
		}
		return true, c.load(step.Node, s.Nodes[step.Node].Was, s.Recovery, clients)
	case grace.Lift:
		c.Log.Info("the grace period of the cluster is over", zap.Uint64("epoch", s.Current))
	}
	if err != nil {
		return false, err
	}
	if err := c.write(raw, step.State); err != nil {
		return errors.Is(err, rados.ErrChanged), err
	}
	return true, nil
}

// copy writes the records of all clients for a new epoch. The server grants nothing since this state
// was read, and no lock is being granted.
func (c *Cluster) copy(epoch uint64, clients Clients) error {
	c.Log.Info("a grace period of the cluster begins: clients of other nodes may reclaim", zap.Uint64("epoch", epoch))
	if clients != nil {
		clients.ForgetReclaims()
	}
	c.records.Lock()
	defer c.records.Unlock()
	var all []string
	for o := range c.owners {
		all = append(all, o)
	}
	if err := c.add(epoch, all); err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.self.Epoch, c.self.Loaded = epoch, make(map[string]string)
	return nil
}

// release ends the sessions that processes of a node had at the MDS.
func (c *Cluster) release(node string, boots []string) error {
	for _, boot := range boots {
		prefix := sessionKey(boot, "")
		list, err := c.Store.Pairs(nodeObject(node), prefix)
		if err != nil {
			return err
		}
		for key, filesystem := range list {
			session := key[len(prefix):]
			if err := c.Reset(string(filesystem), session); err != nil {
				return fmt.Errorf("session %s of node %s: %w", session, node, err)
			}
			if err := c.Store.Change(nodeObject(node), rados.Change{Remove: []string{key}}); err != nil {
				return err
			}
			c.Log.Info("the session that a lost process had at the MDS is ended", zap.String("node", node),
				zap.String("session", session), zap.String("filesystem", string(filesystem)))
		}
	}
	return nil
}

// load lets the clients of a lost node reclaim here. loss is that loss.
func (c *Cluster) load(node, loss string, from uint64, clients Clients) error {
	owners, hosts, err := c.recorded(node, from)
	if err != nil {
		return err
	}
	if len(owners)+len(hosts) > 0 {
		c.Log.Info("clients of a lost node may reclaim here", zap.String("node", node), zap.Int("clients", len(owners)),
			zap.Int("hosts_of_version_3", len(hosts)), zap.Duration("for", c.Config.Grace))
	}
	clients.BeginReclaim(owners, hosts, c.Now().Add(c.Config.Grace))
	c.self.Loaded[node] = loss
	return nil
}
