package driver

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/rstored/rstored/nfs/client"
)

// Parameters of a StorageClass. Those about mounts on nodes are also in the context of its volumes,
// and in the attributes of volumes that the controller has not made.
const (
	paramServer              = "server"
	paramShare               = "share"
	paramTransport           = "transport"
	paramPort                = "port"
	paramMount               = "mount"
	paramControllerTransport = "controllerTransport"
	paramControllerPort      = "controllerPort"
	paramOnDelete            = "onDelete"
	paramMode                = "mode"
	paramUID                 = "uid"
	paramGID                 = "gid"
	paramTopology            = "topology"
	paramControl             = "control"
	paramQuota               = "quota"

	attrDirectory = "directory" // below the share; only in the context of a volume
)

var (
	classParams = []string{
		paramServer, paramShare, paramTransport, paramPort, paramMount, paramControllerTransport, paramControllerPort,
		paramOnDelete, paramMode, paramUID, paramGID, paramTopology, paramControl, paramQuota,
	}
	contextAttrs = []string{paramServer, paramShare, paramTransport, paramPort, paramMount, attrDirectory}
)

// foreign are the keys that Kubernetes adds.
func foreign(key string) bool {
	return strings.HasPrefix(key, "csi.storage.k8s.io/") || strings.HasPrefix(key, "storage.kubernetes.io/")
}

// How nodes and the controller reach a server.
const (
	transportRDMA = "rdma"
	transportTCP  = "tcp"
)

// The program that mounts on a node: the kernel's NFS client, or rstorectl by FUSE.
const (
	mountKernel = "kernel"
	mountFUSE   = "fuse"
)

// place is a directory on a server, and how a node mounts it.
type place struct {
	server    string // name or address, without brackets
	share     string // absolute and clean: what is exported
	directory string // below it, clean, without a slash at its begin; may be empty
	transport string // rdma, tcp, or empty if the attributes name none
	port      uint16 // 0 if the attributes name none
	fuse      bool   // by rstorectl mount, else by the kernel's client
}

// class has the parameters of a StorageClass.
type class struct {
	place
	controller client.URL // the share, as the controller reaches it
	retain     bool       // DeleteVolume leaves the directory
	mode       uint32
	uid, gid   *uint32 // nil: the server chooses
	// control is the address of the control interface of the server. If it is set, each volume has
	// an export of its own, with a quota if enforced is set.
	control  string
	enforced bool
	// topology has the topologies of the nodes that reach the server; empty: all nodes do.
	topology []map[string]string
}

// keys refuses unknown parameters: a misspelt name must not be ignored.
func keys(params map[string]string, known []string) error {
	for _, k := range slices.Sorted(maps.Keys(params)) {
		if !foreign(k) && !slices.Contains(known, k) {
			return fmt.Errorf("unknown parameter %q; there are %s", k, strings.Join(known, ", "))
		}
	}
	return nil
}

func parseClass(params map[string]string) (*class, error) {
	if err := keys(params, classParams); err != nil {
		return nil, err
	}
	p, err := parsePlace(params)
	if err != nil {
		return nil, err
	}
	c := &class{place: p, mode: 0o777}
	if c.topology, err = parseTopology(params[paramTopology]); err != nil {
		return nil, err
	}
	switch v := params[paramOnDelete]; v {
	case "", "delete":
	case "retain":
		c.retain = true
	default:
		return nil, fmt.Errorf("%s %q: use delete or retain", paramOnDelete, v)
	}
	if v := params[paramMode]; v != "" {
		m, err := strconv.ParseUint(v, 8, 12)
		if err != nil {
			return nil, fmt.Errorf("%s %q: use an octal number such as 0770", paramMode, v)
		}
		c.mode = uint32(m)
	}
	for key, to := range map[string]**uint32{paramUID: &c.uid, paramGID: &c.gid} {
		if v := params[key]; v != "" {
			n, err := strconv.ParseUint(v, 10, 32)
			if err != nil {
				return nil, fmt.Errorf("%s %q: use a number", key, v)
			}
			*to = new(uint32(n))
		}
	}
	if err := c.parseControl(params); err != nil {
		return nil, err
	}
	transport, err := parseTransport(paramControllerTransport, params[paramControllerTransport])
	if err != nil {
		return nil, err
	}
	if transport == "" {
		transport = transportTCP
	}
	port, err := parsePort(paramControllerPort, params[paramControllerPort])
	if err != nil {
		return nil, err
	}
	c.controller, err = location(transport, p.server, port, p.share)
	return c, err
}

