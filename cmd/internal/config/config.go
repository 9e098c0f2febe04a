package config

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/rstored/rstored/cmd/internal/safepath"
	"github.com/rstored/rstored/rdma/provider"
)

// Default ports: NFS over RDMA (RFC 8267 section 9) and NFS over TCP.
const (
	RDMAPort = 20049
	TCPPort  = 2049
	// PortmapPort is that of portmap and rpcbind (RFC 1833).
	PortmapPort = 111
	// OpsPort is where metrics are, unless configured otherwise. There is no usual one.
	OpsPort = 9049
	// ControlPort is where other hosts control the daemon, likewise.
	ControlPort = 9048
)

// SystemFile is the configuration file that is read when no other is named.
const SystemFile = "/etc/rstored/rstored.yaml"

// Config is the whole configuration. The field tags are its keys in the file;
// the environment spells them RSTORED_STATE_DIR, the flags --state-dir.
type Config struct {
	// Exports to serve. The first also appears at "/".
	Exports []Export `mapstructure:"exports" yaml:"exports"`
	// ExportsFile is an export table in the syntax of exports(5), whose exports are served
	// as well; the tables in its .d directory belong to it. Empty: there is none.
	ExportsFile string `mapstructure:"exports_file" yaml:"exports_file,omitempty"`
	// RDMAListen and TCPListen are the addresses to serve NFS and MOUNT on,
	// ADDR:PORT. An empty or unspecified ADDR means every address of the host. Those of RDMA may say
	// who provides the device, see ParseRDMAListen.
	RDMAListen []string `mapstructure:"rdma_listen" yaml:"rdma_listen"`
	TCPListen  []string `mapstructure:"tcp_listen" yaml:"tcp_listen"`
	// RDMAProvider is who provides the RDMA devices of listeners that do not say it: a provider.Kind.
	RDMAProvider string `mapstructure:"rdma_provider" yaml:"rdma_provider"`
	// MountListen are further TCP addresses that serve the same programs, for
	// clients that want MOUNT on a port of its own.
	MountListen []string `mapstructure:"mount_listen" yaml:"mount_listen"`
	// PortmapListen are addresses (normally ADDR:111) that answer portmap and
	// rpcbind queries. Empty: none.
	PortmapListen []string `mapstructure:"portmap_listen" yaml:"portmap_listen"`
	// UDPListen are addresses (normally ADDR:111) that answer the port mapper's queries, MOUNT, locks
	// and quotas by UDP. Empty: none.
	UDPListen []string `mapstructure:"udp_listen" yaml:"udp_listen"`
	// PKeys are the partition keys of the RDMA devices (see ParsePKey); the first is that
	// of connections that ask for none.
	PKeys []string `mapstructure:"pkeys" yaml:"pkeys"`
	// RDMACNPDSCP is the DSCP of congestion notifications of devices in user space; 0 is that of the
	// connection.
	RDMACNPDSCP int `mapstructure:"rdma_cnp_dscp" yaml:"rdma_cnp_dscp"`
	// RDMALocalICRC keeps the ICRC in packets to and from processes on this host.
	RDMALocalICRC bool `mapstructure:"rdma_local_icrc" yaml:"rdma_local_icrc"`
	// StateDir holds what must survive a restart: the handle secret, the table
	// of handles, and the exports and ports added at run time.
	StateDir string `mapstructure:"state_dir" yaml:"state_dir"`
	// Control is the path of the control socket. ControlGroup may use it, beside
	// root and the user the daemon runs as.
	Control      string `mapstructure:"control" yaml:"control"`
	ControlGroup string `mapstructure:"control_group" yaml:"control_group"`
	// ControlTLS is control from other hosts.
	ControlTLS ControlTLS `mapstructure:"control_tls" yaml:"control_tls"`
	LogLevel   string     `mapstructure:"log_level" yaml:"log_level"`
	LogFormat  string     `mapstructure:"log_format" yaml:"log_format"`
	// Shards is the number of packet loops per RDMA device, 0 for a default.
	Shards int `mapstructure:"shards" yaml:"shards"`
	// Workers is the number of calls that may wait for storage at once, 0 for a
	// default.
	Workers int `mapstructure:"workers" yaml:"workers"`
	// MaxConnections is the number of connections at each port; more are refused.
	// MaxClients is the number of addresses that they come from, at all ports, and
	// MaxClientConnections how many each of those may have; 0 is no limit.
	MaxConnections       int `mapstructure:"max_connections" yaml:"max_connections"`
	MaxClients           int `mapstructure:"max_clients" yaml:"max_clients"`
	MaxClientConnections int `mapstructure:"max_client_connections" yaml:"max_client_connections"`
	// Memory is what the connections over RDMA of all ports share, in bytes as 512M.
	Memory string `mapstructure:"memory" yaml:"memory"`
	// NFS4Memory bounds what clients of version 4 can make the server remember, in bytes as 1G,
	// NFS4ClientMemory that of one host.
	NFS4Memory       string `mapstructure:"nfs4_memory" yaml:"nfs4_memory"`
	NFS4ClientMemory string `mapstructure:"nfs4_client_memory" yaml:"nfs4_client_memory"`
	// MappedMemory bounds the page cache that all exports lend to RDMA, in bytes as 4G; 0 is none.
	MappedMemory string `mapstructure:"mapped_memory" yaml:"mapped_memory"`
	// SlowTimeout ends connections whose client takes nothing.
	SlowTimeout time.Duration `mapstructure:"slow_timeout" yaml:"slow_timeout"`
	// LeaseTime is how long a client of NFS version 4 may be silent before others can
	// have what it has open or locked. GraceTime is how long clients may reclaim that
	// after a restart; 0 means a lease.
	LeaseTime time.Duration `mapstructure:"lease_time" yaml:"lease_time"`
	GraceTime time.Duration `mapstructure:"grace_time" yaml:"grace_time"`
	// NFSVersions are the versions of NFS that are served: 3, 4.0, 4.1, 4.2.
	NFSVersions []string `mapstructure:"nfs_versions" yaml:"nfs_versions"`
	// IDMap is how version 4 calls users and groups.
	IDMap IDMap `mapstructure:"idmap" yaml:"idmap"`
	// CopyPartners are the servers from which this one copies files for clients, and that may read
	// its files for a copy, as ADDR, CIDR or ADDR:PORT. Empty: there are no copies between servers.
	CopyPartners []string `mapstructure:"copy_partners" yaml:"copy_partners,omitempty"`
	// UTF8 says which names version 4 lets files have: UTF8Any or UTF8Strict.
	UTF8 string `mapstructure:"utf8" yaml:"utf8"`
	// HALease is the term of the lease on a StateDir that several nodes share; 0 means that it is of
	// one node. HANode is the name of this node, or empty for the host's name.
	HALease time.Duration `mapstructure:"ha_lease" yaml:"ha_lease"`
	HANode  string        `mapstructure:"ha_node" yaml:"ha_node"`
	// HAListen is HOST:PORT, at an address of this node alone, where a standby takes over from the
	// node that serves. HAPromote says when a standby takes a free lease: PromoteAuto,
	// PromoteAddress or PromoteManual.
	HAListen  string `mapstructure:"ha_listen" yaml:"ha_listen"`
	HAPromote string `mapstructure:"ha_promote" yaml:"ha_promote"`
	// ClusterPool is the pool of RADOS, POOL or POOL/NAMESPACE, by which servers in front of one CephFS
	// are a cluster; empty: this one is alone. ClusterTimeout is how long a node of it may be silent.
	ClusterPool    string        `mapstructure:"cluster_pool" yaml:"cluster_pool"`
	ClusterTimeout time.Duration `mapstructure:"cluster_timeout" yaml:"cluster_timeout"`
	// StopTimeout bounds the graceful stop.
	StopTimeout time.Duration `mapstructure:"stop_timeout" yaml:"stop_timeout"`
	// OpsListen are addresses that answer Prometheus and health checks by HTTP. OpsPprof lets
	// whoever reaches them profile the process; OpsClients is how many clients have metrics of
	// their own.
	// OpsHosts are the names that requests there may be for, besides addresses, localhost and the
	// host's own.
	OpsListen  []string `mapstructure:"ops_listen" yaml:"ops_listen"`
	OpsHosts   []string `mapstructure:"ops_hosts" yaml:"ops_hosts"`
	OpsPprof   bool     `mapstructure:"ops_pprof" yaml:"ops_pprof"`
	OpsClients int      `mapstructure:"ops_clients" yaml:"ops_clients"`
	// Audit is where mounts, clients and changes are written down; see ParseAudit.
	Audit string `mapstructure:"audit" yaml:"audit"`
	// OTLP is for traces of calls.
	OTLP OTLP `mapstructure:"otlp" yaml:"otlp"`
	// TLS is for NFS over TCP.
	TLS TLS `mapstructure:"tls" yaml:"tls"`
	// Kerberos is for exports with sec=krb5, krb5i or krb5p.
	Kerberos Kerberos `mapstructure:"kerberos" yaml:"kerberos"`
	// ShowMount says what clients see of the lists of exports and mounts of MOUNT: ShowOwn or ShowAll.
	ShowMount string `mapstructure:"showmount" yaml:"showmount"`
	// Root names the export that version 3 finds at "/", too; empty is the first that was there.
	Root string `mapstructure:"root" yaml:"root"`
	// Perf is for measurements of the network.
	Perf Perf `mapstructure:"perf" yaml:"perf"`

	// File is where the configuration was read from, empty if from no file.
	File string `mapstructure:"-" yaml:"-"`
	// Warnings are about the export table, and what it wants of TLS.
	Warnings []string `mapstructure:"-" yaml:"-"`
}

