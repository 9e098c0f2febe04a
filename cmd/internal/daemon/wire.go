package daemon

import (
	"math/rand/v2"
	"slices"

	"go.uber.org/zap"

	"github.com/rstored/rstored/blockstore/posixfs"
	"github.com/rstored/rstored/cmd/internal/cli"
	"github.com/rstored/rstored/cmd/internal/config"
	"github.com/rstored/rstored/cmd/internal/devices"
	"github.com/rstored/rstored/cmd/internal/names"
	"github.com/rstored/rstored/cmd/internal/otlp"
	"github.com/rstored/rstored/cmd/internal/ports"
	"github.com/rstored/rstored/nfs"
	"github.com/rstored/rstored/nfs/nfs3"
	"github.com/rstored/rstored/nfs/nfs4"
	"github.com/rstored/rstored/nfs/nlm"
	"github.com/rstored/rstored/rpcrdma/rpc"
	"github.com/rstored/rstored/rpcrdma/tcp"
)

// wire makes the programs. What they export and where they are heard comes
// later and changes while they run.
func (d *Daemon) wire(secret, journal []byte, opener *devices.Opener) error {
	cfg := d.cfg.Load()
	d.hosts = names.NewHosts(d.log.Library("hosts"))
	d.table = nfs.NewTable(d.hosts)
	d.faults = new(nfs.Counters)
	codec := nfs.NewCodec(secret)
	d.idmap = names.NewIDMap(&cfg.IDMap)
	if err := d.wireLocks(nlm.Config{Exports: d.table, Codec: codec, Groups: d.idmap}); err != nil {
		return err
	}
	var owners []string
	if d.from == nil { // else they go on, and need not reclaim anything
		var err error
		if owners, err = d.state.Journal().Owners(); err != nil {
			return err
		}
	}
	if err := d.state.Journal().Damage(); err != nil {
		d.log.Library("nfs").Error("the list of the clients of NFS version 4 was lost: what they had open or locked "+
			"before this start cannot be reclaimed", zap.Error(err))
	}
	common := nfs.Config{
		Exports: d.table, Codec: codec, Counters: d.faults, Logger: d.log.Slog("nfs"), Groups: d.idmap, Audit: d.audit.Slog(),
		ShowAll: func() bool { return d.cfg.Load().ShowMount == config.ShowAll },
	}
	d.callbackDialer = tcp.NewCallbackDialer(0)
	remembered := &loggedJournal{Journal: d.state.Journal(), log: d.log.Library("nfs")}
	four := nfs4.Config{
		Config: common, Identity: secret, Boot: rand.Uint32(), Locks: d.locks,
		Lease: d.cfg.Load().LeaseTime, Grace: d.cfg.Load().GraceTime,
		Known: owners, Journal: remembered, OthersReclaim: d.nlm.Grace, CallBack: d.callbackDialer.To,
		Minors: cfg.Minors(), Names: d.idmap, UTF8: cfg.UTF8 == config.UTF8Strict,
	}
	four.Calls = d.calls
	four.Limits.Memory, four.Limits.ClientMemory = cfg.NFS4MemoryBytes()
	d.nfs4 = nfs4.New(four)
	if d.from != nil {
		d.nlm.Hold(true)
		d.nfs4.Pause(true)
		d.from.handover().WhenServing(func() {
			d.nlm.Hold(false)
			d.nfs4.Pause(false)
		})
	}
	common.Delegations, common.Shares = d.nfs4, d.nfs4
	// MOUNT and the lock manager are version 3's.
	if slices.Contains(cfg.NFSVersions, config.Version3) {
		d.served = slices.Concat(nfs3.Programs(common), d.nlm.Programs())
	}
	if len(cfg.Minors()) > 0 {
		d.served = append(d.served, d.nfs4.Programs()...)
	}
	d.failures.Programs, d.failures.Refused = d.served, d.refused
	d.recorder = newRecorder(d.served, cfg.OpsClients, d.log.Library("store"))
	fds := posixfs.Descriptors()
	d.exports = d.newExports(posixfs.NewFiles(fds))
	d.otlp = otlp.New(otlp.Config{Recorder: d.recorder, Version: cli.ReadBuild().Version, Log: d.log.Library("otlp")})
	d.rpc = rpc.NewServer(rpc.ServerConfig{
		Programs: d.served,
		Observer: d.recorder,
		Paced:    d.table.Limited,
		Workers:  d.cfg.Load().Workers,
		Journal:  journal,
		Logger:   d.log.Slog("rpc"),
	})
	d.devices = devices.New(devices.Config{
		Opener: opener, Settings: d.cfg.Load, State: d.state, Sockets: d.sockets, Failures: &d.failures,
		Counters: &d.counters, Log: d.log, From: d.from.handover(),
	})
	d.ports = ports.New(ports.Config{
		Settings: d.cfg.Load, State: d.state, Sockets: d.sockets, Devices: d.devices, Counters: &d.counters,
		Limiter: rpc.NewConnLimiter(rpc.ConnLimits{
			Clients: cfg.MaxClients, PerClient: cfg.MaxClientConnections, Descriptors: fds / connectionShare,
		}),
		TLS: d.tls, Audit: d.audit, Log: d.log, From: d.from.handover(),
		RPC: d.rpc, Control: d.control, Programs: d.served, Ops: d.serveOps,
	})
	return nil
}

// connectionShare is the part of the file descriptors that is for connections: 1/connectionShare.
// posixfs.Files takes less than three quarters.
const connectionShare = 4