// Values of the parameter quota: the size of a volume is a quota, or is recorded only.
const (
	quotaEnforced = "enforced"
	quotaRecorded = "recorded"
)

// parseControl reads the parameters control and quota.
func (c *class) parseControl(params map[string]string) error {
	c.control = params[paramControl]
	if c.control != "" {
		host, port, err := net.SplitHostPort(c.control)
		if err != nil {
			host, port = strings.Trim(c.control, "[]"), ControlPort
		}
		if _, err := parsePort(paramControl, port); err != nil || !isHost(host) {
			return fmt.Errorf("%s %q: use HOST or HOST:PORT", paramControl, c.control)
		}
	}
	switch v := params[paramQuota]; {
	case v == "", v == quotaEnforced && c.control != "":
		c.enforced = c.control != ""
	case v == quotaRecorded:
	case v == quotaEnforced:
		return fmt.Errorf("%s %s needs %s: the server sets the quota", paramQuota, v, paramControl)
	default:
		return fmt.Errorf("%s %q: use %s or %s", paramQuota, v, quotaEnforced, quotaRecorded)
	}
	return nil
}

// parsePlace reads the context of a volume, or the same keys of a StorageClass.
func parsePlace(attrs map[string]string) (p place, err error) {
	p.server = strings.TrimSuffix(strings.TrimPrefix(attrs[paramServer], "["), "]")
	if p.server == "" {
		return p, fmt.Errorf("%s is missing: the name or address of the server", paramServer)
	}
	if !isHost(p.server) {
		return p, fmt.Errorf("%s %q: use a name or an address, without a port", paramServer, attrs[paramServer])
	}
	share := attrs[paramShare]
	if !strings.HasPrefix(share, "/") || path.Clean(share) != share || strings.ContainsAny(share, "\x00\n") {
		return p, fmt.Errorf("%s %q: use the absolute path of an export, as clients mount it", paramShare, share)
	}
	p.share = share
	if d := attrs[attrDirectory]; d != "" {
		if path.Clean("/"+d) != "/"+d || strings.ContainsAny(d, "\x00\n") {
			return p, fmt.Errorf("%s %q: use a path below the share, with neither . nor .. in it", attrDirectory, d)
		}
		p.directory = d
	}
	if p.transport, err = parseTransport(paramTransport, attrs[paramTransport]); err != nil {
		return p, err
	}
	switch v := attrs[paramMount]; v {
	case "", mountKernel:
	case mountFUSE:
		p.fuse = true
	default:
		return p, fmt.Errorf("%s %q: use %s or %s", paramMount, v, mountKernel, mountFUSE)
	}
	p.port, err = parsePort(paramPort, attrs[paramPort])
	return p, err
}

// context is the inverse of parsePlace.
func (p place) context() map[string]string {
	m := map[string]string{paramServer: p.server, paramShare: p.share, attrDirectory: p.directory}
	if p.transport != "" {
		m[paramTransport] = p.transport
	}
	if p.port != 0 {
		m[paramPort] = strconv.Itoa(int(p.port))
	}
	if p.fuse {
		m[paramMount] = mountFUSE
	}
	return m
}

// source is the first argument of a mount.
func (p place) source() string {
	host := p.server
	if strings.Contains(host, ":") {
		host = "[" + host + "]"
	}
	return host + ":" + path.Join(p.share, p.directory)
}

func parseTransport(key, v string) (string, error) {
	switch v {
	case "", transportRDMA, transportTCP:
		return v, nil
	}
	return "", fmt.Errorf("%s %q: use rdma or tcp", key, v)
}

func parsePort(key, v string) (uint16, error) {
	if v == "" {
		return 0, nil
	}
	n, err := strconv.ParseUint(v, 10, 16)
	if err != nil || n == 0 {
		return 0, fmt.Errorf("%s %q: use a number from 1 to 65535", key, v)
	}
	return uint16(n), nil
}

const hostLabel = `[A-Za-z0-9]([A-Za-z0-9_-]*[A-Za-z0-9])?`

