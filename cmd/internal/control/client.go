package control

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/rstored/rstored/cmd/internal/certs"
	"github.com/rstored/rstored/cmd/internal/config"
	"github.com/rstored/rstored/cmd/internal/live"
)

// Dialer is the client's side of the control interface. It may be used from
// several goroutines.
type Dialer struct {
	where  string // the socket, or HOST:PORT
	scheme string
	remote bool
	err    error // what is wrong with how the server is to be reached
	http   http.Client
}

// Dial prepares to talk to the daemon behind the socket. It connects when
// something is asked.
func Dial(socket string) *Dialer {
	return &Dialer{where: socket, scheme: "http", http: http.Client{Transport: &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			var d net.Dialer
			return d.DialContext(ctx, "unix", socket)
		},
	}}}
}

// DialRemote prepares to talk to the daemon of another host, at HOST:PORT or at HOST, as who the
// certificate says.
func DialRemote(server string, files certs.Files) *Dialer {
	host, port, err := net.SplitHostPort(server)
	if err != nil {
		host, port = strings.Trim(server, "[]"), strconv.Itoa(config.ControlPort)
	}
	at := net.JoinHostPort(host, port)
	d := &Dialer{where: at, scheme: "https", remote: true}
	if files.Cert == "" || files.Key == "" {
		d.err = errors.New("control of another host needs a certificate: --cert and --key, or RSTORECTL_CERT and RSTORECTL_KEY")
		return d
	}
	store, err := certs.Load(files, nil)
	if err != nil {
		d.err = err
		return d
	}
	d.http.Transport = &http.Transport{DialTLSContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&tls.Dialer{NetDialer: &net.Dialer{Timeout: dialTime}, Config: store.Client(host)}).DialContext(ctx, "tcp", at)
	}}
	return d
}

// dialTime bounds the time for a connection to another host.
const dialTime = 10 * time.Second

// do makes one request. in and out may be nil.
func (d *Dialer) do(ctx context.Context, method, path string, q url.Values, in, out any) error {
	res, err := d.open(ctx, method, path, q, in)
	if err != nil {
		return err
	}
	defer func() { _ = res.Body.Close() }()
	if raw, ok := out.(*[]byte); ok {
		*raw, err = io.ReadAll(res.Body)
		return err
	}
	if out == nil {
		return nil
	}
	if err := json.NewDecoder(res.Body).Decode(out); err != nil {
		return fmt.Errorf("the answer of %s is not understood: %w", d.where, err)
	}
	return nil
}

func (d *Dialer) open(ctx context.Context, method, path string, q url.Values, in any) (*http.Response, error) {
	var body io.Reader
	if in != nil {
		b, err := json.Marshal(in)
		if err != nil {
			return nil, err
		}
		body = bytes.NewReader(b)
	}
	if d.err != nil {
		return nil, d.err
	}
	u := url.URL{Scheme: d.scheme, Host: "rstored", Path: path, RawQuery: q.Encode()}
	req, err := http.NewRequestWithContext(ctx, method, u.String(), body)
	if err != nil {
		return nil, err
	}
	res, err := d.http.Do(req)
	if err != nil {
		return nil, d.explain(err)
	}
	if res.StatusCode == http.StatusOK {
		return res, nil
	}
	defer func() { _ = res.Body.Close() }()
	var f failure
	if err := json.NewDecoder(io.LimitReader(res.Body, maxBody)).Decode(&f); err != nil || f.Error == "" {
		return nil, fmt.Errorf("%s answered %s", d.where, res.Status)
	}
	return nil, errors.New(f.Error)
}

// explain turns the errors of connecting into advice.
func (d *Dialer) explain(err error) error {
	var ue *url.Error
	if errors.As(err, &ue) {
		err = ue.Err
	}
	if d.remote {
		return d.explainRemote(err)
	}
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ECONNREFUSED):
		return fmt.Errorf("no rstored answers at %s; is it running, and is this its --control socket?", d.where)
	case errors.Is(err, fs.ErrPermission):
		return fmt.Errorf("%s: permission denied; use the user that rstored runs as, root, or a member of its control group", d.where)
	}
	return err
}

