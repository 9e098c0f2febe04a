package bundle

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rstored/rstored/cmd/internal/control"
)

// TestRedact: secrets go, in every form, and nothing else does.
func TestRedact(t *testing.T) {
	const pem = "-----BEGIN EC PRIVATE KEY-----\nplanted\nplanted==\n-----END EC PRIVATE KEY-----"
	for _, in := range []string{
		"password: planted", "  db_password = planted two words", `{"token":"planted","n":1}`, `{"api_key": "a\"planted"}`,
		"x handle_secret=planted y",
		"https://me:planted@host/x", "http://planted@host/", "Authorization: Basic cGxhbnRlZA==planted",
		"sent Bearer planted.planted.planted", pem,
		`{"msg":"` + strings.ReplaceAll(pem, "\n", `\n`) + `","n":1}`,
		"-----BEGIN PRIVATE KEY-----\nplanted and then the end is cut off",
		"# my Password: planted", `passphrase="planted"`, "private_key: |planted", `level=info msg="token=planted"`,
	} {
		if out := string(redact([]byte(in))); strings.Contains(out, "planted") || !strings.Contains(out, redacted) {
			t.Errorf("%q: %q", in, out)
		}
	}
	for _, in := range []string{
		`{"pkey":"0xffff","key":"log_level"}`, "private data: f6ab", "10.0.0.1:20049", "a@b is somebody",
		"-----BEGIN CERTIFICATE-----\nabc\n-----END CERTIFICATE-----",
		"rdma_packet_with_bad_icrc 7", "https://host:443/path?x=1",
	} {
		if out := string(redact([]byte(in))); out != in {
			t.Errorf("%q: %q", in, out)
		}
	}
	yaml := "# planted\nexports: [] # planted\nremote:\n  password: |\n    planted\n    planted\n  headers: " +
		"[a=planted]\n  url: http://u:planted@h/\n"
	if out := string(redactYAML([]byte(yaml))); strings.Contains(out, "planted") ||
		!strings.Contains(out, "exports: []") || strings.Count(out, redacted) != 3 {
		t.Errorf("%s", out)
	}
	if out := string(redactYAML([]byte("a: [ # planted\n token: planted\n"))); strings.Contains(out, "planted") {
		t.Errorf("broken: %s", out)
	}
}

