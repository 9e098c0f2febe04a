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
)

// Dialer is the client of the control interface. Several goroutines may use it.
type Dialer struct {
	where  string // the socket, or HOST:PORT
	scheme string
	remote bool
	err    error // what is wrong with how the server is to be reached
	http   http.Client
}

// Dial makes a Dialer for the daemon at a socket. It connects at the first request.
func Dial(socket string) *Dialer {
	return &Dialer{where: socket, scheme: "http", http: http.Client{Transport: &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			var d net.Dialer
			return d.DialContext(ctx, "unix", socket)
		},
	}}}
}

// DialRemote makes a Dialer for the daemon of another host, at HOST:PORT or at HOST. The
// certificate identifies the client.
func DialRemote(server string, files certs.Files) *Dialer {
	host, port, err := net.SplitHostPort(server)
	if err != nil {
		host, port = strings.Trim(server, "[]"), strconv.Itoa(config.ControlPort)
	}
	at := net.JoinHostPort(host, port)
	d := &Dialer{where: at, scheme: "https", remote: true}
	if files.Cert == "" || files.Key == "" {
		d.err = errors.New(
			"control of another host needs a certificate: --cert and --key, or RSTORECTL_CERT and RSTORECTL_KEY")
		return d
	}
	store, err := certs.Load(files, nil)
	if err != nil {
		d.err = err
		return d
	}
	d.http.Transport = &http.Transport{DialTLSContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&tls.Dialer{NetDialer: &net.Dialer{Timeout: dialTime}, Config: store.Client(host)}).DialContext(ctx, "tcp",
			at)
	}}
	return d
}

// dialTime bounds the time for a connection to another host.
const dialTime = 10 * time.Second

// do makes one request. in is the body and out receives the answer; both may be nil.
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
	if method == http.MethodGet && (errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET)) && ctx.Err() == nil {
		// A process that was just replaced by a live upgrade accepted the connection. The one after
		// it answers.
		res, err = d.http.Do(req)
	}
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

// explain adds advice to errors of connecting.
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
		return fmt.Errorf(
			"%s: permission denied; use the user that rstored runs as, root, or a member of its control group", d.where)
	}
	return err
}

// explainRemote is explain for another host.
func (d *Dialer) explainRemote(err error) error {
	var refused *net.OpError
	var unknown x509.UnknownAuthorityError
	switch {
	case errors.Is(err, syscall.ECONNREFUSED):
		return fmt.Errorf("no server answers at %s; is control_tls.listen of its configuration this address?", d.where)
	case errors.As(err, &unknown):
		return fmt.Errorf("%s: %w; --ca names the authority of its certificate", d.where, err)
	case errors.As(err, &refused) && refused.Op == "remote error": // an alert
		return fmt.Errorf("%s refuses the certificate: %w", d.where, err)
	}
	return fmt.Errorf("%s: %w", d.where, err)
}
