package daemon

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"github.com/rstored/rstored/blockstore/cephfs"
	"github.com/rstored/rstored/cmd/internal/cluster"
	"github.com/rstored/rstored/cmd/internal/config"
	"github.com/rstored/rstored/cmd/internal/control"
	"github.com/rstored/rstored/cmd/internal/rados"
	"github.com/rstored/rstored/nfs/clock"
)

// joinCluster makes this process a node of the cluster in the setting cluster_pool, if there is one.
func (d *Daemon) joinCluster(cfg *config.Config) (err error) {
	if cfg.ClusterPool == "" {
		return nil
	}
	node := cfg.HANode
	if node == "" {
		if node, err = os.Hostname(); err != nil {
			return fmt.Errorf("ha_node is not set, and the host has no name: %w", err)
		}
	}
	where, err := place(cfg.StateDir)
	if err != nil {
		return err
	}
	pool, space, named := strings.Cut(cfg.ClusterPool, "/")
	if !named {
		space = "rstored"
	}
	// A node that cannot reach the storage is to know it before it counts as lost.
	d.rados, err = rados.Open(rados.Options{Pool: pool, Namespace: space, Timeout: cfg.ClusterTimeout / 2})
	if err != nil {
		return err
	}
	grace := cfg.GraceTime
	if grace == 0 {
		grace = cfg.LeaseTime
	}
	wait := 3*cfg.ClusterTimeout + startTime
	d.notify(d.manager.Starting("joining the cluster", wait))
	ctx, cancel := context.WithTimeout(context.Background(), wait)
	defer cancel()
	d.cluster, err = cluster.Open(ctx, cluster.Config{
		Store: d.rados, Node: node, Place: where, Timeout: cfg.ClusterTimeout, Grace: grace, Now: clock.Now,
		Reset: func(filesystem, session string) error {
			return cephfs.Reset(cephfs.Options{Filesystem: filesystem, Session: session})
		},
		Lost: d.leaseLost, Drained: d.drained, Log: d.log.Library("cluster"),
	})
	if err != nil {
		return fmt.Errorf("cluster: %w", err)
	}
	d.state.Share(d.cluster)
	return nil
}

// place is different for each boot of each host and each state directory.
func place(stateDir string) (string, error) {
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "", err
	}
	abs, err := filepath.Abs(stateDir)
	if err != nil {
		return "", err
	}
	var st unix.Stat_t
	if err := unix.Stat(abs, &st); err != nil {
		return "", err
	}
	sum := sha256.Sum256(fmt.Appendf(boot, "%s %d %d", abs, st.Dev, st.Ino))
	return hex.EncodeToString(sum[:8]), nil
}

// drained stops this process, because somebody has asked the node to leave the cluster.
func (d *Daemon) drained() {
	d.log.Info("this node was asked to leave the cluster")
	if err := unix.Kill(os.Getpid(), unix.SIGTERM); err != nil {
		d.log.Error("cannot stop", zap.Error(err))
	}
}

// followCluster applies changes of exports that other nodes make.
func (d *Daemon) followCluster() {
	if d.cluster == nil {
		return
	}
	d.cluster.Follow(func() error {
		if err := d.mayChange(); err != nil {
			return err // it is called again
		}
		defer d.mu.Unlock()
		d.log.Info("exports were changed at a node of the cluster")
		_ = d.ApplyExports(false) // errors are in the log and in the list
		return nil
	})
}

// closeExports closes the exports. In a cluster it waits before until no other node grants locks:
// those that clients have here are free then.
func (d *Daemon) closeExports(ctx context.Context) error {
	if d.cluster == nil {
		return d.ExportSet.Close()
	}
	if err := d.cluster.Leave(ctx); err != nil {
		d.cluster.Close()
		return fmt.Errorf("the other nodes of the cluster still grant locks, and will end the sessions of this one: %w",
			err)
	}
	err := errors.Join(d.ExportSet.Close(), d.cluster.Gone())
	d.rados.Close()
	return err
}

// errNoCluster is returned for requests about a cluster.
var errNoCluster = errors.New("this server is in no cluster: cluster_pool is not set")

// Cluster implements control.Backend.
func (d *Daemon) Cluster() (control.Cluster, error) {
	if d.cluster == nil {
		return control.Cluster{}, errNoCluster
	}
	s, ago := d.cluster.State()
	out := control.Cluster{
		Node: d.cluster.Node, Pool: d.cfg.Load().ClusterPool, Epoch: s.Current, Recovery: s.Recovery,
		Grace: d.cluster.Grace(), ReadSeconds: ago.Seconds(), Nodes: []control.ClusterNode{},
	}
	for _, id := range slices.Sorted(maps.Keys(s.Nodes)) {
		n := s.Nodes[id]
		x := control.ClusterNode{
			Node: id, Lost: n.Lost(), Epoch: n.Epoch, Need: n.Need, Drain: n.Drain,
			Enforces:   s.Recovery != 0 && !n.Lost() && n.Epoch == s.Current,
			Unreleased: len(n.Stale), By: n.By,
		}
		out.Nodes = append(out.Nodes, x)
	}
	return out, nil
}

// ClusterHealth implements control.Backend.
func (d *Daemon) ClusterHealth() control.ClusterHealth {
	out := control.ClusterHealth{Checks: []string{}, Lost: []string{}}
	if d.cluster == nil {
		return out
	}
	s, ago := d.cluster.State()
	out.Node, out.ReadSeconds = d.cluster.Node, ago.Seconds()
	for _, id := range slices.Sorted(maps.Keys(s.Nodes)) {
		if s.Nodes[id].Lost() {
			out.Lost = append(out.Lost, id)
		}
	}
	var health struct {
		Status string `json:"status"`
		Checks map[string]struct {
			Summary struct {
				Message string `json:"message"`
			} `json:"summary"`
		} `json:"checks"`
	}
	answer, err := d.rados.Command(`{"prefix": "health", "format": "json"}`)
	if err == nil {
		err = json.Unmarshal(answer, &health)
	}
	if err != nil {
		out.Error = err.Error()
		return out
	}
	out.Ceph = health.Status
	for _, code := range slices.Sorted(maps.Keys(health.Checks)) {
		out.Checks = append(out.Checks, code+": "+health.Checks[code].Summary.Message)
	}
	return out
}

// DrainNode implements control.Backend.
func (d *Daemon) DrainNode(node string) error {
	if d.cluster == nil {
		return errNoCluster
	}
	return d.cluster.Drain(node)
}
