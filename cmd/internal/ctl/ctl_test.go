package ctl

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"go.uber.org/zap"

	"github.com/rstored/rstored/cmd/internal/cli"
	"github.com/rstored/rstored/cmd/internal/config"
	"github.com/rstored/rstored/cmd/internal/control"
	"github.com/rstored/rstored/cmd/internal/live"
	history "github.com/rstored/rstored/cmd/internal/state"
)

// fake is a daemon that remembers what it was asked.
type fake struct {
	reverted []bool // each with its parameter
	removed  []string
	reloads  error
	exports  []control.Export
	patch    control.ExportPatch
	ports    []control.PortSpec
	level    string
	pprof    bool
	capture  control.CaptureSpec
	refuse   error // of captures
	mu       sync.Mutex
	samples  uint64
}

func (f *fake) Status() control.Status {
	return control.Status{Process: control.ProcessMemory{
		Resident: 5 << 30, Own: 1 << 30, Lent: 4 << 30, Mapped: 4 << 30, Limit: 4 << 30,
	}, State: control.StateRunning, Problems: []string{"export /x: gone"}}
}
func (f *fake) Config() ([]byte, error)   { return nil, nil }
func (f *fake) Exports() []control.Export { return f.exports }
func (f *fake) NFS4Clients() []control.NFS4Client {
	return []control.NFS4Client{{ID: "0x1", Owner: "a b"}}
}

func (f *fake) EvictClient(id string) error {
	if id == "0x1" {
		return nil
	}
	return fmt.Errorf("client %q: %w", id, control.ErrNotFound)
}
func (f *fake) NFS4Sessions() []control.NFS4Session { return []control.NFS4Session{} }
func (f *fake) Locks() []control.FileLock           { return []control.FileLock{} }
func (f *fake) Delegations() []control.Delegation {
	until := time.Date(2026, 1, 2, 3, 5, 0, 0, time.UTC)
	return []control.Delegation{
		{Export: "/a", FileID: 7, Client: "0x1", Given: time.Now().Add(-90 * time.Second)},
		{
			Export: "/a", FileID: 8, Client: "0x1", Write: true, Given: time.Now().Add(-time.Hour), Recalled: true,
			Acknowledged: true, Until: &until,
		},
	}
}
func (f *fake) Grace() control.Grace    { return control.Grace{On: true, Waiting: []string{"a b"}} }
func (f *fake) EndGrace() error         { return nil }
func (f *fake) PKeys() []control.PKey   { return []control.PKey{{PKey: "0xffff", Membership: "full"}} }
func (f *fake) AddPKey(string) error    { return nil }
func (f *fake) RemovePKey(string) error { return nil }
func (f *fake) AddExport(e config.Export) (control.Export, error) {
	f.exports = append(f.exports, control.Export{Export: e, Aliases: []string{}, Origin: control.OriginRuntime})
	return f.exports[len(f.exports)-1], nil
}

func (f *fake) SetExport(_ string, p control.ExportPatch) (control.Export, error) {
	f.patch = p
	return control.Export{}, nil
}

func (f *fake) RevertExports(removedOnly bool) error {
	f.reverted = append(f.reverted, removedOnly)
	return nil
}

func (f *fake) RemoveExport(name string) error {
	if name == "/data" {
		f.removed = append(f.removed, name)
		return nil
	}
	return fmt.Errorf("export %q: %w", name, control.ErrNotFound)
}
func (f *fake) Ports() []control.Port { return nil }
func (f *fake) AddPort(p control.PortSpec) (control.Port, error) {
	f.ports = append(f.ports, p)
	return control.Port{PortSpec: p, Addresses: []string{p.Listen}}, nil
}

func (f *fake) RemovePort(p control.PortSpec) error { f.ports = append(f.ports, p); return nil }
func (f *fake) Clients() []control.Client {
	return []control.Client{{Address: "127.0.0.9:1", Calls: 3}}
}

func (f *fake) QPs() []control.QP {
	return []control.QP{{
		QPN: 0x1234, Type: "RC", State: "RTS", Remote: "10.0.0.9:40000", RTTUS: 25,
		Counters: map[string]uint64{"retransmits": 5, "sent_pkts": 77},
	}}
}

