package e2e

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestMountBuild: git clones a bare repository into a mount, and Go builds the program there, with
// its cache in the mount too. Another mount runs the program.
func TestMountBuild(t *testing.T) {
	if _, err := exec.LookPath("git"); err != nil {
		t.Skip("git is missing")
	}
	d := newDaemon(t)
	a, b := d.mount("rdma", ""), d.mount("tcp", "")
	origin := t.TempDir()
	const source = `package main

import "os"

func main() { os.Stdout.WriteString("built in a mount\n") }
`
	work := filepath.Join(origin, "work")
	for name, text := range map[string]string{
		"go.mod": "module example.org/built\n\ngo 1.24\n", "main.go": source, "sub/dir/file": strings.Repeat("text\n", 9999),
	} {
		file := filepath.Join(work, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o755), os.WriteFile(file, []byte(text), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	c := exec.Command("sh", "-ec", `
		cd "$1"
		git -C work init -q -b main
		git -C work add .
		git -C work -c user.name=a -c user.email=a@b.example commit -q -m one
		git clone -q --bare work bare.git
		git clone -q "file://$1/bare.git" "$2/clone"
		cd "$2/clone"
		git fsck --strict
		test -z "$(git status --porcelain)"
		mkdir "$2/cache" "$2/tmp"
		GOCACHE="$2/cache" GOTMPDIR="$2/tmp" GOFLAGS=-mod=mod CGO_ENABLED=0 go build -o "$2/program" .
		git status --porcelain`, "sh", origin, a)
	if out, err := c.CombinedOutput(); err != nil || len(out) > 0 {
		t.Fatalf("%v: %s", err, out)
	}
	same(t, "the clone in the other mount", sums(t, a+"/clone"), sums(t, b+"/clone"))
	if out, err := exec.Command(b + "/program").CombinedOutput(); err != nil || string(out) != "built in a mount\n" {
		t.Errorf("%q, %v", out, err)
	}
}

// appender is a process that has a file open, and appends to it. This process must not have it open:
// when it starts a program, the new process closes the file, which waits until the server has the
// data, as every close(2).
type appender struct {
	t   *testing.T
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Reader
}

// appendTo is the environment variable with the name of the file in the process of an appender.
const appendTo = "RSTORED_E2E_APPEND"

// appendLines is that process. It answers each line of its input when the line is written.
func appendLines(file string) error {
	f, err := os.OpenFile(file, os.O_RDWR|os.O_APPEND, 0)
	fmt.Println(err)
	for in := bufio.NewScanner(os.Stdin); err == nil && in.Scan(); {
		_, err = fmt.Fprintln(f, in.Text())
		fmt.Println(err)
	}
	return errors.Join(err, f.Close())
}

func newAppender(t *testing.T, file string) *appender {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	a := &appender{t: t, cmd: exec.Command(self)}
	a.cmd.Env, a.cmd.Stderr = append(os.Environ(), appendTo+"="+file), os.Stderr
	in, err := a.cmd.StdinPipe()
	out, bad := a.cmd.StdoutPipe() // it has "<nil>" for each success
	if err := errors.Join(err, bad, a.cmd.Start()); err != nil {
		t.Fatal(err)
	}
	a.in, a.out = in, bufio.NewReader(out)
	t.Cleanup(func() {
		if a.cmd.ProcessState == nil {
			_ = a.cmd.Process.Kill()
		}
	})
	a.answered()
	return a
}

func (a *appender) answered() {
	a.t.Helper()
	if got, err := a.out.ReadString('\n'); got != "<nil>\n" {
		a.t.Fatal(got, err)
	}
}

// write appends a line.
func (a *appender) write(line string) {
	a.t.Helper()
	if _, err := io.WriteString(a.in, line); err != nil {
		a.t.Fatal(err)
	}
	a.answered()
}

// close returns when the file is closed.
func (a *appender) close() {
	a.t.Helper()
	if err := errors.Join(a.in.Close(), a.cmd.Wait()); err != nil {
		a.t.Fatal(err)
	}
}

// TestMountPortRemoved: the port of a mount is removed and added again, and then its client is
// evicted, while the mount has delegations. What close acknowledged is there, and programs go on.
func TestMountPortRemoved(t *testing.T) {
	for _, transport := range []string{"rdma", "tcp"} {
		t.Run(transport, func(t *testing.T) {
			d := newDaemon(t)
			dir := d.mount(transport, "vers=4.2,deleg")
			var f *appender
			open := func() {
				t.Helper()
				_ = d.delegatedFile(dir, "f").Close() // the mount keeps the delegation
				f = newAppender(t, dir+"/f")
			}
			open()
			write := func(text string) { t.Helper(); f.write(text) }
			holds := func(want string) {
				t.Helper()
				f.close()
				got, err := os.ReadFile(d.export + "/f")
				if err != nil || string(got) != want {
					t.Fatalf("%q instead of %q, %v", got, want, err)
				}
				open()
			}
			write("before\n")
			port := d.addr.String() + map[string]string{"rdma": ":20049", "tcp": ":2049"}[transport]
			d.ctl("port", "remove", transport, port)
			write("without a port\n")
			d.ctl("port", "add", transport, port)
			holds("before\nwithout a port\n")
			if s := d.mountState(dir); s.State != "ok" || s.Client.Connections < 2 || s.Client.LostDelegations != 0 {
				t.Errorf("%+v", s)
			}
			write("before the end\n")
			var clients []struct {
				ID          string
				Delegations int
			}
			if err := json.Unmarshal([]byte(d.ctl("client", "list", "-o", "json")), &clients); err != nil ||
				len(clients) != 1 || clients[0].Delegations != 1 {
				t.Fatalf("%+v, %v", clients, err)
			}
			d.ctl("client", "evict", clients[0].ID)
			holds("before\nwithout a port\nbefore the end\n") // nobody else has written
			write("after the end\n")
			holds("before\nwithout a port\nbefore the end\nafter the end\n")
			if s := d.mountState(dir); s.State != "ok" || s.Client.LostDelegations != 1 {
				t.Errorf("%+v", s)
			}
		})
	}
}