// explainRemote is explain for another host.
func (d *Dialer) explainRemote(err error) error {
	var refused *net.OpError
	var unknown x509.UnknownAuthorityError
	switch {
	case errors.Is(err, syscall.ECONNREFUSED):
		return fmt.Errorf("nobody answers at %s; is control_tls.listen of its configuration this address?", d.where)
	case errors.As(err, &unknown):
		return fmt.Errorf("%s: %w; --ca names the authority of its certificate", d.where, err)
	case errors.As(err, &refused) && refused.Op == "remote error": // an alert
		return fmt.Errorf("%s refuses the certificate: %w", d.where, err)
	}
	return fmt.Errorf("%s: %w", d.where, err)
}

// Status asks for the daemon's status.
func (d *Dialer) Status(ctx context.Context) (s Status, err error) {
	return s, d.do(ctx, http.MethodGet, "/v1/status", nil, nil, &s)
}

// Config asks for the configuration in force, as YAML.
func (d *Dialer) Config(ctx context.Context) (y []byte, err error) {
	return y, d.do(ctx, http.MethodGet, "/v1/config", nil, nil, &y)
}

// Exports lists the exports.
func (d *Dialer) Exports(ctx context.Context) (e []Export, err error) {
	return e, d.do(ctx, http.MethodGet, "/v1/exports", nil, nil, &e)
}

// Export finds one by pseudo path, alias or path.
func (d *Dialer) Export(ctx context.Context, name string) (e Export, err error) {
	return e, d.do(ctx, http.MethodGet, "/v1/export", url.Values{"name": {name}}, nil, &e)
}

// AddExport adds one, for good.
func (d *Dialer) AddExport(ctx context.Context, in config.Export) (e Export, err error) {
	return e, d.do(ctx, http.MethodPost, "/v1/exports", nil, in, &e)
}

// SetExport changes one, for good.
func (d *Dialer) SetExport(ctx context.Context, name string, p ExportPatch) (e Export, err error) {
	return e, d.do(ctx, http.MethodPut, "/v1/export", url.Values{"name": {name}}, p, &e)
}

// RemoveExport removes one, for good.
func (d *Dialer) RemoveExport(ctx context.Context, name string) error {
	return d.do(ctx, http.MethodDelete, "/v1/export", url.Values{"name": {name}}, nil, nil)
}

// Ports lists the ports.
func (d *Dialer) Ports(ctx context.Context) (p []Port, err error) {
	return p, d.do(ctx, http.MethodGet, "/v1/ports", nil, nil, &p)
}

// AddPort adds one, for good.
func (d *Dialer) AddPort(ctx context.Context, in PortSpec) (p Port, err error) {
	return p, d.do(ctx, http.MethodPost, "/v1/ports", nil, in, &p)
}

// RemovePort removes one, for good.
func (d *Dialer) RemovePort(ctx context.Context, p PortSpec) error {
	return d.do(ctx, http.MethodDelete, "/v1/port", url.Values{"transport": {p.Transport}, "listen": {p.Listen}}, nil, nil)
}

// PKeys lists the partitions.
func (d *Dialer) PKeys(ctx context.Context) (k []PKey, err error) {
	return k, d.do(ctx, http.MethodGet, "/v1/pkeys", nil, nil, &k)
}

// AddPKey joins a partition, for good.
func (d *Dialer) AddPKey(ctx context.Context, key string) error {
	return d.do(ctx, http.MethodPost, "/v1/pkeys", nil, PKey{PKey: key}, nil)
}

// RemovePKey leaves one, for good.
func (d *Dialer) RemovePKey(ctx context.Context, key string) error {
	return d.do(ctx, http.MethodDelete, "/v1/pkey", url.Values{"pkey": {key}}, nil, nil)
}

// NFS4Clients lists the clients of version 4 that the server remembers.
func (d *Dialer) NFS4Clients(ctx context.Context) (c []NFS4Client, err error) {
	return c, d.do(ctx, http.MethodGet, "/v1/nfs4-clients", nil, nil, &c)
}

// EvictClient ends one and everything that it has.
func (d *Dialer) EvictClient(ctx context.Context, id string) error {
	return d.do(ctx, http.MethodDelete, "/v1/nfs4-client", url.Values{"id": {id}}, nil, nil)
}