func (f *fake) Stats() control.Stats {
	return control.Stats{
		RDMAWriteBytes: 12, Messages: map[string]uint64{"RDMA_MSG": 4},
		Procs: map[string]control.Proc{"nfs3.READ": {Calls: 2}},
	}
}
func (f *fake) Devices() []control.Device { return nil }

// Sample is one of a daemon that serves 1000 READs of 4096 bytes in each second of its life.
func (f *fake) Sample() live.Sample {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.samples++
	n := 1000 * f.samples
	return live.Sample{
		Host: "store1", Version: "v1", State: control.StateRunning, Started: time.Unix(1e9, 0),
		UptimeNS: int64(f.samples * 1e9),
		Operations: []live.Point{{
			Name: "nfs4.READ", Transport: "rdma", Out: 4096 * n, TookNS: 90_000 * n,
			Took: []uint64{0, 0, 0, 0, 0, 0, 0, n},
		}},
		Clients: []live.Point{{
			Name: "10.0.0.9", Transport: "rdma", Out: 4096 * n, TookNS: 90_000 * n,
			Took: []uint64{0, 0, 0, 0, 0, 0, 0, n},
		}},
		Server: live.Server{Problems: []string{}},
	}
}

func (f *fake) Ops() control.Ops          { return control.Ops{Addresses: []string{}, Pprof: f.pprof} }
func (f *fake) SetPprof(on bool)          { f.pprof = on }
func (f *fake) Denials() []control.Denial { return nil }

func (f *fake) Slow() []control.SlowCall {
	return []control.SlowCall{{
		Client: "10.0.0.9:700", Transport: "rdma", Operation: "nfs4.WRITE", Export: "/data",
		Status: "OK", TookUS: 1500, StoreUS: 1200, RDMAUS: 200,
	}}
}

func (f *fake) Trace(_ context.Context, client netip.Addr, w io.Writer, flush func() error) error {
	c := control.TraceCall{
		Arguments: "fh=0x1",
		SlowCall:  control.SlowCall{Client: client.String() + ":1", Operation: "nfs3.READ", Status: "OK"},
	}
	for range 3 {
		if err := json.NewEncoder(w).Encode(&c); err != nil {
			return err
		}
	}
	return flush()
}

func (f *fake) PostMortems() []control.PostMortem {
	uid := uint32(7)
	call := &control.PostMortemCall{Program: 100003, Version: 3, Procedure: 6, Name: "nfs3.READ", Flavor: 1, UID: &uid}
	return []control.PostMortem{{
		Count: 2, Device: "10.0.0.1", Peer: "10.0.0.9:40000", Local: "10.0.0.1:20049", Outcome: "broken", Reason: "it broke",
		Hint: "mend it",
		Request: &control.PostMortemREQ{
			Port: 20049, QPN: 17, PathMTU: 1024,
			Private: &control.PostMortemPrivate{Send: 4096, Receive: 4096},
		},
		Connection: &control.PostMortemConn{
			QPN:         99,
			NAKReceived: &control.PostMortemNAK{Count: 1, Syndrome: 0x62, Text: "remote access error"},
		},
		RPC: &control.PostMortemCalls{Calls: 5, First: call, Last: call},
	}, {
		Count: 1, Device: "rxe0/10.0.0.1", Provider: "verbs", Peer: "10.0.0.8:40000", Local: "10.0.0.1:20049",
		Outcome: "broken", Reason: "it broke", Hint: "mend it",
		PathMTUMax: 1024, Events: &control.PostMortemEvents{
			Transport: "RoCE v2", CM: "RDMA_CM_EVENT_ESTABLISHED",
			Async: "IBV_EVENT_PORT_ERR", AsyncUS: 5_000_000,
		},
		Request: &control.PostMortemREQ{Port: 20049, QPN: 17, PathMTU: 1024, RetryCount: 7},
		Connection: &control.PostMortemConn{
			QPN: 99, RemoteQPN: 17, Status: "transport retry counter exceeded",
			Failed: &control.PostMortemFailed{BeforeUS: 2, Op: "WRITE", Code: 12, Vendor: 0x81},
			Work: &control.PostMortemWork{
				Posted: 8, PostedBytes: 9, Received: 3, ReceivedBytes: 300, Flushed: 2,
				Outstanding: 4, OldestUS: 4_000, Receives: 30,
			},
			Requests: []control.PostMortemRequest{
				{BeforeUS: 6_000, Did: "posted", Op: "WRITE", Count: 3, Bytes: 3000},
				{Did: "failed", Op: "WRITE", Count: 1, Status: "retries", Vendor: 0x81},
			},
		},
	}}
}

