package control

import (
	"context"
	"io"
	"time"

	"github.com/rstored/rstored/cmd/internal/config"
	"github.com/rstored/rstored/cmd/internal/live"
)

// Origins of exports and ports.
const (
	OriginConfig  = "config"  // file, environment or flags
	OriginRuntime = "runtime" // added or changed by rstorectl
	OriginTable   = "table"   // from the export table, see exports_file
	OriginMount   = "mount"   // mounted below an export with crossmnt
	// OriginSnapshot is a snapshot of an export, or the directory with its snapshots.
	OriginSnapshot = "snapshot"
	OriginApplied  = "applied" // from a file that was applied, see rstorectl apply
)

// Export is an export as the daemon serves it.
type Export struct {
	ID uint32 `json:"id"`
	config.Export
	// Aliases are further paths it can be mounted by.
	Aliases []string `json:"aliases"`
	Origin  string   `json:"origin"`
	// Error is why the export is not served; empty if it is.
	Error string `json:"error,omitempty"`
	// Warning is what is wrong although the export is served: its file system is full or does not
	// answer, or its directory cannot be read.
	Warning string `json:"warning,omitempty"`
	// Identity is what file handles depend on besides the UUID of the file system: IdentityDevice or
	// IdentityState. It is empty if they depend on nothing else, or on the option fsid.
	Identity string `json:"identity,omitempty"`
}

// Values of Export.Identity.
const (
	IdentityDevice = "device" // the filesystem has no UUID: the number of its device
	IdentityState  = "state"  // the UUID is another filesystem's too, or was not known at first: the state directory
)

// Derived reports whether the export follows from another one, whose rules it has.
func (e *Export) Derived() bool { return e.Origin == OriginMount || e.Origin == OriginSnapshot }

// ExportPatch changes an export; nil fields stay as they are. Clients comes before the changes of
// ExportEdit.
type ExportPatch struct {
	ReadOnly  *bool            `json:"read_only,omitempty"`
	Async     *bool            `json:"async,omitempty"`
	HostLocks *bool            `json:"host_locks,omitempty"`
	Clients   *[]config.Client `json:"clients,omitempty"`
	config.ExportEdit
}

// Empty reports whether the patch changes nothing.
func (p *ExportPatch) Empty() bool {
	return p.ReadOnly == nil && p.Async == nil && p.HostLocks == nil && p.Clients == nil && p.ExportEdit.Empty()
}

// Transports of ports.
const (
	TransportRDMA    = "rdma"
	TransportTCP     = "tcp"
	TransportPortmap = "portmap"
	TransportUDP     = "udp"     // the port mapper and the programs around NFS
	TransportPerf    = "perf"    // measurements over RDMA
	TransportOps     = "ops"     // metrics and health checks by HTTP
	TransportControl = "control" // this interface, over TLS
)

// Transports has all of them, in the order in which people are shown them.
var Transports = []string{
	TransportRDMA, TransportTCP, TransportPortmap, TransportUDP, TransportPerf, TransportOps, TransportControl,
}

// PortSpec names a port: a transport and where it listens.
type PortSpec struct {
	Transport string `json:"transport"`
	Listen    string `json:"listen"`
}

// Port is a port as the daemon serves it.
type Port struct {
	PortSpec
	// Addresses are the actual addresses. There are several if Listen stands for every address of
	// the host.
	Addresses []string `json:"addresses"`
	Origin    string   `json:"origin"`
	// Devices are the RDMA devices of Addresses, in the same order. Other transports have none.
	Devices []string `json:"devices,omitempty"`
	// Waiting are addresses or devices without an RDMA device in the kernel. The daemon serves them
	// when the kernel has the device.
	Waiting []string `json:"waiting,omitempty"`
	// Error is the failure of some addresses or of all.
	Error string `json:"error,omitempty"`
}

// PKey is a partition of the RDMA devices.
type PKey struct {
	PKey       string `json:"pkey"`
	Membership string `json:"membership"` // full or limited
	Origin     string `json:"origin"`
}

// Status is the state of the daemon.
type Status struct {
	Version       string    `json:"version"`
	State         string    `json:"state"`
	PID           int       `json:"pid"`
	Started       time.Time `json:"started"`
	UptimeSeconds int64     `json:"uptime_seconds"`
	Config        string    `json:"config"`
	StateDir      string    `json:"state_dir"`
	LogLevel      string    `json:"log_level"`
	Exports       int       `json:"exports"`
	Ports         int       `json:"ports"`
	Clients       int       `json:"clients"`
	Devices       []string  `json:"devices"`
	Problems      []string  `json:"problems"`
	// Providers are the RDMA providers of the program.
	Providers []Provider `json:"rdma_providers"`
	// TLS is for NFS over TCP, nil if it is not offered.
	TLS *TLS `json:"tls,omitempty"`
	// NFS4Memory is the state of clients of version 4.
	NFS4Memory NFS4Memory `json:"nfs4_memory"`
	// Lease is the lease on a state directory that nodes share, nil if they do not.
	Lease *Lease `json:"lease,omitempty"`
	// Process is the memory of the process.
	Process ProcessMemory `json:"process_memory"`
}

