package cluster

import (
	"context"
	"errors"
	"maps"
	"slices"

	"github.com/rstored/rstored/cmd/internal/grace"
)

// errLost is what a process that leaves finds.
var errLost = errors.New("the other nodes of the cluster have declared this one lost")

// Leave stops granting. If clients have anything here, it waits until no other node grants either.
// Then the caller closes the stores, and calls Gone. The other nodes do not end the sessions of
// this process at the MDS before, unless it does not beat. What clients have here they may reclaim
// at another node, or here after the next start.
func (c *Cluster) Leave(ctx context.Context) error {
	c.mu.Lock()
	c.leaving, c.granting = true, false
	need := c.state.Nodes[c.Node].Need
	c.mu.Unlock()
	c.records.Lock()
	n := len(c.owners)
	c.records.Unlock()
	if n == 0 && !need {
		return nil
	}
	err := c.update(func(s grace.State) (grace.State, error) {
		if s.Nodes[c.Node].Boot != c.boot {
			return s, errLost
		}
		return s.Leave(c.Node), nil
	})
	if err != nil {
		return err
	}
	lost := false
	err = c.await(ctx, func() bool {
		lost = c.state.Nodes[c.Node].Boot != c.boot
		return lost || c.state.Enforced()
	})
	if lost {
		return errLost
	}
	return err
}

// Gone removes this node after Leave, once its stores are closed, and ends the Cluster.
func (c *Cluster) Gone() error {
	defer c.Close()
	if err := c.update(func(s grace.State) (grace.State, error) { return s.Left(c.Node, c.boot), nil }); err != nil {
		return err
	}
	sessions, err := c.Store.Pairs(nodeObject(c.Node), sessionKey(c.boot, ""))
	if err != nil {
		return err
	}
	return c.remove(slices.Collect(maps.Keys(sessions)))
}

// Close ends the work of the Cluster. To the others this node is lost.
func (c *Cluster) Close() {
	c.stop()
	c.loops.Wait()
}
