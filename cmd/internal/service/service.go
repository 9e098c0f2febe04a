package service

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/rstored/rstored/blockstore/posixfs"
	"github.com/rstored/rstored/cmd/internal/cluster"
	"github.com/rstored/rstored/cmd/internal/config"
	"github.com/rstored/rstored/cmd/internal/exports"
	"github.com/rstored/rstored/cmd/internal/measure"
	"github.com/rstored/rstored/cmd/internal/names"
	"github.com/rstored/rstored/cmd/internal/state"
	"github.com/rstored/rstored/cmd/internal/telemetry"
	"github.com/rstored/rstored/cmd/internal/upgrade"
	"github.com/rstored/rstored/nfs"
	"github.com/rstored/rstored/nfs/clock"
	"github.com/rstored/rstored/nfs/hosts"
	"github.com/rstored/rstored/nfs/idmap"
	"github.com/rstored/rstored/nfs/lock"
	"github.com/rstored/rstored/nfs/nfs3"
	"github.com/rstored/rstored/nfs/nfs4"
	"github.com/rstored/rstored/nfs/nlm"
	"github.com/rstored/rstored/nfs/rquota"
	"github.com/rstored/rstored/rpcrdma/rpc"
	"github.com/rstored/rstored/rpcrdma/tcp"
)

// Config is what a Service works with.
type Config struct {
	Settings func() *config.Config // in force now
	State    *state.Store
	Files    *posixfs.Files
	NoUmask  bool // see posixfs.Options
	Log      *telemetry.Log
	Audit    *slog.Logger
	// Callers returns the connections by which clients can be called, by their peers.
	Callers func() map[rpc.Peer]rpc.Caller
	// MayAct allows one change of clients' state until done is called: no upgrade begins meanwhile.
	MayAct func() (done func(), err error)
	// DialRDMA connects to another server by the RDMA device with a local address; nil: there is no
	// RDMA.
	DialRDMA func(ctx context.Context, local netip.Addr, to netip.AddrPort) (rpc.Client, error)
	// Lost ends the process when a cluster of storage has ended what it knew of this server.
	Lost func(error)
	// Cluster is what this server shares with others, or nil.
	Cluster *cluster.Cluster
	// From is the old process, whose clients continue here, or nil. OtherNode says that it was on
	// another node: what belongs to its open files is not handed over.
	From      *upgrade.Predecessor
	OtherNode bool
}

// Service is the NFS service.
type Service struct {
	Config
	RPC       *rpc.Server   // NFS, MOUNT, NLM and the status monitor
	Programs  []rpc.Program // of RPC
	Table     *nfs.Table
	ExportSet *exports.Set
	NFS4      *nfs4.Server
	NLM       *nlm.Server
	LockTable *lock.Table
	Hosts     *hosts.Hosts
	IDMap     *idmap.Map
	// CallbackDialer connects to clients of version 4.0.
	CallbackDialer *tcp.CallbackDialer
	// Denied are the clients that the rules of exports have denied lately.
	Denied nfs.Denials
	// Recorder measures the calls of RPC.
	Recorder *measure.Recorder

	faults *nfs.Counters
	// end stops lockOnHost, or is nil.
	end      chan struct{}
	ended    sync.WaitGroup
	kerberos *kerberos
}

// Files in the state directory, in memory that outlives the process.
const (
	// repliesName is the journal of the duplicate request cache: 6144 calls, for a cache of 4096
	// replies.
	repliesName = "replies-2.journal"
	repliesSize = 3 << 20
	// oldRepliesName is a journal whose format has too little of a call to tell it from others.
	oldRepliesName = "replies.journal"
	// callsName is the journal of the sessions of version 4: 16384 slots.
	callsName = "calls.journal"
	callsSize = 2 << 20
)