var hostName = regexp.MustCompile(`^` + hostLabel + `(\.` + hostLabel + `)*\.?$`)

func isHost(s string) bool {
	if _, err := netip.ParseAddr(s); err == nil {
		return true
	}
	return len(s) <= 253 && hostName.MatchString(s)
}

// location is the URL by which the controller reaches a share.
func location(transport, server string, port uint16, share string) (client.URL, error) {
	p := client.PortTCP
	if transport == transportRDMA {
		p = client.PortRDMA
	}
	if port != 0 {
		p = strconv.Itoa(int(port))
	}
	u, err := client.ParseURL("nfs+" + transport + "://" + net.JoinHostPort(server, p))
	u.Path = share
	return u, err
}

// volume is a directory that the controller has made. Its identifier has everything that
// DeleteVolume needs, because DeleteVolume gets nothing else:
// nfs+tcp://server:2049/share#directory, with #retain if the directory stays.
type volume struct {
	share     client.URL
	directory string // one component, as dirName makes it
	retain    bool
}

// idMax is the size of a volume's identifier in bytes (CSI, "Size Limits").
const idMax = 128

const retained = "#retain"

func (v volume) id() (string, error) {
	id := v.share.String() + "#" + v.directory
	if v.retain {
		id += retained
	}
	if len(id) > idMax {
		return "", fmt.Errorf("the volume's identifier %s would have %d bytes, which is more than %d: give the server a "+
			"shorter name, or the export a shorter path", id, len(id), idMax)
	}
	return id, nil
}

// errNotOurs is the error for an identifier that the controller has not made.
var errNotOurs = errors.New("not a volume of this driver")

func parseID(id string) (v volume, err error) {
	at, dir, ok := strings.Cut(id, "#")
	if !ok || len(id) > idMax {
		return v, errNotOurs
	}
	v.directory, v.retain = strings.CutSuffix(dir, retained)
	if !isDirName(v.directory) {
		return v, errNotOurs
	}
	if v.share, err = client.ParseURL(at); err != nil {
		return v, errNotOurs
	}
	// Only the form that id makes is accepted, so that one volume has one name.
	if again, err := v.id(); err != nil || again != id {
		return v, errNotOurs
	}
	return v, nil
}

// Names of directories have no separator and are short enough for the identifier.
var dirNames = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,47}$`)

func isDirName(s string) bool { return dirNames.MatchString(s) }

// dirName returns the directory of a volume: its name, or a hash of the name if a directory cannot
// have that name.
func dirName(name string) string {
	if isDirName(name) {
		return name
	}
	h := sha256.Sum256([]byte(name))
	return "csi-" + hex.EncodeToString(h[:20])
}

// modes are the supported access modes. A single writer on several nodes is not among them, because
// nothing keeps the other nodes from writing.
var modes = []csi.VolumeCapability_AccessMode_Mode{
	csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER,
	csi.VolumeCapability_AccessMode_SINGLE_NODE_READER_ONLY,
	csi.VolumeCapability_AccessMode_MULTI_NODE_READER_ONLY,
	csi.VolumeCapability_AccessMode_MULTI_NODE_MULTI_WRITER,
}

// capability refuses requests for capabilities that a volume does not have.
func capability(c *csi.VolumeCapability, p place) error {
	if c == nil {
		return errors.New("the volume capability is missing")
	}
	if c.GetBlock() != nil {
		return errors.New("volumes are directories and cannot be block devices: use volumeMode Filesystem")
	}
	if c.GetMount() == nil {
		return errors.New("the volume capability says neither mount nor block")
	}
	if m := c.GetAccessMode().GetMode(); !slices.Contains(modes, m) {
		return fmt.Errorf("access mode %v is not supported", m)
	}
	if t := c.GetMount().GetFsType(); t != "" && t != "nfs" && t != "nfs4" {
		return fmt.Errorf("fsType %q: it is nfs, leave it away", t)
	}
	_, err := mountOptions(p, c.GetMount().GetMountFlags(), false)
	return err
}

// capabilities checks each capability of a list, which must not be empty.
func capabilities(list []*csi.VolumeCapability, p place) error {
	if len(list) == 0 {
		return errors.New("the volume capabilities are missing")
	}
	for _, c := range list {
		if err := capability(c, p); err != nil {
			return err
		}
	}
	return nil
}
