package service

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"slices"
	"strconv"
	"time"

	"github.com/rstored/rstored/cmd/internal/cluster"
	"github.com/rstored/rstored/nfs/clock"
	"github.com/rstored/rstored/nfs/nfs4"
	"github.com/rstored/rstored/nfs/nlm"
	"github.com/rstored/rstored/nfs/state"
)

// session is exports.Config.Session. Alone, a server has one name: the next process ends what the one
// before had, also on another node that shares the state directory. In a cluster each process has a
// name of its own, which the other nodes know.
func (s *Service) session(secret []byte) func(string, uint32) (string, error) {
	if s.Cluster != nil {
		return s.Cluster.Session
	}
	sum := sha256.Sum256(append([]byte("rstored storage client\x00"), secret...))
	return func(_ string, export uint32) (string, error) {
		return "rstored-" + hex.EncodeToString(sum[:8]) + "/" + strconv.FormatUint(uint64(export), 10), nil
	}
}

// join makes the server of version 4 one of a cluster: the scope is the cluster's, as file handles
// are, and the owner is the node's.
func (s *Service) join(c *nfs4.Config, secret []byte) {
	c.Scope, c.Identity = secret, slices.Concat(secret, []byte{0}, []byte(s.Cluster.Node))
	c.Known, c.Cluster = s.Cluster.Owners(), s.Cluster
	c.Journal = &loggedJournal{Journal: s.Cluster, log: s.Log.Library("nfs")}
}

// recovering implements cluster.Clients.
type recovering struct {
	*state.Server
	nlm     *nlm.Server
	cluster *cluster.Cluster
}

// attach lets clients that were served here before reclaim, and those of nodes that are lost later.
func (s *Service) attach() {
	r := recovering{s.NFS4.State(), s.NLM, s.Cluster}
	r.beginHosts(s.Cluster.Hosts(), clock.Now().Add(s.Cluster.Config.Grace))
	s.Cluster.Attach(r)
}

// BeginReclaim implements cluster.Clients.
func (r recovering) BeginReclaim(owners, hosts []string, until time.Time) {
	r.Server.BeginReclaim(owners, until)
	r.beginHosts(hosts, until)
}

func (r recovering) beginHosts(hosts []string, until time.Time) {
	list := make([]nlm.Client, 0, len(hosts))
	for _, h := range hosts {
		var c nlm.Client
		if json.Unmarshal([]byte(h), &c) == nil { // a later version may write others
			list = append(list, c)
		}
	}
	r.nlm.BeginReclaim(list, until, r.cluster.LockState())
}

// ForgetReclaims implements cluster.Clients.
func (r recovering) ForgetReclaims() {
	r.Server.ForgetReclaims()
	r.nlm.EndGrace()
}

// rememberHosts is nlm.Config.Remember.
func (s *Service) rememberHosts(list []nlm.Client) error {
	hosts := make([]string, 0, len(list))
	for i := range list {
		b, err := json.Marshal(&list[i])
		if err != nil {
			return err
		}
		hosts = append(hosts, string(b))
	}
	return s.Cluster.SetHosts(hosts)
}

// Recovered also waits for clients of version 3, which reclaim by the lock manager.
func (r recovering) Recovered(now time.Time) bool { return r.Server.Recovered(now) && !r.nlm.Grace() }