// New makes the service. Without a predecessor it continues with what the last run left in the
// state directory.
func New(c Config) (*Service, error) {
	s := &Service{Config: c, faults: new(nfs.Counters)}
	cfg, first := c.Settings(), c.From == nil
	if first {
		s.retireReplies()
	}
	replies, err := s.State.Memory(repliesName, repliesSize)
	if err != nil {
		return nil, err
	}
	calls, err := s.State.Memory(callsName, callsSize)
	if err != nil {
		return nil, err
	}
	secret, err := s.State.Secret()
	if err != nil {
		return nil, err
	}
	// The clients of the predecessor continue. They are not notified of a restart, and reclaim
	// nothing.
	var starts int32
	var owners []string
	if first {
		if starts, err = s.State.NextLockState(); err != nil {
			return nil, err
		}
		if owners, err = s.State.Journal().Owners(); err != nil {
			return nil, err
		}
	}
	log := c.Log.Library("nfs")
	if err := s.State.Journal().Damage(); err != nil {
		log.Error("the list of the clients of NFS version 4 was lost: what they had open or locked "+
			"before this start cannot be reclaimed", zap.Error(err))
	}

	s.Hosts, s.IDMap = names.NewHosts(c.Log.Library("hosts")), names.NewIDMap(&cfg.IDMap)
	s.Table = nfs.NewTable(s.Hosts)
	s.LockTable = lock.New(0)
	s.LockTable.UseHost(s.Table.HostLocker)
	if s.Cluster != nil {
		s.LockTable.UseGate(s.Cluster)
	}
	common := nfs.Config{
		Exports: s.Table, Codec: nfs.NewCodec(secret), Counters: s.faults, Logger: c.Log.Slog("nfs"),
		Groups: s.IDMap, Audit: c.Audit, Denials: &s.Denied,
		ShowAll: func() bool { return c.Settings().ShowMount == config.ShowAll },
	}
	v4 := new(lateNFS4)
	s.NLM = s.newNLM(&common, v4, starts)
	s.CallbackDialer = tcp.NewCallbackDialer(0)
	four := nfs4.Config{
		Config: common, Identity: secret, Boot: rand.Uint32(), Locks: s.LockTable,
		Lease: cfg.LeaseTime, Grace: cfg.GraceTime, Calls: calls,
		Known: owners, Journal: &loggedJournal{Journal: s.State.Journal(), log: log},
		OthersReclaim: s.NLM.Grace, CallBack: s.callBack,
		CopyPartners: partners{c.Settings, c.DialRDMA, &tcpSources{log: log}},
		Minors:       cfg.Minors(), Names: s.IDMap, UTF8: cfg.UTF8 == config.UTF8Strict,
	}
	if s.Cluster != nil {
		s.join(&four, secret)
	}
	four.Limits.Memory, four.Limits.ClientMemory = cfg.NFS4MemoryBytes()
	s.NFS4 = nfs4.New(four)
	v4.Server = s.NFS4
	if s.Cluster != nil {
		s.attach()
	}
	if !first {
		thaw := s.freezeCallbacks()
		c.From.WhenServing(func() { _ = thaw() })
	}
	common.Delegations, common.Shares = s.NFS4, s.NFS4
	// MOUNT and the lock manager belong to version 3.
	if slices.Contains(cfg.NFSVersions, config.Version3) {
		s.Programs = slices.Concat(nfs3.Programs(common), s.NLM.Programs())
	}
	if len(cfg.Minors()) > 0 {
		s.Programs = append(s.Programs, s.NFS4.Programs()...)
	}
	s.Programs = append(s.Programs, rquota.Programs(common, time.Now)...)
	s.Recorder = newRecorder(s.Programs, cfg.OpsClients, c.Log.Library("store"))
	stores := c.From
	if c.OtherNode {
		stores = nil
	}
	s.ExportSet = exports.New(exports.Config{
		State: s.State, Table: s.Table, Recorder: s.Recorder, Files: c.Files, NoUmask: c.NoUmask, Log: c.Log, From: stores,
		XprtSec: func() []string { return c.Settings().TLS.XprtSec },
		Removed: s.dropExport, Session: s.session(secret), Lease: cfg.LeaseTime, Lost: c.Lost,
	})
	s.RPC = rpc.NewServer(rpc.ServerConfig{
		Programs: s.Programs, Observer: s.Recorder, Paced: s.Table.Limited, Workers: cfg.Workers, Journal: replies,
		Logger: c.Log.Slog("rpc"), GSS: s.newKerberos(), MayServe: s.mayServe(),
		Unserved: s.unserved,
	})
	s.LimitMapped(cfg.MappedBytes())
	if l := s.State.Lease(); l != nil && l.Unclean {
		s.LockTable.ReclaimOver(s.reclaiming, s.Table.Fenced)
		s.end = make(chan struct{})
		s.ended.Go(s.lockOnHost)
	}
	return s, nil
}

// unserved is rpc.ServerConfig.Unserved: it notes clients that ask for a version of NFS which is
// not among the setting nfs_versions.
func (s *Service) unserved(p *rpc.Peer, prog, vers uint32) {
	switch {
	case prog == nfs3.Program && vers >= 2 && vers <= nfs4.Version, // others are probes, as of rpcinfo
		prog == nfs3.MountProgram && vers == nfs3.MountVersion:
		s.Denied.AddVersion(p, strconv.FormatUint(uint64(vers), 10), clock.Now(), s.Log.Slog("nfs"))
	}
}

// mayServe is rpc.ServerConfig.MayServe.
func (s *Service) mayServe() func() bool {
	if l := s.State.Lease(); l != nil {
		return l.Serving
	}
	return nil
}

// retireReplies renames the journal of an earlier version.
func (s *Service) retireReplies() {
	old := filepath.Join(s.State.Dir(), oldRepliesName)
	aside := old + ".old"
	switch err := os.Rename(old, aside); {
	case err == nil:
		s.Log.Info("the replies that an earlier version kept for retransmissions are not used: calls that clients "+
			"send again are executed", zap.String("journal", aside))
	case !errors.Is(err, fs.ErrNotExist):
		s.Log.Warn("the journal of replies of an earlier version cannot be put aside", zap.Error(err))
	}
}

// dropExport ends opens and locks in an export that is not served any more.
func (s *Service) dropExport(id uint32) {
	s.NFS4.State().DropExport(id)
	s.LockTable.DropExport(id)
}

// Close ends the servers, once no transport passes calls to them. The exports stay open.
func (s *Service) Close() {
	if s.end != nil {
		close(s.end)
		s.ended.Wait()
	}
	s.NLM.Close()
	s.NFS4.Close()
	s.RPC.Close()
	s.CallbackDialer.Close()
}

// FlushIDMap forgets the cached names of users, groups and hosts.
func (s *Service) FlushIDMap() {
	s.IDMap.Flush()
	s.Hosts.Flush()
}