// TestAnonymise: names are replaced in all their spellings, by the same one each time.
func TestAnonymise(t *testing.T) {
	a := &anonymiser{names: make(map[string]string), count: make(map[string]int)}
	a.learnPath("/srv/Hidden Place/x<y")
	a.learnHost("*.hidden.test")
	a.learn("vm")
	in := strings.Join([]string{
		`{"path":"/srv/Hidden Place/x\u003cy"}`, `/srv/Hidden\040Place`, "/v1/export?name=%2Fsrv%2FHidden+Place",
		"HIDDEN PLACE", "n1.hidden.test", "vm nvme",
		"10.1.2.3:700 10.1.2.3 [2001:db8::7]:20049 ::ffff:10.1.2.3 2001:db8:0::7", "127.0.0.1 ::1 0.0.0.0 18:10:01.5 v1.2.3",
		"opened /var/lib/rstored/unheard/of now", "de:ad:be:ef:00:01",
	}, "\n")
	want := strings.Join([]string{
		`{"path":"/srv/name-1/name-2"}`, `/srv/name-1`, "/v1/name-6", "name-1", "n1.name-3", "name-5 nvme",
		"addr-2:700 addr-2 [addr-1]:20049 addr-2 addr-1", "127.0.0.1 ::1 0.0.0.0 18:10:01.5 v1.2.3",
		"opened /var/lib/rstored/name-7/name-8 now", "mac-1",
	}, "\n")
	a.known = []string{"Hidden Place", "x<y", "hidden.test", "hidden", "vm"}
	for _, k := range a.known {
		a.alias("name", k)
	}
	if got := string(a.replace([]byte(in), true)); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

// fake answers with what it was given, or not at all.
type fake struct {
	answers map[string]string
	err     error
}

func (f *fake) Raw(_ context.Context, path string, _ url.Values) ([]byte, error) {
	return []byte(f.answers[path]), f.err
}

func (f *fake) Status(context.Context) (control.Status, error) {
	return control.Status{PID: os.Getpid()}, f.err
}
func (f *fake) Exports(context.Context) ([]control.Export, error)         { return nil, f.err }
func (f *fake) Ports(context.Context) ([]control.Port, error)             { return nil, f.err }
func (f *fake) Devices(context.Context) ([]control.Device, error)         { return nil, f.err }
func (f *fake) Stats(context.Context) (control.Stats, error)              { return control.Stats{}, f.err }
func (f *fake) Denials(context.Context) ([]control.Denial, error)         { return nil, f.err }
func (f *fake) PostMortems(context.Context) ([]control.PostMortem, error) { return nil, f.err }
func (f *fake) Drift(context.Context) (control.Drift, error)              { return control.Drift{}, f.err }

func (f *fake) ClusterHealth(context.Context) (h control.ClusterHealth, err error) {
	return h, f.err
}

// unpack reads a bundle, and holds it against its manifest.
func unpack(t *testing.T, b []byte) (m Manifest, files map[string][]byte) {
	t.Helper()
	z, err := gzip.NewReader(bytes.NewReader(b))
	if err != nil {
		t.Fatal(err)
	}
	files = make(map[string][]byte)
	for r := tar.NewReader(z); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		data, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		files[strings.TrimPrefix(h.Name, "rstored-support/")] = data
	}
	if err := json.Unmarshal(files["manifest.json"], &m); err != nil {
		t.Fatal(err)
	}
	if len(files) != len(m.Files)+1 {
		t.Errorf("%d files and a manifest of %d", len(files), len(m.Files))
	}
	for _, f := range m.Files {
		sum := sha256.Sum256(files[f.Name])
		if hex.EncodeToString(sum[:]) != f.SHA256 || len(files[f.Name]) != f.Size || f.What == "" {
			t.Errorf("%s is not what the manifest says", f.Name)
		}
	}
	return m, files
}

// TestBounds: what is too long is cut at the front, what is too much is left out and named.
func TestBounds(t *testing.T) {
	long := strings.Repeat("0123456789abcde\n", fileMax/16+100)
	f := &fake{answers: make(map[string]string)}
	for _, a := range answers {
		f.answers[a.path] = long
	}
	var out bytes.Buffer
	if _, err := Write(t.Context(), &out,
		Config{Daemon: f, Root: t.TempDir(), File: "/none", Unit: "no-such-unit"}); err != nil {
		t.Fatal(err)
	}
	m, files := unpack(t, out.Bytes())
	total, cut := 0, 0
	for _, x := range m.Files {
		total += x.Size
		if x.Cut {
			cut++
			if x.Size > fileMax || !bytes.HasSuffix(files[x.Name], []byte(long[len(long)-100:])) {
				t.Errorf("%s has %d bytes", x.Name, x.Size)
			}
		}
	}
	full := 0
	for _, x := range m.Missing {
		if x.Why == "the bundle is full" {
			full++
		}
	}
	if total > allMax || cut == 0 || full == 0 {
		t.Errorf("%d bytes, %d cut, %d left out", total, cut, full)
	}
}