// Lease is the lease of this node on the state directory.
type Lease struct {
	Node    string        `json:"node"`
	Epoch   uint64        `json:"epoch"` // claims so far, by any node
	Term    time.Duration `json:"term"`
	Renewed time.Duration `json:"renewed"` // ago
	Slowest time.Duration `json:"slowest"` // renewal
	Held    time.Duration `json:"held"`    // since this node claimed it
}

// Provider is a provider of RDMA.
type Provider struct {
	Name  string `json:"name"`            // soft or verbs
	Error string `json:"error,omitempty"` // why it cannot be used nevertheless
}

// TLS describes TLS of NFS over TCP.
type TLS struct {
	Certificate string    `json:"certificate"` // files
	Key         string    `json:"key"`
	ClientCA    string    `json:"client_ca,omitempty"`
	Subject     string    `json:"subject"`
	Names       []string  `json:"names"` // DNS names and addresses of the certificate
	NotBefore   time.Time `json:"not_before"`
	NotAfter    time.Time `json:"not_after"` // of the certificate or its chain, whichever ends first
	// ClientCANotAfter is when the last authority of clients expires.
	ClientCANotAfter *time.Time `json:"client_ca_not_after,omitempty"`
	Loaded           time.Time  `json:"loaded"` // when the files in use were read
	Loads            uint64     `json:"loads"`
	Failures         uint64     `json:"failures"` // changed files that could not be used
	// Error is why the current files cannot be used. The earlier ones stay in use.
	Error  string    `json:"error,omitempty"`
	Counts TLSCounts `json:"counts"`
}

// TLSCounts are counts since the daemon's start.
type TLSCounts struct {
	Probes     uint64            `json:"probes"` // clients that asked for TLS
	Handshakes uint64            `json:"handshakes"`
	Mutual     uint64            `json:"mutual"` // of those, with a verified certificate
	Failed     map[string]uint64 `json:"failed"` // by reason
}

// Values of Status.State.
const (
	StateRunning  = "running"
	StateDegraded = "degraded" // it serves, but Status.Problems is not empty
	StateDraining = "draining"
)

// Client is one connection of a client.
type Client struct {
	Address   string    `json:"address"`
	Local     string    `json:"local"`
	Transport string    `json:"transport"`
	Since     time.Time `json:"since"`
	Calls     uint64    `json:"calls"`
	// XprtSec is the protection of a TCP connection: none, tls or mtls. Name is the name in the
	// client's certificate.
	XprtSec string `json:"xprtsec,omitempty"`
	Name    string `json:"name,omitempty"`
	// RDMA has the fields of connections over RDMA, nil for others.
	RDMA *ClientRDMA `json:"rdma,omitempty"`
}

// ClientRDMA describes a connection over RDMA. Sizes are in bytes.
type ClientRDMA struct {
	Credits            int    `json:"credits"` // granted last
	InUse              int    `json:"in_use"`  // calls in progress
	Memory             int    `json:"memory"`  // held by calls in progress
	ReadDepth          int    `json:"read_depth"`
	InlineIn           int    `json:"inline_in"`
	InlineOut          int    `json:"inline_out"`
	RDMAWriteBytes     uint64 `json:"rdma_write_bytes"`
	RDMAReadBytes      uint64 `json:"rdma_read_bytes"`
	RemoteInvalidation bool   `json:"remote_invalidation"`
}

// Stats are counters since the daemon's start.
type Stats struct {
	UptimeSeconds int64 `json:"uptime_seconds"`
	// RDMAWriteBytes were sent by RDMA WRITE (READs of clients), RDMAReadBytes were fetched by RDMA
	// READ (WRITEs of clients).
	RDMAWriteBytes uint64 `json:"rdma_write_bytes"`
	RDMAReadBytes  uint64 `json:"rdma_read_bytes"`
	// LentBytes of RDMAWriteBytes were sent from the page cache, without a copy.
	LentBytes uint64 `json:"lent_bytes"`
	// InlineBytes are the bytes of RPC-over-RDMA messages, headers included, in both directions.
	InlineBytes uint64 `json:"inline_bytes"`
	// TCPBytes are the bytes over TCP, in both directions.
	TCPBytes uint64            `json:"tcp_bytes"`
	Messages map[string]uint64 `json:"messages"` // RPC-over-RDMA messages by type
	Errors   map[string]uint64 `json:"errors"`   // everything that went wrong, by kind; zeros left out
	// Refused counts refused connections by reason; zeros are left out.
	Refused map[string]uint64 `json:"refused"`
	// Addresses is the number of client addresses with connections now.
	Addresses int `json:"addresses"`
	// Memory is what the connections over RDMA share.
	Memory Memory `json:"memory"`
	// NFS4Memory is the state of clients of version 4.
	NFS4Memory NFS4Memory        `json:"nfs4_memory"`
	Process    ProcessMemory     `json:"process_memory"`
	Events     map[string]uint64 `json:"events"` // what was not as usual, but not wrong, by kind; zeros left out
	// Procs are the calls served, keyed "nfs3.READ".
	Procs map[string]Proc `json:"procs"`
	// Devices are the counters of each RDMA device, by its address.
	Devices map[string]map[string]uint64 `json:"devices"`
}

