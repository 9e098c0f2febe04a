package config

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/rstored/rstored/rdma/provider"
)

// Bounds of HALease and HANode. A shorter lease would be lost to a busy host.
const (
	minHALease = time.Second
	maxHALease = time.Minute
	// A shorter timeout would count nodes as lost whose storage is busy.
	minClusterTimeout = 2 * time.Second
	maxClusterTimeout = 5 * time.Minute
	maxHANode         = 64
)

// Validate checks everything that can be checked without starting, and brings exports into their
// full form (see Export.Normalize). Its error has everything that is wrong, one error for each key,
// which begins with the key.
func (c *Config) Validate() error {
	var bad []error
	add := func(err error) {
		if err != nil {
			bad = append(bad, err)
		}
	}
	addf := func(format string, a ...any) { add(fmt.Errorf(format, a...)) }
	seen := make(map[string]string)
	for i := range c.Exports {
		e := &c.Exports[i]
		if err := e.Normalize(); err != nil {
			addf("exports[%d]: %w", i, err)
			continue
		}
		if other, dup := seen[e.Pseudo]; dup {
			addf("exports[%d]: %s and %s would both appear at %s; give one another pseudo path",
				i, other, e.Path, e.Pseudo)
		}
		seen[e.Pseudo] = e.Path
	}
	for _, l := range []struct {
		key   string
		addrs []string
	}{
		{"rdma_listen", c.RDMAListen},
		{"tcp_listen", c.TCPListen},
		{"mount_listen", c.MountListen},
		{"portmap_listen", c.PortmapListen},
		{"udp_listen", c.UDPListen},
		{"ops_listen", c.OpsListen},
		{"control_tls.listen", c.ControlTLS.Listen},
	} {
		for _, a := range l.addrs {
			parse := ParseListen
			if l.key == "rdma_listen" {
				parse = ParseRDMAListen
			}
			if _, err := parse(a); err != nil {
				addf("%s: %w", l.key, err)
			}
		}
	}
	if kind, err := provider.Parse(c.RDMAProvider); err != nil {
		addf("rdma_provider: %w", err)
	} else {
		c.RDMAProvider = kind.String()
	}
	if c.RDMACNPDSCP < 0 || c.RDMACNPDSCP > 63 {
		addf("rdma_cnp_dscp: %d is not a DSCP, which is 0 to 63", c.RDMACNPDSCP)
	}
	if len(c.PKeys) == 0 {
		addf("pkeys: a device is in one partition at least; the default is %s", DefaultPKey)
	}
	if err := normalizePKeys(c.PKeys); err != nil {
		addf("pkeys: %w", err)
	}
	if list, err := normalizeVersions(c.NFSVersions); err != nil {
		addf("nfs_versions: %w", err)
	} else {
		c.NFSVersions = list
	}
	if err := c.IDMap.validate(); err != nil {
		addf("idmap: %w", err)
	}
	if _, err := ParseAudit(c.Audit); err != nil {
		addf("audit: %w", err)
	}
	if err := c.OTLP.validate(); err != nil {
		addf("otlp: %w", err)
	}
	add(c.validateSecurity())
	add(c.Perf.validate(c.RDMAListen))
	if err := c.ControlTLS.validate(); err != nil {
		addf("control_tls: %w", err)
	}
	if n, err := ParseRate(c.Memory); err != nil || n < minMemory || n > maxMemory {
		addf("memory: %q is not a number of bytes from 16M to 1T", c.Memory)
	}
	add(c.validateMapped())
	add(c.validateNFS4Memory())
	add(c.validateCopyPartners())
	switch {
	case c.StateDir == "":
		addf("state_dir: a directory is needed to keep handles valid over restarts")
	case !filepath.IsAbs(c.StateDir):
		addf("state_dir: %q is not an absolute path", c.StateDir)
	}
	switch {
	case c.Control == "":
		addf("control: the path of the control socket is empty")
	case len(c.Control) > maxSocketPath:
		addf("control: %q is %d bytes long, but a socket's path has at most %d",
			c.Control, len(c.Control), maxSocketPath)
	}
	if c.Shards < 0 || c.Shards > maxShards || c.Shards&(c.Shards-1) != 0 {
		addf("shards: %d is not a power of two up to %d", c.Shards, maxShards)
	}
	if c.MaxClients < 0 || c.MaxClientConnections < 0 {
		addf("max_clients, max_client_connections: %d, %d: neither can be negative",
			c.MaxClients, c.MaxClientConnections)
	}
	if c.GraceTime != 0 && (c.GraceTime < c.LeaseTime || c.GraceTime > maxLease) {
		// A client learns of a restart when it renews its lease.
		addf("grace_time: %v is not within lease_time (%v) to %v, nor 0", c.GraceTime, c.LeaseTime, maxLease)
	}
	if c.HALease != 0 && (c.HALease < minHALease || c.HALease > maxHALease) {
		addf("ha_lease: %v is not within %v to %v, nor 0", c.HALease, minHALease, maxHALease)
	}
	if len(c.HANode) > maxHANode {
		addf("ha_node: a name of %d bytes is too long: at most %d", len(c.HANode), maxHANode)
	}
	if c.ClusterPool != "" && (c.HALease != 0 || strings.HasPrefix(c.ClusterPool, "/")) {
		addf("cluster_pool: %q is not POOL or POOL/NAMESPACE, or ha_lease is set, too", c.ClusterPool)
	}
	if c.ClusterTimeout < minClusterTimeout || c.ClusterTimeout > maxClusterTimeout {
		addf("cluster_timeout: %v is not within %v to %v", c.ClusterTimeout, minClusterTimeout, maxClusterTimeout)
	}
	if c.HAListen != "" {
		if host, _, err := net.SplitHostPort(c.HAListen); err != nil || host == "" {
			addf("ha_listen: %q is not HOST:PORT", c.HAListen)
		}
	}
	if c.HAPromote == PromoteAddress && len(c.MovingAddresses()) == 0 {
		addf("ha_promote: %s needs an address in rdma_listen or tcp_listen", PromoteAddress)
	}
	if c.StopTimeout < 0 {
		addf("stop_timeout: %v is negative", c.StopTimeout)
	}
	for _, err := range []error{
		oneOf("log_level", c.LogLevel, "debug", "info", "warn", "error"),
		oneOf("log_format", c.LogFormat, LogAuto, LogConsole, LogJSON),
		oneOf("utf8", c.UTF8, UTF8Any, UTF8Strict),
		oneOf("ha_promote", c.HAPromote, PromoteAuto, PromoteAddress, PromoteManual),
		oneOf("showmount", c.ShowMount, ShowOwn, ShowAll),
		within("workers", c.Workers, 0, maxWorkers),
		within("ops_clients", c.OpsClients, 0, maxOpsClients),
		within("max_connections", c.MaxConnections, 1, maxConnections),
		within("slow_timeout", c.SlowTimeout, minSlow, maxSlow),
		within("lease_time", c.LeaseTime, minLease, maxLease),
	} {
		add(err)
	}
	return errors.Join(bad...)
}

func within[T cmp.Ordered](key string, v, low, high T) error {
	if v < low || v > high {
		return fmt.Errorf("%s: %v is not within %v to %v", key, v, low, high)
	}
	return nil
}

func oneOf(key, v string, values ...string) error {
	switch {
	case slices.Contains(values, v):
		return nil
	case len(values) == 2:
		return fmt.Errorf("%s: %q is neither %s nor %s", key, v, values[0], values[1])
	}
	return fmt.Errorf("%s: %q is not one of %s", key, v, strings.Join(values, ", "))
}
