package config

import (
	"fmt"
	"time"

	"github.com/rstored/rstored/rdma/perf"
)

// PerfPort is where measurements are answered unless configured otherwise: the port of
// perftest, in the port space of RDMA-CM.
const PerfPort = perf.Port

// Perf lets clients measure the RDMA transport with 'rstorectl perf'. Nothing listens
// unless Listen says so.
type Perf struct {
	// Listen are addresses, as RDMAListen.
	Listen []string `mapstructure:"listen" yaml:"listen"`
	// Clients are the prefixes that may measure; "*" is everyone.
	Clients []string `mapstructure:"clients" yaml:"clients"`
	// The bounds are those of perf.Limits, for all ports together. Sizes are in bytes.
	MaxSize        int           `mapstructure:"max_size" yaml:"max_size"`
	MaxDepth       int           `mapstructure:"max_depth" yaml:"max_depth"`
	MaxQPs         int           `mapstructure:"max_qps" yaml:"max_qps"`
	MaxConnections int           `mapstructure:"max_connections" yaml:"max_connections"`
	MaxMemory      int           `mapstructure:"max_memory" yaml:"max_memory"`
	IdleTimeout    time.Duration `mapstructure:"idle_timeout" yaml:"idle_timeout"`
	MaxDuration    time.Duration `mapstructure:"max_duration" yaml:"max_duration"`
}

func defaultPerf() Perf {
	l := perf.DefaultLimits()
	return Perf{
		Listen: []string{}, Clients: []string{},
		MaxSize: l.MaxSize, MaxDepth: l.MaxDepth, MaxQPs: l.MaxQPs, MaxConnections: l.MaxConnections, MaxMemory: l.Memory,
		IdleTimeout: l.IdleTimeout, MaxDuration: l.MaxDuration,
	}
}

// Limits are the clients and the bounds.
func (p *Perf) Limits() (perf.Limits, error) {
	l := perf.Limits{
		MaxSize: p.MaxSize, MaxDepth: p.MaxDepth, MaxQPs: p.MaxQPs, MaxConnections: p.MaxConnections, Memory: p.MaxMemory,
		IdleTimeout: p.IdleTimeout, MaxDuration: p.MaxDuration,
	}
	var err error
	if l.Clients, err = ParseNetworks(p.Clients); err != nil {
		return l, fmt.Errorf("clients: %w", err)
	}
	return l, l.Validate()
}

// validate checks the section. rdma are the addresses of NFS over RDMA, whose ports are
// taken.
func (p *Perf) validate(rdma []string) error {
	if _, err := p.Limits(); err != nil {
		return fmt.Errorf("perf: %w", err)
	}
	if len(p.Listen) > 0 && len(p.Clients) == 0 {
		return fmt.Errorf("perf: clients: name those that may measure, such as 10.0.0.0/8, or \"*\" for everyone")
	}
	for _, a := range p.Listen {
		at, err := ParseRDMAListen(a)
		if err != nil {
			return fmt.Errorf("perf: listen: %w", err)
		}
		for _, b := range rdma {
			l, err := ParseRDMAListen(b)
			same := l.Any() || at.Any() || l.Addr == at.Addr && l.Device == at.Device
			if err == nil && same && l.Port == at.Port {
				return fmt.Errorf("perf: listen: port %d of %s is taken by rdma_listen; the usual one is %d", at.Port, a, PerfPort)
			}
		}
	}
	return nil
}
