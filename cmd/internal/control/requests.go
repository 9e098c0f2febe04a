package control

import (
	"context"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strconv"

	"github.com/rstored/rstored/cmd/internal/config"
	"github.com/rstored/rstored/cmd/internal/live"
	"github.com/rstored/rstored/cmd/internal/state"
)

// ask makes a request without a body and decodes the answer. Parameters are name, value, name,
// value.
func ask[T any](ctx context.Context, d *Dialer, path string, params ...string) (v T, err error) {
	err = d.do(ctx, http.MethodGet, path, values(params), nil, &v)
	return v, err
}

// send makes a request that may change something, and decodes the answer.
func send[T any](ctx context.Context, d *Dialer, method, path string, in any, params ...string) (v T, err error) {
	err = d.do(ctx, method, path, values(params), in, &v)
	return v, err
}

// order makes a request whose answer is empty.
func (d *Dialer) order(ctx context.Context, method, path string, in any, params ...string) error {
	return d.do(ctx, method, path, values(params), in, nil)
}

func values(params []string) url.Values {
	q := url.Values{}
	for p := range slices.Chunk(params, 2) {
		q.Set(p[0], p[1])
	}
	return q
}

// Status asks for the daemon's status.
func (d *Dialer) Status(ctx context.Context) (Status, error) {
	return ask[Status](ctx, d, "/v1/status")
}

// Config asks for the configuration in force, as YAML.
func (d *Dialer) Config(ctx context.Context) ([]byte, error) {
	return ask[[]byte](ctx, d, "/v1/config")
}

// Exports lists the exports.
func (d *Dialer) Exports(ctx context.Context) ([]Export, error) {
	return ask[[]Export](ctx, d, "/v1/exports")
}

// Ports lists the ports.
func (d *Dialer) Ports(ctx context.Context) ([]Port, error) { return ask[[]Port](ctx, d, "/v1/ports") }

// PKeys lists the partitions.
func (d *Dialer) PKeys(ctx context.Context) ([]PKey, error) { return ask[[]PKey](ctx, d, "/v1/pkeys") }

// NFS4Clients lists the clients of version 4 that have state on the server.
func (d *Dialer) NFS4Clients(ctx context.Context) ([]NFS4Client, error) {
	return ask[[]NFS4Client](ctx, d, "/v1/nfs4-clients")
}

// NFS4Sessions lists the sessions of version 4.
func (d *Dialer) NFS4Sessions(ctx context.Context) ([]NFS4Session, error) {
	return ask[[]NFS4Session](ctx, d, "/v1/nfs4-sessions")
}

// Locks lists byte-range locks, of all protocols.
func (d *Dialer) Locks(ctx context.Context) ([]FileLock, error) {
	return ask[[]FileLock](ctx, d, "/v1/locks")
}

// Delegations lists the files that are delegated to clients of version 4.
func (d *Dialer) Delegations(ctx context.Context) ([]Delegation, error) {
	return ask[[]Delegation](ctx, d, "/v1/delegations")
}

// Grace reports the grace period.
func (d *Dialer) Grace(ctx context.Context) (Grace, error) { return ask[Grace](ctx, d, "/v1/grace") }

// Slow lists the slowest calls of the last minutes, the slowest first.
func (d *Dialer) Slow(ctx context.Context) ([]SlowCall, error) {
	return ask[[]SlowCall](ctx, d, "/v1/slow")
}

// Ops reports the ops ports, and whether they answer profiles.
func (d *Dialer) Ops(ctx context.Context) (Ops, error) { return ask[Ops](ctx, d, "/v1/ops") }

// Clients lists the connections of clients.
func (d *Dialer) Clients(ctx context.Context) ([]Client, error) {
	return ask[[]Client](ctx, d, "/v1/clients")
}

// QPs lists the queue pairs of all devices.
func (d *Dialer) QPs(ctx context.Context) ([]QP, error) { return ask[[]QP](ctx, d, "/v1/qps") }

// Stats asks for the counters.
func (d *Dialer) Stats(ctx context.Context) (Stats, error) { return ask[Stats](ctx, d, "/v1/stats") }

// Sample asks for the counters of calls, clients and queue pairs.
func (d *Dialer) Sample(ctx context.Context) (live.Sample, error) {
	return ask[live.Sample](ctx, d, "/v1/sample")
}

// Devices lists the RDMA devices.
func (d *Dialer) Devices(ctx context.Context) ([]Device, error) {
	return ask[[]Device](ctx, d, "/v1/devices")
}

// PostMortems lists the RDMA connections that failed, the latest first.
func (d *Dialer) PostMortems(ctx context.Context) ([]PostMortem, error) {
	return ask[[]PostMortem](ctx, d, "/v1/post-mortems")
}

// Denials lists the clients that the rules of exports have denied, the latest first.
func (d *Dialer) Denials(ctx context.Context) ([]Denial, error) {
	return ask[[]Denial](ctx, d, "/v1/denials")
}

// History lists the files that were applied, the latest first.
func (d *Dialer) History(ctx context.Context) ([]state.Entry, error) {
	return ask[[]state.Entry](ctx, d, "/v1/history")
}

// Drift asks how the running state differs from the written one.
func (d *Dialer) Drift(ctx context.Context) (Drift, error) { return ask[Drift](ctx, d, "/v1/drift") }

// Export finds an export by pseudo path, alias or path.
func (d *Dialer) Export(ctx context.Context, name string) (Export, error) {
	return ask[Export](ctx, d, "/v1/export", "name", name)
}

