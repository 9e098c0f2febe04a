package service

import (
	"crypto/sha256"
	"encoding/hex"
	"slices"
	"strconv"
	"time"

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
	nlm *nlm.Server
}

// Recovered also waits for clients of version 3, which reclaim by the lock manager.
func (r recovering) Recovered(now time.Time) bool { return r.Server.Recovered(now) && !r.nlm.Grace() }