// Memory is the use of the memory for RDMA, in bytes.
type Memory struct {
	Limit    int `json:"limit"`
	Messages int `json:"messages"` // of the receives of connections
	Bulk     int `json:"bulk"`     // of calls in progress
	Peak     int `json:"peak"`     // the most of both together
	Waiting  int `json:"waiting"`  // connections that wait for memory
	Share    int `json:"share"`    // credits of each connection when memory is short
}

// ProcessMemory is the memory of the process as the kernel counts it (proc_pid_status(5)), in
// bytes.
type ProcessMemory struct {
	Resident int64 `json:"resident"` // RSS, as top and ps show it
	Own      int64 `json:"own"`      // of Resident, what the kernel can only swap out
	// Lent is the rest, as far as it can be page cache that is mapped to be lent to RDMA. The kernel
	// takes it back when it needs memory.
	Lent int64 `json:"lent"`
	// Mapped is how much of files is mapped for that, whether it is in memory or not, and Limit is the
	// setting mapped_memory.
	Mapped int64 `json:"mapped"`
	Limit  int64 `json:"mapped_limit"`
}

// NFS4Memory is the memory for the state of clients of version 4, in bytes.
type NFS4Memory struct {
	Bytes int64 `json:"bytes"`
	Limit int64 `json:"limit"` // the setting nfs4_memory
}

// Near reports whether nine tenths of the limit are in use.
func (m NFS4Memory) Near() bool { return m.Bytes >= m.Limit-m.Limit/10 && m.Limit > 0 }

// Proc are the counters of one procedure.
type Proc struct {
	Calls       uint64 `json:"calls"`
	Errors      uint64 `json:"errors"`      // answered on the RPC level
	Retransmits uint64 `json:"retransmits"` // recognized by the duplicate request cache
	Nanoseconds uint64 `json:"nanoseconds"` // from arrival to reply, summed
	BytesIn     uint64 `json:"bytes_in"`    // arguments, bulk data included
	BytesOut    uint64 `json:"bytes_out"`   // replies, bulk data included
}

// Upgraded is the result of an upgrade.
type Upgraded struct {
	Executable string `json:"executable"`
	OldVersion string `json:"old_version"`
	NewVersion string `json:"new_version"`
	OldPID     int    `json:"old_pid"`
	PID        int    `json:"pid"`
	// PrepareMillis is the time in which the new process prepares while the old one serves.
	// PauseMillis is the time in which no call begins. It includes DrainMillis, in which the old
	// process completes the calls that have arrived.
	PrepareMillis float64 `json:"prepare_ms"`
	DrainMillis   float64 `json:"drain_ms"`
	PauseMillis   float64 `json:"pause_ms"`
	// Connections that the new process has, and connections that ended because their clients did not
	// answer.
	RDMA    int `json:"rdma_connections"`
	TCP     int `json:"tcp_connections"`
	Dropped int `json:"dropped_connections"`
}

// Backend is what the interface controls: the daemon. Its methods may be
// called from any goroutine. Errors it returns are shown to the user.
type Backend interface {
	Status() Status
	Config() ([]byte, error)
	Exports() []Export
	AddExport(e config.Export) (Export, error)
	SetExport(name string, p ExportPatch) (Export, error)
	RemoveExport(name string) error
	// RevertExports ends the changes of exports that were made at run time: what is written is served
	// again. With removedOnly it ends only removals.
	RevertExports(removedOnly bool) error
	Ports() []Port
	AddPort(p PortSpec) (Port, error)
	RemovePort(p PortSpec) error
	PKeys() []PKey
	AddPKey(key string) error
	RemovePKey(key string) error
	StateBackend
	OpsBackend
	ChangeBackend
	SupportBackend
	HABackend
	ClusterBackend
	Clients() []Client
	QPs() []QP
	Stats() Stats
	Sample() live.Sample
	Devices() []Device
	PostMortems() []PostMortem
	SetLogLevel(level string) error
	// Rescan brings the exports in line with the mounts and the snapshots of the host.
	Rescan() error
	Reload() error
	// Upgrade hands over to a new process. It runs the executable at a path, or at the path of this
	// process if the path is empty.
	Upgrade(executable string) (Upgraded, error)
	// FlushIDMap clears the caches of users, groups and hosts.
	FlushIDMap()
	// Capture writes packets of a device to w as a pcap file, until ctx ends or it has c.Packets of
	// them.
	Capture(ctx context.Context, c CaptureSpec, w io.Writer) error
}