// TestDown: without a daemon there is what the host knows, and why the rest is not there.
func TestDown(t *testing.T) {
	root := t.TempDir()
	for name, text := range map[string]string{
		"etc/rstored.yaml": "exports_file: /etc/exports\nexports: []\n# planted\n", "etc/exports": "/a *(ro) # planted\n",
		"etc/exports.d/b.exports":    "/b *(ro)\n",
		"proc/sys/net/core/rmem_max": "212992\n", "sys/class/net/eth0/mtu": "9000\n",
	} {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(root, name)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(root, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	var out bytes.Buffer
	if _, err := Write(t.Context(), &out,
		Config{
			Daemon: &fake{err: errors.New("nobody answers")}, Root: root, File: "/etc/rstored.yaml",
			Unit: "no-such-unit",
		}); err != nil {
		t.Fatal(err)
	}
	m, files := unpack(t, out.Bytes())
	for name, part := range map[string]string{
		"config-file.yaml": "exports_file: /etc/exports", "exports-table.txt": "/b *(ro)",
		"sysctl.txt": "net/core/rmem_max = 212992", "network.txt": "eth0/mtu = 9000",
		"doctor.txt": "nobody answers", "versions.json": "rstorectl",
	} {
		if !strings.Contains(string(files[name]), part) {
			t.Errorf("%s: %s", name, files[name])
		}
	}
	why := make(map[string]string)
	for _, x := range m.Missing {
		why[x.Name] = x.Why
	}
	for _, name := range []string{"status.json", "config.yaml", "goroutines.txt", "limits.txt", "metrics.txt"} {
		if why[name] != "nobody answers" {
			t.Errorf("%s: %q", name, why[name])
		}
	}
	for name, b := range files {
		if bytes.Contains(b, []byte("planted")) {
			t.Errorf("%s has a comment: %s", name, b)
		}
	}
}

// TestNamesOfCertificates: what certificates and URLs call somebody is replaced too, wherever it
// stands.
func TestNamesOfCertificates(t *testing.T) {
	f := &fake{answers: map[string]string{
		"/v1/status": `{"pid":1,"tls":{"certificate":"/etc/rstored/cert.pem","subject":"CN=nas7.hiddenone.test,` +
			`O=Hiddentwo Inc","names":["nas8.hiddenone.test","10.1.2.3"]}}`,
		"/v1/clients": `[{"address":"10.1.2.4:700","xprtsec":"mtls","name":"node9.hiddenthree.test"}]`,
		"/v1/history": `[{"number":1,"user":"certificate CN=hiddenfour,O=Hiddentwo Inc","name":"a.yaml"}]`,
		"/v1/config": "control_tls:\n  admins: [hiddenfive@mail.test, 'spiffe://hiddensix.test/ops', '*']\n  readers: " +
			"[hiddenseven]\n" +
			"otlp:\n  endpoint: https://collector.hiddeneight.test:4318\n",
		"/v1/log": `{"level":"info","logger":"audit","msg":"tls","client":"10.1.2.5:700","result":"OK",` +
			`"name":"wentaway.hiddennine.test","issuer":"CN=Hiddenten CA,O=Hiddentwo Inc"}` + "\n" +
			`{"level":"warn","msg":"collector","error":"lookup collector.hiddeneight.test: no such host"}` + "\n" +
			`{"level":"warn","msg":"refused","by":"certificate CN=hiddeneleven,OU=Hiddentwelve Lab","to":"hiddenseven, and ` +
			`wentaway.hiddennine.test of 10.1.2.3"}` + "\n",
	}}
	var out bytes.Buffer
	if _, err := Write(t.Context(), &out,
		Config{Daemon: f, Root: t.TempDir(), File: "/none", Unit: "no-such-unit", Anonymous: true}); err != nil {
		t.Fatal(err)
	}
	_, files := unpack(t, out.Bytes())
	for name, b := range files {
		for _, secret := range []string{"hidden", "nas7", "nas8", "node9", "wentaway", "10.1.2."} {
			if i := bytes.Index(bytes.ToLower(b), []byte(secret)); i >= 0 {
				t.Errorf("%s: ...%s", name, b[max(i-40, 0):min(i+60, len(b))])
			}
		}
	}
	if b := files["config.yaml"]; !bytes.Contains(b, []byte("admins:")) || !bytes.Contains(b, []byte("https://name-")) {
		t.Errorf("%s", b)
	}
	if b := files["log.json"]; bytes.Count(b, []byte("CN=name-")) != 2 || !bytes.Contains(b, []byte("no such host")) {
		t.Errorf("%s", b)
	}
}