// AddExport adds an export, now and after restarts.
func (d *Dialer) AddExport(ctx context.Context, in config.Export) (Export, error) {
	return send[Export](ctx, d, http.MethodPost, "/v1/exports", in)
}

// SetExport changes an export, now and after restarts.
func (d *Dialer) SetExport(ctx context.Context, name string, p ExportPatch) (Export, error) {
	return send[Export](ctx, d, http.MethodPut, "/v1/export", p, "name", name)
}

// RemoveExport removes an export, now and after restarts.
func (d *Dialer) RemoveExport(ctx context.Context, name string) error {
	return d.order(ctx, http.MethodDelete, "/v1/export", nil, "name", name)
}

// RevertExports ends the changes of exports that were made at run time, or only removals.
func (d *Dialer) RevertExports(ctx context.Context, removedOnly bool) error {
	which := ""
	if removedOnly {
		which = removalsOnly
	}
	return d.order(ctx, http.MethodDelete, "/v1/export-changes", nil, "removed", which)
}

// removalsOnly is the value of a parameter of RevertExports.
const removalsOnly = "only"

// AddPort adds a port, now and after restarts.
func (d *Dialer) AddPort(ctx context.Context, in PortSpec) (Port, error) {
	return send[Port](ctx, d, http.MethodPost, "/v1/ports", in)
}

// RemovePort removes a port, now and after restarts.
func (d *Dialer) RemovePort(ctx context.Context, p PortSpec) error {
	return d.order(ctx, http.MethodDelete, "/v1/port", nil, "transport", p.Transport, "listen", p.Listen)
}

// AddPKey joins a partition, now and after restarts.
func (d *Dialer) AddPKey(ctx context.Context, key string) error {
	return d.order(ctx, http.MethodPost, "/v1/pkeys", PKey{PKey: key})
}

// RemovePKey leaves a partition, now and after restarts.
func (d *Dialer) RemovePKey(ctx context.Context, key string) error {
	return d.order(ctx, http.MethodDelete, "/v1/pkey", nil, "pkey", key)
}

// EvictClient removes a client of version 4 and its state.
func (d *Dialer) EvictClient(ctx context.Context, id string) error {
	return d.order(ctx, http.MethodDelete, "/v1/nfs4-client", nil, "id", id)
}

// EndGrace ends the grace period.
func (d *Dialer) EndGrace(ctx context.Context) error {
	return d.order(ctx, http.MethodDelete, "/v1/grace", nil)
}

// SetPprof turns profiles at the ops ports on or off, until the next reload or start.
func (d *Dialer) SetPprof(ctx context.Context, on bool) error {
	return d.order(ctx, http.MethodPut, "/v1/ops", nil, "pprof", onOff(on))
}

// Upgrade hands over to the executable at a path, or at the path of the running daemon if it is
// empty.
func (d *Dialer) Upgrade(ctx context.Context, executable string) (Upgraded, error) {
	return send[Upgraded](ctx, d, http.MethodPost, "/v1/upgrade", nil, "executable", executable)
}

// SetLogLevel changes the log level until the next reload or start.
func (d *Dialer) SetLogLevel(ctx context.Context, level string) error {
	return d.order(ctx, http.MethodPut, "/v1/log-level", nil, "level", level)
}

// Rescan makes the daemon look for mounts and snapshots of its host.
func (d *Dialer) Rescan(ctx context.Context) error {
	return d.order(ctx, http.MethodPost, "/v1/rescan", nil)
}

// Reload makes the daemon read its configuration again.
func (d *Dialer) Reload(ctx context.Context) error {
	return d.order(ctx, http.MethodPost, "/v1/reload", nil)
}

// FlushIDMap makes the daemon look up users, groups and hosts again.
func (d *Dialer) FlushIDMap(ctx context.Context) error {
	return d.order(ctx, http.MethodPost, "/v1/idmap/flush", nil)
}

// Plan asks what a file would change.
func (d *Dialer) Plan(ctx context.Context, f File) (Plan, error) {
	return send[Plan](ctx, d, http.MethodPost, "/v1/plan", f)
}

// Apply changes the running state, now and after restarts.
func (d *Dialer) Apply(ctx context.Context, a Apply) (Applied, error) {
	return send[Applied](ctx, d, http.MethodPost, "/v1/apply", a)
}

// HistoryEntry returns an applied file with its text. Number 0 is the entry before the last one.
// After the first file that is the state before it, as an entry with the number 0.
func (d *Dialer) HistoryEntry(ctx context.Context, number int) (state.Entry, error) {
	return ask[state.Entry](ctx, d, "/v1/history-entry", "number", strconv.Itoa(number))
}

// Raw returns the bytes of the answer at a path.
func (d *Dialer) Raw(ctx context.Context, path string, q url.Values) (b []byte, err error) {
	err = d.do(ctx, http.MethodGet, path, q, nil, &b)
	return b, err
}

// Capture copies a pcap stream to w until ctx ends or the daemon
// does. The end of ctx is not an error.
func (d *Dialer) Capture(ctx context.Context, c CaptureSpec, w io.Writer) error {
	res, err := d.open(ctx, http.MethodGet, "/v1/capture", c.values(), nil)
	if err != nil {
		return err
	}
	defer func() { _ = res.Body.Close() }()
	if _, err = io.Copy(w, res.Body); ctx.Err() != nil {
		return nil
	}
	return err
}
