package e2e

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// bundle makes a support bundle and reads it.
func (d *daemon) bundle(args ...string) map[string][]byte {
	d.t.Helper()
	name := filepath.Join(d.t.TempDir(), "b.tar.gz")
	d.ctl(append([]string{"support-bundle", "-w", name}, args...)...)
	st, err := os.Stat(name)
	if err != nil || st.Mode().Perm() != 0o600 {
		d.t.Errorf("%v, %v", st, err)
	}
	f, err := os.Open(name)
	if err != nil {
		d.t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	z, err := gzip.NewReader(f)
	if err != nil {
		d.t.Fatal(err)
	}
	out := make(map[string][]byte)
	for r := tar.NewReader(z); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return out
		}
		if err != nil {
			d.t.Fatal(err)
		}
		b, err := io.ReadAll(r)
		if err != nil {
			d.t.Fatal(err)
		}
		out[strings.TrimPrefix(h.Name, "rstored-support/")] = b
		if g, err := gzip.NewReader(bytes.NewReader(b)); err == nil { // a profile
			if b, err = io.ReadAll(g); err != nil {
				d.t.Fatal(err)
			}
			out[h.Name+" unpacked"] = b
		}
	}
}

// TestSupportBundle: no byte of a bundle is a secret, an anonymous one has no name either, and
// without a daemon there is still something in it.
func TestSupportBundle(t *testing.T) {
	dir := t.TempDir()
	file, table := filepath.Join(dir, "rstored.yaml"), filepath.Join(dir, "plantedtable", "exports")
	hidden := filepath.Join(dir, "PlantedProject", "planted place")
	if err := errors.Join(os.MkdirAll(hidden, 0o755), os.Mkdir(filepath.Dir(table), 0o755)); err != nil {
		t.Fatal(err)
	}
	const pem = "-----BEGIN PRIVATE KEY-----\nc2VjcmV0LXBlbS1ib2R5\n-----END PRIVATE KEY-----"
	text := "# password: secret-in-comment\nlog_level: debug\nexports_file: " + table + "\nexports:\n" +
		"- path: " + hidden + "\n  pseudo: /planted-pseudo\n  clients:\n  - host: '*.plantedhost.plantedzone.test'\n    " +
		"squash: all_squash\n  - cidr: 10.99.88.77\n  - cidr: 2001:db8:aa::7\n" +
		"# token = secret-in-another\n# " + strings.ReplaceAll(pem, "\n", "\n# ") + "\n"
	if err := errors.Join(os.WriteFile(file, []byte(text), 0o600),
		os.WriteFile(table, []byte("# secret-in-table\n"+dir+" 10.99.88.76(ro)\n"), 0o600)); err != nil {
		t.Fatal(err)
	}
	d := newDaemon(t, "--config", file)
	if d.cmd == nil {
		t.Fatal("no daemon")
	}
	// Whatever users write into the log and the history.
	change := filepath.Join(dir, "plantedchange.yaml")
	if err := os.WriteFile(change,
		[]byte("exports:\n- path: "+hidden+
			"\n  pseudo: /planted-pseudo\n  clients:\n  - host: n7.plantedhost.plantedzone.test\n  - cidr: 10.99.88.77\n# "+
			"password: secret-in-history\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	d.ctl("apply", "--yes", "--comment",
		"password=secret-in-words Bearer secret-bearer-token http://me:secret-in-url@plantedhost/ "+pem, change)
	key, err := os.ReadFile(filepath.Join(d.state, "handle.key"))
	if err != nil {
		t.Fatal(err)
	}
	secrets := [][]byte{
		key, []byte(hex.EncodeToString(key)), []byte(base64.StdEncoding.EncodeToString(key)),
		[]byte(base64.RawURLEncoding.EncodeToString(key)),
		[]byte("c2VjcmV0LXBlbS1ib2R5"), []byte("secret-in-"), []byte("secret-bearer"),
	}
	names := [][]byte{
		[]byte("planted"), []byte("10.99.88.7"), []byte("2001:db8:aa"), []byte(d.addr.String()),
		[]byte(filepath.Base(dir) + "/"),
	}
	holds := func(files map[string][]byte, what string, list [][]byte) {
		t.Helper()
		for name, b := range files {
			for _, s := range list {
				if i := bytes.Index(bytes.ToLower(b), bytes.ToLower(s)); i >= 0 {
					t.Errorf("%s: %s has %q: %q", what, name, s, b[max(0, i-100):min(len(b), i+100)])
				}
			}
		}
	}
	plain := d.bundle("--profile", "1s")
	holds(plain, "plain", secrets)
	for name, part := range map[string]string{
		"config.yaml": "exports_file: ", "config-file.yaml": "plantedhost", "exports-table.txt": "10.99.88.76",
		"exports.json": "/planted-pseudo", "metrics.txt": "rstored_build_info",
		"log.json": "a file was applied", "goroutines.txt": "goroutine profile", "doctor.txt": "rstored",
		"limits.txt": "Max open files", "history.json": `"number": 1`,
		"sysctl.txt": "net/core/rmem_max", "versions.json": `"kernel"`, "cpu.pprof": "", "drift.json": "changes",
		"status.json": `"pid"`, "stats.json": "procs",
	} {
		if b, ok := plain[name]; !ok || !strings.Contains(string(b), part) {
			t.Errorf("%s has no %q: %.500s", name, part, b)
		}
	}
	anonymous := d.bundle("--anonymous", "--profile", "1s")
	holds(anonymous, "anonymous", secrets)
	holds(anonymous, "anonymous", names)
	var exports []struct{ Path string }
	if err := json.Unmarshal(anonymous["exports.json"], &exports); err != nil || len(exports) != 1 ||
		!strings.Contains(exports[0].Path, "name-") {
		t.Errorf("the exports have no other names: %v\n%s", err, anonymous["exports.json"])
	}
	d.stop(syscall.SIGTERM)
	down := d.bundle("--config", file, "--anonymous")
	holds(down, "down", secrets)
	holds(down, "down", names)
	var m struct{ Missing []struct{ Name, Why string } }
	if err := json.Unmarshal(down["manifest.json"], &m); err != nil || len(m.Missing) < 10 ||
		!strings.Contains(m.Missing[0].Why, "no rstored answers") {
		t.Errorf("%v, %+v", err, m)
	}
	if len(down["config-file.yaml"]) == 0 || len(down["sysctl.txt"]) == 0 {
		t.Error("the host's part is missing")
	}
}
