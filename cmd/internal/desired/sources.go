package desired

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"reflect"
	"slices"

	"go.yaml.in/yaml/v3"

	"github.com/rstored/rstored/cmd/internal/config"
	"github.com/rstored/rstored/cmd/internal/control"
	"github.com/rstored/rstored/cmd/internal/state"
)

// Sources are everything that says what is to be served.
type Sources struct {
	// Config is the configuration: file, export table, environment and flags.
	Config *config.Config
	// Applied replaces the keys of Config that it has. It is nil if no file is applied.
	Applied *state.Applied
	// Changes at run time come on top of both.
	Exports             []config.Export
	RemovedExports      []string
	Ports, RemovedPorts []state.Port
	// Root is the pseudo path of the export that was at "/" when exports were last changed.
	Root string
	// Mounts of the host decide which exports of crossmnt there are.
	Mounts []Mount
	// Subvolumes lists the subvolumes of btrfs in a directory; nil: there are no snapshots.
	Subvolumes func(dir string) []string
}

// Read collects the sources for a configuration.
func Read(cfg *config.Config, st *state.Store) Sources {
	s := Sources{Config: cfg, Applied: st.Applied(), Root: st.Root(), Mounts: HostMounts(), Subvolumes: Subvolumes}
	s.Exports, s.RemovedExports = st.Exports()
	s.Ports, s.RemovedPorts = st.Ports()
	return s
}

// State is what is served, or would be: exports, those of crossmnt and of snapshots among them, and
// ports.
type State struct {
	Exports []control.Export
	Ports   []control.Port
}

// effective is the configuration with what was applied in the place of its exports and ports.
func (s *Sources) effective() *config.Config {
	if s.Applied != nil {
		return s.Config.With(&s.Applied.Document)
	}
	return s.Config
}

// State merges the sources.
func (s *Sources) State() State {
	cfg := s.effective()
	out := State{
		Exports: s.mergeExports(cfg.Exports),
		Ports:   mergePorts(cfg, s.Ports, s.RemovedPorts),
	}
	if s.Applied != nil {
		for i := range out.Exports {
			if s.Applied.Exports != nil && out.Exports[i].Origin != control.OriginRuntime {
				out.Exports[i].Origin = control.OriginApplied
			}
		}
		said := Transports(&s.Applied.Document)
		for i := range out.Ports {
			if out.Ports[i].Origin == control.OriginConfig && slices.Contains(said, out.Ports[i].Transport) {
				out.Ports[i].Origin = control.OriginApplied
			}
		}
	}
	out.Exports = append(out.Exports, mountedBelow(out.Exports, s.Mounts)...)
	out.Exports = append(out.Exports, snapshotsBelow(out.Exports, s.Mounts, s.Subvolumes)...)
	return out
}

// HasExport reports whether an export at that path is written: in the configuration or in an
// applied file. HasPort is the same for ports.
func (s *Sources) HasExport(pseudo string) bool {
	return slices.ContainsFunc(s.effective().Exports, func(e config.Export) bool { return e.Pseudo == pseudo })
}

// HasPort reports whether a port is written.
func (s *Sources) HasPort(p control.PortSpec) bool {
	return slices.Contains(configuredPorts(s.effective()), p)
}

// Written are the sources without the changes of run time.
func (s *Sources) Written() *Sources {
	return &Sources{Config: s.Config, Applied: s.Applied, Root: s.Root, Mounts: s.Mounts, Subvolumes: s.Subvolumes}
}

// With returns the sources after a document is applied. The document replaces what it has keys for,
// and ends the run-time changes of those.
func (s *Sources) With(doc *config.Document) *Sources {
	out := *s
	out.Config = s.effective().With(doc)
	out.Applied = nil
	if doc.Exports != nil {
		out.Exports, out.RemovedExports = nil, nil
	}
	about := Transports(doc)
	ended := func(p state.Port) bool { return slices.Contains(about, p.Transport) }
	out.Ports = slices.DeleteFunc(slices.Clone(s.Ports), ended)
	out.RemovedPorts = slices.DeleteFunc(slices.Clone(s.RemovedPorts), ended)
	return &out
}

