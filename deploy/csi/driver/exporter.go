package driver

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/rstored/rstored/nfs/client"
)

// exporter changes the exports of servers. If a class has the parameter control, each of its
// volumes has an export of its own. Only the nodes to which the volume is published may use that
// export. The quota of the export is the size of the volume.
type exporter interface {
	// Put exports a directory of a share; a new export admits nobody. If the directory is exported
	// already, Put sets the quota of the export. quota is in bytes; 0 is none.
	Put(ctx context.Context, control string, share client.URL, directory string, quota int64) error
	// Remove ends an export. A missing export is no error.
	Remove(ctx context.Context, control, name string) error
	// Allow and Deny change which addresses may use an export. Deny without addresses removes all.
	Allow(ctx context.Context, control, name string, addresses []string) error
	Deny(ctx context.Context, control, name string, addresses []string) error
}

// ControlPort is the port of the control interface if a class names none.
const ControlPort = "9048"

// exportRoot is the directory of a server's name space that has the exports of volumes. It is not
// below the share, because the nodes need not reach the share's export.
const exportRoot = "/csi"

// exportName is the path at which nodes find the export of a volume.
func exportName(share client.URL, directory string) string {
	return path.Join(exportRoot, share.Path, directory)
}

// ControlFiles are the PEM files by which the controller identifies itself to the control interface
// of servers.
type ControlFiles struct{ Cert, Key, CA string }

// control implements exporter by HTTPS.
type control struct{ files ControlFiles }

// errNoExport means that the server has no such export.
var errNoExport = errors.New("there is no such export")

// served is an export as the control interface has it.
type served struct {
	Path    string   `json:"path"`
	Pseudo  string   `json:"pseudo"`
	Type    string   `json:"type,omitempty"`
	Quota   string   `json:"quota,omitempty"`
	Aliases []string `json:"aliases,omitempty"`
	Clients []rule   `json:"clients,omitempty"`
}

// edit changes an export.
type edit struct {
	Add     []rule   `json:"add_clients,omitempty"`
	Remove  []string `json:"remove_clients,omitempty"`
	Clients *[]rule  `json:"clients,omitempty"`
	Options []string `json:"options,omitempty"`
	Unset   []string `json:"unset,omitempty"`
}

// rule admits an address, with root squashed.
type rule struct {
	CIDR string `json:"cidr"`
}

