package e2e

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// Results of a resource agent.
const (
	ocfSuccess    = 0
	ocfGeneric    = 1
	ocfConfigured = 6
	ocfNotRunning = 7
)

// TestResourceAgent: the agent for Pacemaker passes ocf-tester, and its monitor tells a daemon that
// serves from one that is gone, one that hangs, and one that cannot serve all exports.
func TestResourceAgent(t *testing.T) {
	if _, err := exec.LookPath("ocf-tester"); err != nil {
		t.Skip("resource-agents is not installed")
	}
	agent, err := filepath.Abs(filepath.Join("..", "..", "deploy", "pacemaker", "rstored"))
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	for _, name := range []string{"state", "data", "tmp"} {
		if err := os.Mkdir(at(name), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	conf := "state_dir: " + at("state") + "\nha_lease: 2s\nha_node: a\nrdma_listen: []\ntcp_listen: [\"" +
		loopback().String() + ":2049\"]\nexports:\n  - path: " + at("data") + "\n"
	if err := os.WriteFile(at("conf"), []byte(conf), 0o600); err != nil {
		t.Fatal(err)
	}
	parameters := map[string]string{
		"binary": filepath.Join(binDir, "rstored"), "client": filepath.Join(binDir, "rstorectl"),
		"config": at("conf"), "control": at("control"), "log": at("log"),
	}
	args := []string{"-n", "test"}
	for k, v := range parameters {
		args = append(args, "-o", k+"="+v)
	}
	if out, err := exec.Command("ocf-tester", append(args, agent)...).CombinedOutput(); err != nil {
		t.Fatalf("ocf-tester: %v\n%s", err, out)
	}
	do := func(action, level string) int {
		t.Helper()
		c := exec.Command(agent, action)
		c.Env = append(os.Environ(), "OCF_ROOT=/usr/lib/ocf", "OCF_RESOURCE_INSTANCE=test", "OCF_CHECK_LEVEL="+level,
			"HA_RSCTMP="+at("tmp"), "OCF_RESKEY_CRM_meta_timeout=20000")
		for k, v := range parameters {
			c.Env = append(c.Env, "OCF_RESKEY_"+k+"="+v)
		}
		out, err := c.CombinedOutput()
		if exit := new(exec.ExitError); err != nil && !errors.As(err, &exit) {
			t.Fatal(err)
		}
		t.Logf("%s %s: %d %s", action, level, c.ProcessState.ExitCode(), out)
		return c.ProcessState.ExitCode()
	}
	expect := func(what, action, level string, want int) {
		t.Helper()
		if got := do(action, level); got != want {
			t.Errorf("%s: %s at depth %s returns %d, not %d", what, action, level, got, want)
		}
	}
	t.Cleanup(func() { do("stop", "0") })
	pid := func() int {
		b, err := os.ReadFile(at("tmp/rstored-test.pid"))
		n, e := strconv.Atoi(strings.TrimSpace(string(b)))
		if err := errors.Join(err, e); err != nil {
			t.Fatal(err)
		}
		return n
	}
	expect("before", "monitor", "0", ocfNotRunning)
	expect("a start", "start", "0", ocfSuccess)
	expect("while it serves", "monitor", "10", ocfSuccess)
	hung := pid()
	_ = syscall.Kill(hung, syscall.SIGSTOP)
	expect("a daemon that hangs", "monitor", "0", ocfGeneric)
	_ = syscall.Kill(hung, syscall.SIGKILL)
	for end := time.Now().Add(time.Minute); do("monitor", "0") != ocfNotRunning; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the monitor takes a daemon that was killed for one that runs")
		}
	}
	expect("a start on the same node", "start", "0", ocfSuccess)
	expect("a start of what runs", "start", "0", ocfSuccess)
	expect("a stop", "stop", "0", ocfSuccess)
	expect("a stop of what does not run", "stop", "0", ocfSuccess)
	if err := os.WriteFile(at("conf"), []byte("no_such_key: 1\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	expect("a bad configuration", "validate-all", "0", ocfConfigured)
}