// Transports are the transports of the ports that a document has keys for.
func Transports(doc *config.Document) []string {
	var out []string
	for _, k := range listenKeys {
		if _, ok := doc.Listen[k.key]; ok && !slices.Contains(out, k.transport) {
			out = append(out, k.transport)
		}
	}
	return out
}

// listenKeys are the keys of a document for ports. The first of a transport is where Text puts its
// ports.
var listenKeys = []struct{ key, transport string }{
	{"rdma_listen", control.TransportRDMA},
	{"tcp_listen", control.TransportTCP},
	{"mount_listen", control.TransportTCP},
	{"portmap_listen", control.TransportPortmap},
	{"udp_listen", control.TransportUDP},
	{"ops_listen", control.TransportOps},
}

// Shadowed are the keys of the configuration that are not in force, because the applied file has
// others. Keys that the configuration leaves at their defaults are not among them.
func (s *Sources) Shadowed() []string {
	keys := []string{}
	if s.Applied == nil {
		return keys
	}
	if a := s.Applied.Exports; a != nil && len(s.Config.Exports) > 0 &&
		!reflect.DeepEqual(unsourced(a), unsourced(s.Config.Exports)) {
		keys = append(keys, "exports")
	}
	own, _, err := s.Config.Own()
	usual, _, err2 := config.Default().Own()
	if err != nil || err2 != nil {
		return keys
	}
	for _, k := range listenKeys {
		a, ok := s.Applied.Listen[k.key]
		if c := own.Listen[k.key]; ok && !slices.Equal(a, c) && !slices.Equal(c, usual.Listen[k.key]) {
			keys = append(keys, k.key)
		}
	}
	return keys
}

// unsourced returns exports without the places where they are written.
func unsourced(list []config.Export) []config.Export {
	list = slices.Clone(list)
	for i := range list {
		list[i].Source = ""
	}
	return list
}

// Text is a document of all that the sources say, run-time changes included.
func (s *Sources) Text() (string, error) {
	cfg := s.effective()
	if len(s.Exports)+len(s.RemovedExports)+len(s.Ports)+len(s.RemovedPorts) == 0 {
		_, text, err := cfg.Own()
		return string(text), err
	}
	all := make(map[string]any)
	exports := []config.Export{}
	for _, e := range s.mergeExports(cfg.Exports) {
		exports = append(exports, e.Export)
	}
	all["exports"] = unsourced(exports)
	ports, done := mergePorts(cfg, s.Ports, s.RemovedPorts), make(map[string]bool)
	for _, k := range listenKeys {
		list := []string{}
		for _, p := range ports {
			if p.Transport == k.transport && !done[k.transport] {
				list = append(list, p.Listen)
			}
		}
		all[k.key], done[k.transport] = list, true
	}
	text, err := yaml.Marshal(all)
	return string(text), err
}

// Digest tells states apart by what is served, not by where that is written.
func (s *State) Digest() string {
	var all struct {
		Exports []config.Export
		Aliases [][]string
		Ports   []control.PortSpec
	}
	for i := range s.Exports {
		e := s.Exports[i].Export
		e.Source = ""
		all.Exports, all.Aliases = append(all.Exports, e), append(all.Aliases, s.Exports[i].Aliases)
	}
	for i := range s.Ports {
		all.Ports = append(all.Ports, s.Ports[i].PortSpec)
	}
	b, err := json.Marshal(&all)
	if err != nil {
		return "" // no such value cannot be encoded
	}
	return Digest(b)
}

// Digest is the SHA-256 of a text, hexadecimal.
func Digest(b []byte) string {
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}

// HasPort reports whether a state has a port.
func (s *State) HasPort(p control.PortSpec) bool {
	return slices.ContainsFunc(s.Ports, func(o control.Port) bool { return o.PortSpec == p })
}