func (f *fake) SetLogLevel(l string) error { f.level = l; return nil }
func (f *fake) Rescan() error              { return nil }

func (f *fake) Reload() error { return f.reloads }
func (f *fake) HA() (control.HA, error) {
	return control.HA{
		Node: "a", Role: control.RoleServing, Epoch: 4,
		Standbys: []control.StandbyNode{{Node: "b", Address: "10.0.0.2:20050"}},
	}, nil
}
func (f *fake) Demote() error { return nil }

func (f *fake) Cluster() (control.Cluster, error) { return control.Cluster{}, nil }

func (f *fake) DrainNode(string) error                   { return nil }
func (f *fake) ClusterHealth() (h control.ClusterHealth) { return h }
func (f *fake) Failover(to string) (control.FailedOver, error) {
	if to != "b" {
		return control.FailedOver{}, errors.New("no standby waits")
	}
	return control.FailedOver{From: "a", To: to, Version: "1.3", PauseMillis: 80.5, Dropped: 2}, nil
}

func (f *fake) Upgrade(path string) (control.Upgraded, error) {
	return control.Upgraded{
		Executable: path, OldVersion: "1.2", NewVersion: "1.3", OldPID: 6, PID: 7, PrepareMillis: 80,
		PauseMillis: 12.5, RDMA: 3, TCP: 1,
	}, nil
}
func (f *fake) Metrics(io.Writer) error                  { return nil }
func (f *fake) RecentLog() []byte                        { return nil }
func (f *fake) Goroutines(io.Writer) error               { return nil }
func (f *fake) Profile(context.Context, io.Writer) error { return nil }
func (f *fake) Plan(control.File) (control.Plan, error)  { return control.Plan{}, nil }
func (f *fake) Apply(control.Apply, control.Peer) (control.Applied, error) {
	return control.Applied{}, nil
}
func (f *fake) History() ([]history.Entry, error)       { return []history.Entry{}, nil }
func (f *fake) HistoryEntry(int) (history.Entry, error) { return history.Entry{}, control.ErrNotFound }
func (f *fake) Drift() control.Drift                    { return control.Drift{} }

func (f *fake) Capture(_ context.Context, c control.CaptureSpec, w io.Writer) error {
	f.capture = c
	if f.refuse != nil {
		return f.refuse
	}
	_, err := io.WriteString(w, "0123456789")
	return err
}

// run is rstorectl with the arguments: exit code and outputs.
type runner func(args ...string) (code int, out, errOut string)

func start(t *testing.T) (*fake, runner) {
	t.Helper()
	f := &fake{reloads: errors.New("rstored.yaml: no")}
	sock := filepath.Join(t.TempDir(), "c.sock")
	access, err := control.NewAccess("")
	if err != nil {
		t.Fatal(err)
	}
	l, err := control.Listen(sock, access)
	if err != nil {
		t.Fatal(err)
	}
	s := control.NewServer(f, access, zap.NewNop(), nil)
	ended := make(chan error, 1)
	go func() { ended <- s.Serve(l) }()
	t.Cleanup(func() {
		_ = s.Close()
		<-ended
	})
	return f, func(args ...string) (int, string, string) {
		var out, errOut bytes.Buffer
		g := &cli.Globals{Out: &out, Err: &errOut}
		root := Root(g)
		root.SetArgs(append([]string{"--control", sock}, args...))
		code := cli.Run(root, &errOut)
		return code, out.String(), errOut.String()
	}
}