// Log formats.
const (
	LogAuto    = "auto"    // console on a terminal, JSON elsewhere
	LogConsole = "console" // for people
	LogJSON    = "json"    // for machines
)

// Default is the configuration that no file, variable or flag has touched. It
// depends on who runs the daemon: root gets the system's directories, everyone
// else directories of their own.
func Default() *Config {
	return &Config{
		RDMAListen: []string{fmt.Sprintf(":%d", RDMAPort)},
		TCPListen:  []string{fmt.Sprintf(":%d", TCPPort)},

		RDMAProvider: provider.Auto.String(),

		PKeys:       []string{DefaultPKey},
		StateDir:    defaultStateDir(),
		Control:     DefaultControl(),
		LogLevel:    "info",
		LogFormat:   LogAuto,
		LeaseTime:   90 * time.Second,
		StopTimeout: 10 * time.Second,

		ControlTLS: ControlTLS{Listen: []string{}, Admins: []string{}, Readers: []string{}},
		OpsListen:  []string{},
		OpsHosts:   []string{},
		OpsClients: 100,
		Audit:      AuditLog,
		OTLP:       OTLP{Sample: defaultSample},

		MaxConnections: 4096,
		Memory:         "512M",
		SlowTimeout:    time.Minute,
		NFSVersions:    slices.Clone(nfsVersions),
		IDMap:          IDMap{Method: IDNumeric},
		UTF8:           UTF8Any,
		ShowMount:      ShowOwn,
		HAPromote:      PromoteAuto,
		ClusterTimeout: 10 * time.Second,
		TLS:            TLS{XprtSec: slices.Clone(xprtsecs)},
		Perf:           defaultPerf(),

		MaxClientConnections: 512,

		MappedMemory:     "4G",
		NFS4Memory:       "1G",
		NFS4ClientMemory: "256M",
	}
}

