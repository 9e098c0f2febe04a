package desired

import (
	"path"
	"slices"

	"github.com/rstored/rstored/cmd/internal/config"
	"github.com/rstored/rstored/cmd/internal/control"
	"github.com/rstored/rstored/cmd/internal/state"
)

// mergeExports merges the configuration with what was changed at run time. A
// run-time export takes the place of a configured one with the same pseudo path;
// a removed one is left out. The root export (rootOf) also appears at "/", and each at
// its path on the host where no other export is in the way, as clients of a
// kernel server expect.
func (s *Sources) mergeExports(configured []config.Export) []control.Export {
	added, removed := s.Exports, s.RemovedExports
	out := make([]control.Export, 0, len(configured)+len(added))
	for _, e := range configured {
		if !slices.Contains(removed, e.Pseudo) {
			origin := control.OriginConfig
			if e.Source != "" {
				origin = control.OriginTable
			}
			out = append(out, control.Export{Export: e, Origin: origin})
		}
	}
	for _, e := range added {
		i := slices.IndexFunc(out, func(o control.Export) bool { return o.Pseudo == e.Pseudo })
		if i < 0 {
			i = len(out)
			out = append(out, control.Export{})
		}
		out[i] = control.Export{Export: e, Origin: control.OriginRuntime}
	}
	taken := make(map[string]bool)
	for _, e := range out {
		taken[e.Pseudo] = true
	}
	root := s.rootOf(out)
	for i := range out {
		e := &out[i]
		e.Aliases = []string{}
		names := []string{}
		if i == root {
			names = append(names, "/")
		}
		if e.Type == config.TypePosix {
			names = append(names, e.Path)
		}
		for _, n := range names {
			if !taken[n] && path.IsAbs(n) {
				taken[n] = true
				e.Aliases = append(e.Aliases, n)
			}
		}
	}
	return out
}

// rootOf is the index of the export that is also at "/", or -1: the one that the setting names.
// Without the setting it is the export that was at "/" before, as long as it is exported. Else it
// is the first one, unless that is from a table. So adding an export does not move "/".
func (s *Sources) rootOf(list []control.Export) int {
	if name := s.Config.Root; name != "" {
		return slices.IndexFunc(list, func(e control.Export) bool { return e.Pseudo == name || e.Path == name })
	}
	if i := slices.IndexFunc(list, func(e control.Export) bool { return e.Pseudo == s.Root }); i >= 0 {
		return i
	}
	if len(list) > 0 && list[0].Source == "" {
		return 0
	}
	return -1
}

// RootPath is the pseudo path of the export that clients of version 3 get if they mount "/", or an
// empty string.
func (s *State) RootPath() string {
	for i := range s.Exports {
		if s.Exports[i].Pseudo == "/" || slices.Contains(s.Exports[i].Aliases, "/") {
			return s.Exports[i].Pseudo
		}
	}
	return ""
}

// mergePorts merges the configured ports with those changed at run time.
func mergePorts(cfg *config.Config, added, removed []state.Port) []control.Port {
	var out []control.Port
	for _, p := range configuredPorts(cfg) {
		if !slices.Contains(removed, state.Port(p)) {
			out = append(out, control.Port{PortSpec: p, Origin: control.OriginConfig})
		}
	}
	for _, p := range added {
		spec := control.PortSpec(p)
		if !slices.ContainsFunc(out, func(o control.Port) bool { return o.PortSpec == spec }) {
			out = append(out, control.Port{PortSpec: spec, Origin: control.OriginRuntime})
		}
	}
	return out
}

// configuredPorts are the configuration's ports in one spelling each.
func configuredPorts(cfg *config.Config) []control.PortSpec {
	var out []control.PortSpec
	for _, l := range []struct {
		transport string
		addrs     []string
	}{
		{control.TransportRDMA, cfg.RDMAListen},
		{control.TransportTCP, cfg.TCPListen},
		{control.TransportTCP, cfg.MountListen},
		{control.TransportPortmap, cfg.PortmapListen},
		{control.TransportUDP, cfg.UDPListen},
		{control.TransportPerf, cfg.Perf.Listen},
		{control.TransportOps, cfg.OpsListen},
		{control.TransportControl, cfg.ControlTLS.Listen},
	} {
		for _, a := range l.addrs {
			p := control.PortSpec{Transport: l.transport, Listen: a}
			at, err := ParseListen(p)
			if err != nil {
				continue // Validate has refused it long ago
			}
			p.Listen = at.String()
			if !slices.Contains(out, p) {
				out = append(out, p)
			}
		}
	}
	return out
}

// ParseListen reads where a port is to listen.
func ParseListen(p control.PortSpec) (config.Listen, error) {
	if OnDevice(p.Transport) {
		return config.ParseRDMAListen(p.Listen)
	}
	return config.ParseListen(p.Listen)
}

// OnDevice reports whether ports of a transport are on RDMA devices.
func OnDevice(transport string) bool {
	return transport == control.TransportRDMA || transport == control.TransportPerf
}
