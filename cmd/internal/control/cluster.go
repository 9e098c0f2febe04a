package control

import (
	"context"
	"net/http"
)

// Cluster is a cluster of servers, as one of them has read its state last.
type Cluster struct {
	Node  string `json:"node"` // this one
	Pool  string `json:"pool"`
	Epoch uint64 `json:"epoch"`
	// Recovery is the epoch whose clients may reclaim; 0: there is no grace period.
	Recovery uint64 `json:"recovery"`
	// Grace says that this node grants nothing new: in a grace period, or because it cannot show the
	// others that it lives.
	Grace       bool          `json:"grace"`
	ReadSeconds float64       `json:"read_seconds"` // since the state was read
	Nodes       []ClusterNode `json:"nodes"`
}

// ClusterNode is a server of a cluster.
type ClusterNode struct {
	Node  string `json:"node"`
	Lost  bool   `json:"lost"`
	Epoch uint64 `json:"epoch"` // of its records
	// Need says that its clients have not reclaimed yet, and Enforces that it grants nothing new.
	Need     bool `json:"need"`
	Enforces bool `json:"enforces"`
	Drain    bool `json:"drain"` // it was asked to leave
	// Unreleased is the number of its processes that ended, and whose locks in the file system remain.
	Unreleased int    `json:"unreleased"`
	By         string `json:"by,omitempty"` // the node that recovers the clients of a lost one
}

// ClusterHealth is what is not well in a cluster of servers and in the Ceph below it.
type ClusterHealth struct {
	Node string `json:"node"` // this one; "": the server is in no cluster
	// Ceph is HEALTH_OK, HEALTH_WARN or HEALTH_ERR, or empty with Error: the monitors do not answer.
	Ceph  string `json:"ceph"`
	Error string `json:"error,omitempty"`
	// Checks are Ceph's, such as "MDS_ALL_DOWN: 1 filesystem is offline", in order.
	Checks []string `json:"checks"`
	// Lost are servers whose clients reclaim, and ReadSeconds the time since the state was read.
	Lost        []string `json:"lost"`
	ReadSeconds float64  `json:"read_seconds"`
}

// ClusterBackend is the part of a Backend for servers of a cluster.
type ClusterBackend interface {
	Cluster() (Cluster, error)
	// DrainNode asks a node to leave. It returns before the node has left.
	DrainNode(node string) error
	// ClusterHealth asks the monitors of Ceph.
	ClusterHealth() ClusterHealth
}

func clusterRoutes(b ClusterBackend) map[string]http.HandlerFunc {
	return map[string]http.HandlerFunc{
		"GET /v1/cluster":        get(func(*http.Request) (any, error) { return b.Cluster() }),
		"GET /v1/cluster/health": answer(b.ClusterHealth),
		"POST /v1/cluster/drain": order(func(r *http.Request) error { return b.DrainNode(r.FormValue("node")) }),
	}
}

// Cluster returns the state of the cluster.
func (d *Dialer) Cluster(ctx context.Context) (Cluster, error) {
	return send[Cluster](ctx, d, http.MethodGet, "/v1/cluster", nil)
}

// ClusterHealth asks what is not well in the cluster.
func (d *Dialer) ClusterHealth(ctx context.Context) (ClusterHealth, error) {
	return ask[ClusterHealth](ctx, d, "/v1/cluster/health")
}

// DrainNode asks a node to leave the cluster.
func (d *Dialer) DrainNode(ctx context.Context, node string) error {
	return d.order(ctx, http.MethodPost, "/v1/cluster/drain", nil, "node", node)
}