// do makes a request. It reads the files each time, so that they can be renewed.
func (c *control) do(ctx context.Context, server, method, at string, q url.Values, in, out any) error {
	host, _, err := net.SplitHostPort(server)
	if err != nil {
		host, server = strings.Trim(server, "[]"), net.JoinHostPort(strings.Trim(server, "[]"), ControlPort)
	}
	if c.files.Cert == "" || c.files.Key == "" || c.files.CA == "" {
		return errors.New("the controller has no certificate for the control of servers: give it --control-cert, " +
			"--control-key and --control-ca")
	}
	cert, err := tls.LoadX509KeyPair(c.files.Cert, c.files.Key)
	if err != nil {
		return err
	}
	pem, err := os.ReadFile(c.files.CA)
	if err != nil {
		return err
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(pem) {
		return fmt.Errorf("%s has no certificate", c.files.CA)
	}
	var body io.Reader
	if in != nil {
		b, err := json.Marshal(in)
		if err != nil {
			return err
		}
		body = bytes.NewReader(b)
	}
	u := url.URL{Scheme: "https", Host: server, Path: at, RawQuery: q.Encode()}
	req, err := http.NewRequestWithContext(ctx, method, u.String(), body)
	if err != nil {
		return err
	}
	t := &http.Transport{
		TLSClientConfig: &tls.Config{
			MinVersion: tls.VersionTLS13, ServerName: host, RootCAs: roots, Certificates: []tls.Certificate{cert},
		},
		DisableKeepAlives: true, TLSHandshakeTimeout: 10 * time.Second,
	}
	res, err := (&http.Client{Transport: t}).Do(req)
	if err != nil {
		return fmt.Errorf("control of %s: %w", server, err)
	}
	defer func() { _ = res.Body.Close() }()
	const most = 64 << 20
	answer := json.NewDecoder(io.LimitReader(res.Body, most))
	switch {
	case res.StatusCode == http.StatusNotFound:
		return fmt.Errorf("%s: %w", server, errNoExport)
	case res.StatusCode != http.StatusOK:
		var failure struct{ Error string }
		if err := answer.Decode(&failure); err != nil || failure.Error == "" {
			failure.Error = res.Status
		}
		return fmt.Errorf("control of %s: %s", server, failure.Error)
	case out != nil:
		return answer.Decode(out)
	}
	return nil
}

// nobody is the rule of an export that no node uses. An export without rules would admit the host
// of its server.
var nobody = []rule{{"0.0.0.0"}}

func named(name string) url.Values { return url.Values{"name": {name}} }

// Put implements exporter.
func (c *control) Put(ctx context.Context, server string, share client.URL, directory string, quota int64) error {
	var list []served
	if err := c.do(ctx, server, http.MethodGet, "/v1/exports", nil, nil, &list); err != nil {
		return err
	}
	at, err := hostPath(list, share.Path)
	if err != nil {
		return err
	}
	want := served{Path: path.Join(at, directory), Pseudo: exportName(share, directory), Type: "posix", Clients: nobody}
	if quota > 0 {
		want.Quota = strconv.FormatInt(quota, 10)
	}
	i := slices.IndexFunc(list, func(e served) bool { return e.Pseudo == want.Pseudo })
	if i < 0 {
		return c.do(ctx, server, http.MethodPost, "/v1/exports", nil, want, nil)
	}
	switch {
	case list[i].Path != want.Path:
		return fmt.Errorf("%s exports %s as %s already", server, list[i].Path, want.Pseudo)
	case list[i].Quota == want.Quota:
		return nil
	}
	e := edit{Options: []string{"quota=" + want.Quota}}
	if quota == 0 {
		e = edit{Unset: []string{"quota"}}
	}
	return c.do(ctx, server, http.MethodPut, "/v1/export", named(want.Pseudo), e, nil)
}

// hostPath returns the directory on the server's host that clients mount as share. If several
// exports contain share, the one with the longest name counts.
func hostPath(list []served, share string) (string, error) {
	found, dir := "", ""
	for _, e := range list {
		for _, name := range append([]string{e.Pseudo}, e.Aliases...) {
			rest, ok := strings.CutPrefix(share, strings.TrimSuffix(name, "/"))
			if ok && (rest == "" || rest[0] == '/') && len(name) > len(found) && (e.Type == "posix" || e.Type == "") {
				found, dir = name, path.Join(e.Path, rest)
			}
		}
	}
	if found == "" {
		return "", fmt.Errorf("%w with a directory that clients mount as %s", errNoExport, share)
	}
	return dir, nil
}

// Remove implements exporter.
func (c *control) Remove(ctx context.Context, server, name string) error {
	err := c.do(ctx, server, http.MethodDelete, "/v1/export", named(name), nil, nil)
	if errors.Is(err, errNoExport) {
		return nil
	}
	return err
}

// Allow implements exporter.
func (c *control) Allow(ctx context.Context, server, name string, addresses []string) error {
	var e edit
	for _, a := range addresses {
		e.Add = append(e.Add, rule{a})
	}
	return c.do(ctx, server, http.MethodPut, "/v1/export", named(name), e, nil)
}

// Deny implements exporter.
func (c *control) Deny(ctx context.Context, server, name string, addresses []string) error {
	var list []served
	if err := c.do(ctx, server, http.MethodGet, "/v1/exports", nil, nil, &list); err != nil {
		return err
	}
	i := slices.IndexFunc(list, func(e served) bool { return e.Pseudo == name })
	if i < 0 {
		return nil
	}
	if len(addresses) == 0 {
		return c.do(ctx, server, http.MethodPut, "/v1/export", named(name), edit{Clients: &nobody}, nil)
	}
	var e edit
	for _, r := range list[i].Clients {
		if slices.Contains(addresses, strings.TrimSuffix(strings.TrimSuffix(r.CIDR, "/32"), "/128")) {
			e.Remove = append(e.Remove, r.CIDR)
		}
	}
	if len(e.Remove) == 0 {
		return nil
	}
	return c.do(ctx, server, http.MethodPut, "/v1/export", named(name), e, nil)
}

// controlError adds a code that tells the caller whether to try again.
func controlError(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled):
		return status.Error(codes.DeadlineExceeded, err.Error())
	case strings.Contains(err.Error(), "quota"):
		return status.Errorf(codes.FailedPrecondition, "%v (without project quotas set %s: %s in the class)", err, paramQuota,
			quotaRecorded)
	}
	return status.Error(codes.Unavailable, err.Error())
}
