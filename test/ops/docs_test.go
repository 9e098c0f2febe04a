package ops

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestDocumentedLines runs every line of the documents that runs rstored or rstorectl as it is
// written there, in a clean system with the service. testdata/commands has the order, and the lines
// that need more than such a system. A line of the documents that is not in it is an error.
func TestDocumentedLines(t *testing.T) {
	text, err := os.ReadFile("testdata/commands")
	if err != nil {
		t.Fatal(err)
	}
	listed := make(map[string]bool)
	for line := range strings.Lines(string(text)) {
		if kind, words, ok := strings.Cut(strings.TrimSpace(line), " "); ok && strings.Contains("$~-", kind) {
			words, _, _ = strings.Cut(words, " :: ")
			listed[words] = false
		}
	}
	for _, line := range documentedLines(t) {
		if _, ok := listed[line]; !ok {
			t.Errorf("testdata/commands does not have what the documents show: %s", line)
		}
		listed[line] = true
	}
	for line, shown := range listed {
		if !shown {
			t.Errorf("testdata/commands has what no document shows: %s", line)
		}
	}

	need(t, "systemd-nspawn", "mkfs.btrfs")
	c := boot(t)
	unitFiles(t, c)
	c.write("/etc/rstored/rstored.yaml", config("/srv/data", "127.0.0.1")+
		"perf:\n  listen: [\"127.0.0.1:18515\"]\n  clients: [127.0.0.0/8]\n")
	c.write("/etc/rstored/red.yaml", config("/srv/red", "127.0.0.2"))
	for _, to := range []string{"/etc/ganesha/ganesha.conf", "/etc/ganesha/more.conf", "/etc/nfs.conf"} {
		c.install(filepath.Join(root, "cmd/internal/migrate/testdata", filepath.Base(to)), to, 0o644)
	}
	img := filepath.Join(c.dir, "srv/btrfs.img")
	command(t, "truncate", "-s", "256M", img)
	command(t, "mkfs.btrfs", "-q", img)
	c.run("mkdir -p /srv/docs /etc/bash_completion.d && ip addr add 10.0.0.1/32 dev lo && echo '127.0.0.1 server' " +
		">>/etc/hosts")
	c.run("systemctl enable --now rstored")
	for line := range strings.Lines(string(text)) {
		kind, words, _ := strings.Cut(strings.TrimSpace(line), " ")
		script := "cd /srv/docs && export HOME=/root && { " + words + "; } </dev/null"
		switch kind {
		case "~": // 124: it was interrupted when the time was over
			script = "cd /srv/docs && export HOME=/root && timeout -s INT -k 10 3 " + words + " </dev/null; rc=$?; " +
				"test $rc = 0 -o $rc = 124 || exit $rc"
		case "$", "+":
		default:
			continue
		}
		if out, err := c.try(script); err != nil {
			t.Errorf("%s: %v\n%s", words, err, out)
		}
	}
}

var shellBlock = regexp.MustCompile("(?ms)^```sh\n(.*?)^```")

// documentedLines are the lines of the documents that run rstored or rstorectl, without sudo.
func documentedLines(t *testing.T) (out []string) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(root, "docs", "*.md"))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range append(files, filepath.Join(root, "README.md")) {
		b, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range shellBlock.FindAllStringSubmatch(string(b), -1) {
			body := regexp.MustCompile(`\\\n\s*`).ReplaceAllString(m[1], " ")
			for line := range strings.Lines(body) {
				line, _, _ = strings.Cut(line, "  #")
				line = strings.TrimPrefix(strings.TrimSpace(line), "sudo ")
				if strings.HasPrefix(line, "rstored ") || strings.HasPrefix(line, "rstorectl ") {
					out = append(out, line)
				}
			}
		}
	}
	return out
}
