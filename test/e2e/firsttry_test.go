package e2e

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// TestFirstTry: the commands of README's section "Serve a directory" work as they are written, as
// whoever runs this test, and, if that is root, as another user too. Only the addresses and the
// places of sockets and state are the test's.
func TestFirstTry(t *testing.T) {
	text, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, _ := strings.Cut(string(text), "\n## Serve a directory\n")
	section, _, _ = strings.Cut(section, "\n## ")
	blocks := strings.Split(section, "```sh\n")
	if len(blocks) != 3 {
		t.Fatalf("the section has %d blocks", len(blocks)-1)
	}
	commands := func(block string) []string {
		block, _, _ = strings.Cut(block, "```")
		return strings.Split(strings.TrimSpace(block), "\n")
	}
	server, client := commands(blocks[1]), commands(blocks[2])
	t.Run("this user", func(t *testing.T) { firstTry(t, server, client, nil) })
	t.Run("another user", func(t *testing.T) {
		if os.Geteuid() != 0 {
			t.Skip("needs root")
		}
		firstTry(t, server, client, &syscall.Credential{Uid: 4711, Gid: 4712})
	})
}

func firstTry(t *testing.T, server, client []string, as *syscall.Credential) {
	dir, err := os.MkdirTemp("", "rs-first-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	if err := os.Symlink(binDir, filepath.Join(dir, "bin")); err != nil {
		t.Fatal(err)
	}
	owner := uint32(os.Geteuid())
	if as != nil {
		owner = as.Uid
		if err := os.Chown(dir, int(as.Uid), int(as.Gid)); err != nil {
			t.Fatal(err)
		}
	}
	addr := loopback().String()
	command := func(line string) *exec.Cmd {
		cmd := exec.Command("sh", "-ec", strings.ReplaceAll(line, "127.0.0.1", addr))
		cmd.Dir = dir
		cmd.Env = []string{
			"PATH=" + os.Getenv("PATH"), "HOME=" + dir, "RSTORED_CONFIG=" + os.DevNull,
			"RSTORED_CONTROL=" + filepath.Join(dir, "run/ctl"),
			"RSTORED_STATE_DIR=" + filepath.Join(dir, "state"), "RSTORED_RDMA_LISTEN=" + addr + ":20049",
			"RSTORED_TCP_LISTEN=" + addr + ":2049",
		}
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: as, Pdeathsig: syscall.SIGKILL}
		return cmd
	}
	last := len(server) - 1
	for _, line := range server[:last] {
		if out, err := command(line).CombinedOutput(); err != nil {
			t.Fatalf("%s: %v\n%s", line, err, out)
		}
	}
	var log bytes.Buffer
	cmd := command("exec " + server[last])
	cmd.Stdout, cmd.Stderr = &log, &log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() { _ = cmd.Wait(); close(ended) }()
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		<-ended
		if t.Failed() {
			t.Logf("rstored:\n%s", log.String())
		}
	})
	for deadline := time.Now().Add(time.Minute); command("bin/rstorectl status").Run() != nil; time.Sleep(
		20 * time.Millisecond) {
		select {
		case <-ended:
			t.Fatal("rstored ended")
		default:
		}
		if time.Now().After(deadline) {
			t.Fatal("rstored did not answer")
		}
	}
	for _, line := range client {
		if line == "bin/rstorectl top" {
			continue // it shows until somebody ends it
		}
		if out, err := command(line).CombinedOutput(); err != nil {
			t.Errorf("%s: %v\n%s", line, err, out)
		}
	}
	for _, name := range []string{"data/photos/hello", "copy/hello"} {
		p := filepath.Join(dir, name)
		if b, err := os.ReadFile(p); err != nil || string(b) != "hello\n" {
			t.Errorf("%s: %q, %v", name, b, err)
			continue
		}
		var st syscall.Stat_t
		if err := syscall.Stat(p, &st); err != nil || st.Uid != owner {
			t.Errorf("%s belongs to %d, not to %d (%v)", name, st.Uid, owner, err)
		}
	}
}
