// Package ops tests what administrators use with rstored by the programs that use it.
package ops

import (
	"bytes"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/rstored/rstored/nfs/client"
	"github.com/rstored/rstored/nfs/dial"
)

const deploy = "../../deploy"

// need skips the test unless it was asked for, and fails it if a program is missing then.
func need(t *testing.T, programs ...string) {
	t.Helper()
	if os.Getenv("RSTORED_OPS") == "" {
		t.Skip("make test-ops runs this")
	}
	for _, p := range programs {
		if _, err := exec.LookPath(p); err != nil {
			t.Fatalf("%v; test/ops/install installs it", err)
		}
	}
}

func run(t *testing.T, dir string, stdin []byte, name string, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), name, args...)
	cmd.Dir, cmd.Stdin = dir, bytes.NewReader(stdin)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Errorf("%s %q: %v\n%s", name, args, err, out)
	}
	return string(out)
}

// TestRules: promtool finds nothing wrong with the rules, and they fire when they should.
func TestRules(t *testing.T) {
	need(t, "promtool")
	dir := filepath.Join(deploy, "prometheus")
	if out := run(t, dir, nil, "promtool", "check", "rules", "--lint=all", "--lint-fatal",
		"rstored.rules.yml"); !strings.Contains(out, "SUCCESS") {
		t.Error(out)
	}
	run(t, dir, nil, "promtool", "test", "rules", "rstored.rules.test.yml")
}

// TestRulesCanFail: the tests of the rules notice a rule that is wrong.
func TestRulesCanFail(t *testing.T) {
	need(t, "promtool")
	dir := t.TempDir()
	for _, name := range []string{"rstored.rules.yml", "rstored.rules.test.yml"} {
		b, err := os.ReadFile(filepath.Join(deploy, "prometheus", name))
		if err != nil {
			t.Fatal(err)
		}
		b = bytes.ReplaceAll(b, []byte(`up{job="rstored"} == 0`), []byte(`up{job="rstored"} == 7`))
		if err := os.WriteFile(filepath.Join(dir, name), b, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.CommandContext(t.Context(), "promtool", "test", "rules", "rstored.rules.test.yml")
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err == nil || !bytes.Contains(out, []byte("RstoredDown")) {
		t.Errorf("%v: %s", err, out)
	}
}

// TestScrape: promtool understands the metrics of a daemon that has served calls and has nothing to
// say against their names, and those of the process that the dashboard shows are there.
func TestScrape(t *testing.T) {
	need(t, "promtool")
	dir, host := t.TempDir(), fmt.Sprintf("127.%d.%d.%d", 77+rand.IntN(100), rand.IntN(256), 1+rand.IntN(254))
	rdma, tcp, listen := host+":20049", host+":2049", host+":9049"
	run(t, "../..", nil, "go", "build", "-o", dir, "./cmd/rstored")
	cmd := exec.CommandContext(t.Context(), filepath.Join(dir, "rstored"), "--state-dir", filepath.Join(dir, "state"),
		"--control", filepath.Join(dir, "c.sock"),
		"--export", t.TempDir()+"=/a(rw,no_root_squash)", "--rdma-listen", rdma, "--tcp-listen", tcp, "--ops-listen", listen,
		"--log-level", "error")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = cmd.Process.Signal(os.Interrupt)
		if err := cmd.Wait(); err != nil || t.Failed() {
			t.Errorf("rstored: %v\n%s", err, stderr.String())
		}
	}()
	ready := func() bool {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+listen+"/readyz", nil)
		if err != nil {
			t.Fatal(err)
		}
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			return false
		}
		res.Body.Close()
		return res.StatusCode == http.StatusOK
	}
	for until := time.Now().Add(20 * time.Second); !ready(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(until) {
			t.Fatal("rstored does not become ready")
		}
	}
	for _, at := range []string{"nfs+rdma://" + rdma, "nfs+tcp://" + tcp} {
		dl := dial.Dialer{MountPort: 2049, GiveUp: 20 * time.Second}
		u, err := client.ParseURL(at + "/a/file")
		if err != nil {
			t.Fatal(err)
		}
		f, err := dl.Client(u).CreateFile(t.Context(), u.Path, 0o644)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := f.WriteAt(make([]byte, 100_000), 0); err != nil {
			t.Error(err)
		}
		f.Close()
		dl.Close()
	}
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+listen+"/metrics", nil)
	if err != nil {
		t.Fatal(err)
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	if out := run(t, ".", text, "promtool", "check", "metrics"); strings.TrimSpace(out) != "" {
		t.Error(out)
	}
	for _, file := range []string{"grafana/rstored.json", "prometheus/rstored.rules.yml"} {
		b, err := os.ReadFile(filepath.Join(deploy, file))
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range regexp.MustCompile(`\b(?:go|process)_[a-z_]+`).FindAll(b, -1) {
			if !bytes.Contains(text, append([]byte("\n"), append(name, ' ')...)) {
				t.Errorf("%s names %s, which is not there", file, name)
			}
		}
	}
}