// NFS4Sessions lists the sessions of version 4.
func (d *Dialer) NFS4Sessions(ctx context.Context) (s []NFS4Session, err error) {
	return s, d.do(ctx, http.MethodGet, "/v1/nfs4-sessions", nil, nil, &s)
}

// Locks lists byte-range locks, of all protocols.
func (d *Dialer) Locks(ctx context.Context) (l []FileLock, err error) {
	return l, d.do(ctx, http.MethodGet, "/v1/locks", nil, nil, &l)
}

// Delegations lists the files that are delegated to clients of version 4.
func (d *Dialer) Delegations(ctx context.Context) (l []Delegation, err error) {
	return l, d.do(ctx, http.MethodGet, "/v1/delegations", nil, nil, &l)
}

// Grace says whether clients may reclaim what they had before a restart.
func (d *Dialer) Grace(ctx context.Context) (g Grace, err error) {
	return g, d.do(ctx, http.MethodGet, "/v1/grace", nil, nil, &g)
}

// EndGrace ends that.
func (d *Dialer) EndGrace(ctx context.Context) error {
	return d.do(ctx, http.MethodDelete, "/v1/grace", nil, nil, nil)
}

// Slow lists the slowest calls of the last minutes, the slowest first.
func (d *Dialer) Slow(ctx context.Context) (s []SlowCall, err error) {
	return s, d.do(ctx, http.MethodGet, "/v1/slow", nil, nil, &s)
}

// Ops says how the daemon is watched.
func (d *Dialer) Ops(ctx context.Context) (o Ops, err error) {
	return o, d.do(ctx, http.MethodGet, "/v1/ops", nil, nil, &o)
}

// SetPprof turns profiles at the ops ports on or off, until the next reload or start.
func (d *Dialer) SetPprof(ctx context.Context, on bool) error {
	return d.do(ctx, http.MethodPut, "/v1/ops", url.Values{"pprof": {onOff(on)}}, nil, nil)
}

// Clients lists the connections.
func (d *Dialer) Clients(ctx context.Context) (c []Client, err error) {
	return c, d.do(ctx, http.MethodGet, "/v1/clients", nil, nil, &c)
}

// QPs lists the queue pairs of all devices.
func (d *Dialer) QPs(ctx context.Context) (q []QP, err error) {
	return q, d.do(ctx, http.MethodGet, "/v1/qps", nil, nil, &q)
}

// Stats asks for the counters.
func (d *Dialer) Stats(ctx context.Context) (s Stats, err error) {
	return s, d.do(ctx, http.MethodGet, "/v1/stats", nil, nil, &s)
}

// Sample asks for the counters of calls, clients and queue pairs.
func (d *Dialer) Sample(ctx context.Context) (s live.Sample, err error) {
	return s, d.do(ctx, http.MethodGet, "/v1/sample", nil, nil, &s)
}

// Devices lists the RDMA devices.
func (d *Dialer) Devices(ctx context.Context) (v []Device, err error) {
	return v, d.do(ctx, http.MethodGet, "/v1/devices", nil, nil, &v)
}

// PostMortems lists the RDMA connections that ended badly, the latest first.
func (d *Dialer) PostMortems(ctx context.Context) (p []PostMortem, err error) {
	return p, d.do(ctx, http.MethodGet, "/v1/post-mortems", nil, nil, &p)
}

// Upgrade has the executable at a path, or the one that the daemon was started as, take the daemon's place.
func (d *Dialer) Upgrade(ctx context.Context, executable string) (u Upgraded, err error) {
	return u, d.do(ctx, http.MethodPost, "/v1/upgrade", url.Values{"executable": {executable}}, nil, &u)
}

// SetLogLevel changes the log level until the next reload or start.
func (d *Dialer) SetLogLevel(ctx context.Context, level string) error {
	return d.do(ctx, http.MethodPut, "/v1/log-level", url.Values{"level": {level}}, nil, nil)
}

// Reload has the daemon read its configuration again.
func (d *Dialer) Reload(ctx context.Context) error {
	return d.do(ctx, http.MethodPost, "/v1/reload", nil, nil, nil)
}

// FlushIDMap has the daemon look users, groups and hosts up again.
func (d *Dialer) FlushIDMap(ctx context.Context) error {
	return d.do(ctx, http.MethodPost, "/v1/idmap/flush", nil, nil, nil)
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