func defaultStateDir() string {
	if d := os.Getenv("STATE_DIRECTORY"); d != "" { // set by systemd
		return d
	}
	if os.Geteuid() == 0 {
		return "/var/lib/rstored"
	}
	if d := os.Getenv("XDG_STATE_HOME"); d != "" {
		return filepath.Join(d, "rstored")
	}
	if home, err := os.UserHomeDir(); err == nil {
		return filepath.Join(home, ".local", "state", "rstored")
	}
	return "" // Validate wants one; a directory that others may have made is none
}

// Where the control socket is: that of root and of the service, and its name.
const (
	controlName   = "rstored.sock"
	systemControl = "/run/rstored/" + controlName
)

// DefaultControl is the control socket's path where none is configured: of a user without a runtime
// directory it is in the state directory, as no other place is known to be the user's alone.
func DefaultControl() string {
	if d := os.Getenv("RUNTIME_DIRECTORY"); d != "" { // set by systemd
		return filepath.Join(d, controlName)
	}
	if os.Geteuid() == 0 {
		return systemControl
	}
	if d := os.Getenv("XDG_RUNTIME_DIR"); d != "" {
		return filepath.Join(d, "rstored", controlName)
	}
	if d := defaultStateDir(); d != "" {
		return filepath.Join(d, controlName)
	}
	return systemControl
}

// FindControl is the socket that rstorectl uses where none is named: that of the user's own daemon
// if there is one, or else that of root and of the service. A directory that others can change has
// none.
func FindControl() string {
	own := DefaultControl()
	_, err := os.Lstat(own)
	if own == systemControl || err == nil && safepath.Check(filepath.Dir(own), uint32(os.Geteuid())) == nil {
		return own
	}
	if _, err := os.Lstat(systemControl); err == nil {
		return systemControl
	}
	return own
}

// Bounds of the numeric settings. maxSocketPath is sun_path less its NUL.
const (
	maxShards      = 64
	maxWorkers     = 4096
	maxConnections = 65536
	maxOpsClients  = 10_000
	maxSocketPath  = 107

	minMemory = 16 << 20 // rpcrdma.MemoryMin
	maxMemory = 1 << 40
	minSlow   = time.Second
	maxSlow   = time.Hour

	// Those of the kernel's server.
	minLease = 10 * time.Second
	maxLease = time.Hour
)

// MemoryBytes is Memory in bytes.
func (c *Config) MemoryBytes() int {
	n, _ := ParseRate(c.Memory) // Validate has seen it
	return int(n)
}

// YAML is the configuration as a file that Load would read back. The exports of the export
// table stay there.
func (c *Config) YAML() ([]byte, error) {
	own := *c
	own.Exports = slices.DeleteFunc(slices.Clone(c.Exports), func(e Export) bool { return e.Source != "" })
	return yaml.Marshal(&own)
}
