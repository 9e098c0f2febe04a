package main

import (
	"bytes"
	"context"
	"crypto/rand"
	_ "embed"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"text/template"
	"time"

	"github.com/jcmturner/gokrb5/v8/iana/etypeID"
	"github.com/jcmturner/gokrb5/v8/keytab"

	"github.com/rstored/rstored/test/bench/compare"
)

// Where the servers listen, on 127.0.0.1 but for the peer of rstorectl perf: RoCEv2 has
// one port at each address.
const (
	host         = "127.0.0.1"
	portRDMA     = 20049
	portTCP      = 13049
	portGanesha  = 12049
	mountGanesha = 12050
	portGoNFS    = 11049
	perfAddr     = "127.0.0.2"
	udpAddr      = "127.0.0.1:7471"
)

//go:embed ganesha.conf
var ganeshaConf string

// server is a process that serves files, or the other end of a measurement.
type server struct {
	name string
	cmd  *exec.Cmd
	done chan struct{} // it has ended
	err  error         // why it is not there
}

func (s *server) pid() int { return s.cmd.Process.Pid }

// kill ends it and waits for its end.
func (s *server) kill() {
	if s.cmd != nil && s.cmd.Process != nil {
		_ = s.cmd.Process.Kill()
		<-s.done
	}
}

// servers are started when something is first measured against them.
type servers struct {
	dir     string
	log     *os.File
	entries int
	filled  map[string]error
	running map[string]*server
}

func newServers(dir string, log *os.File) *servers {
	return &servers{dir: dir, log: log, filled: make(map[string]error), running: make(map[string]*server)}
}

func (s *servers) bin(name string) string { return filepath.Join(s.dir, "bin", name) }

// export is the directory of a server on the file system memory or disk.
func (s *servers) export(server, where string) string { return filepath.Join(s.dir, where, server) }

func (s *servers) stop() {
	for _, r := range s.running {
		r.kill()
	}
}

// launch starts a process whose output goes to the log.
func (s *servers) launch(name string, args ...string) *server {
	r := &server{name: name, cmd: exec.Command(args[0], args[1:]...), done: make(chan struct{})}
	r.cmd.Stdout, r.cmd.Stderr = s.log, s.log
	r.cmd.Dir = s.dir
	if r.err = r.cmd.Start(); r.err != nil {
		r.cmd = nil
		return r
	}
	go func() {
		_ = r.cmd.Wait()
		close(r.done)
	}()
	return r
}

// get returns a server that runs and has its files, or one with an error.
func (s *servers) get(ctx context.Context, name string) *server {
	if r := s.running[name]; r != nil {
		return r
	}
	r := s.begin(ctx, name)
	if r.err != nil {
		r.kill()
		r.cmd = nil
	}
	s.running[name] = r
	return r
}

func (s *servers) begin(ctx context.Context, name string) *server {
	missing := func(err error) *server { return &server{name: name, err: err} }
	if name == "perf" {
		r := s.launch(name, s.bin("rstorectl"), "perf", "serve", "--quiet", perfAddr)
		if r.err == nil {
			r.err = s.retry(ctx, r, s.bin("rstorectl"), "perf", "send", "lat", perfAddr, "-n", "1")
		}
		return r
	}
	if strings.HasPrefix(name, "ceph-") {
		return s.beginCeph(ctx, name)
	}
	if name == "rpcbind" {
		if _, err := exec.LookPath("rpcbind"); err != nil {
			return missing(errors.New("rpcbind is not installed"))
		}
		r := s.launch(name, "rpcbind", "-f")
		if r.err == nil {
			r.err = listening(ctx, r, host+":111")
		}
		return r
	}
	if name == "ganesha" {
		if _, err := exec.LookPath("ganesha.nfsd"); err != nil {
			return missing(errors.New("nfs-ganesha is not installed"))
		}
	}
	for _, where := range []string{"memory", "disk"} {
		if err := fill(s.export(name, where), s.entriesOf(name, where)); err != nil {
			return missing(err)
		}
	}
	var r *server
	switch name {
	case "rstored":
		args := []string{
			s.bin("rstored"), "--state-dir", filepath.Join(s.dir, "state"), "--control", filepath.Join(s.dir, "control"),
			"--log-level", "warn",
			"--rdma-listen", address(portRDMA), "--tcp-listen", address(portTCP), "--kerberos-keytab", s.keytab(),
		}
		if err := makeKeytab(s.keytab()); err != nil {
			return missing(err)
		}
		for _, where := range []string{"memory", "disk"} {
			args = append(args, "--export",
				fmt.Sprintf("%s=%s(rw,no_root_squash,sec=sys:krb5:krb5i:krb5p)", s.export(name, where), s.export(name, where)))
		}
		r = s.launch(name, args...)
	case "go-nfs":
		r = s.launch(name, s.bin("gonfs"), address(portGoNFS), s.export(name, "memory"))
	case "ganesha":
		if b := s.get(ctx, "rpcbind"); b.err != nil {
			return missing(b.err)
		}
		conf := filepath.Join(s.dir, "ganesha.conf")
		if err := os.WriteFile(conf, ganeshaConfig(s.export(name, "memory"), s.export(name, "disk")), 0o644); err != nil {
			return missing(err)
		}
		r = s.launch(name, "ganesha.nfsd", "-F", "-f", conf, "-L", filepath.Join(s.dir, "ganesha.log"), "-p",
			"/run/ganesha.pid")
	default:
		return missing(fmt.Errorf("there is no server %q", name))
	}
	if r.err == nil {
		url := s.url(name, "tcp", "memory")
		r.err = s.retry(ctx, r, s.bin("load"), url, "getattr", "1", "1", "0.01", strconv.Itoa(fileSize))
	}
	if r.err != nil {
		r.err = fmt.Errorf("%w\n%s", r.err, s.lastWords(name))
	}
	return r
}

// keytab is the file with the key of rstored.
func (s *servers) keytab() string { return filepath.Join(s.dir, "keytab") }

// makeKeytab makes a key that no KDC knows: the load makes its ticket with it.
func makeKeytab(path string) error {
	const realm, kvno = "BENCH.TEST", 1
	keys := keytab.New()
	err := keys.AddEntry("nfs/"+host, realm, rand.Text(), time.Now(), kvno, etypeID.AES256_CTS_HMAC_SHA1_96)
	if err != nil {
		return err
	}
	b, err := keys.Marshal()
	if err != nil {
		return err
	}
	return os.WriteFile(path, b, 0o600)
}

// entriesOf is the number of entries of the large directory; it is listed in memory
// only, and not by go-nfs.
func (s *servers) entriesOf(name, where string) int {
	if where == "disk" || name == "go-nfs" {
		return 0
	}
	return s.entries
}

// lastWords are the last lines that a server logged.
func (s *servers) lastWords(name string) string {
	file := s.log.Name()
	if name == "ganesha" {
		file = filepath.Join(s.dir, "ganesha.log")
	}
	b, err := os.ReadFile(file)
	if err != nil {
		return ""
	}
	lines := strings.Split(strings.TrimSpace(string(b)), "\n")
	return strings.Join(lines[max(0, len(lines)-3):], "\n")
}

func ganeshaConfig(dirs ...string) []byte {
	var b bytes.Buffer
	t := template.Must(template.New("ganesha.conf").Parse(ganeshaConf))
	if err := t.Execute(&b, struct {
		Port, MountPort int
		Dirs            []string
	}{portGanesha, mountGanesha, dirs}); err != nil {
		panic(err) // of the template
	}
	return b.Bytes()
}

func address(port int) string { return fmt.Sprintf("%s:%d", host, port) }

// patience is how long a server may take to start.
const patience = 60 * time.Second

// retry runs a command until it succeeds.
func (s *servers) retry(ctx context.Context, r *server, args ...string) error {
	return until(ctx, r, func() error {
		ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
		defer cancel()
		cmd := s.command(ctx, args...)
		out, err := cmd.CombinedOutput()
		if err != nil {
			return fmt.Errorf("%s: %w", compare.FirstLine(out), err)
		}
		return nil
	})
}

// command is a client. It knows where nfs-ganesha has its MOUNT.
func (s *servers) command(ctx context.Context, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	cmd.Dir = s.dir
	for _, a := range args {
		if strings.Contains(a, address(portGanesha)) {
			cmd.Env = append(os.Environ(), fmt.Sprintf("MOUNTPORT=%d", mountGanesha))
		}
	}
	return cmd
}

// url is that of an export for the Go client.
func (s *servers) url(server, carrier, where string) string {
	if where == "ceph" {
		return cephURL(server, carrier)
	}
	dir := s.export(server, where)
	switch server {
	case "ganesha":
		return "nfs+tcp://" + address(portGanesha) + dir
	case "go-nfs":
		return "nfs+tcp://" + address(portGoNFS) + "/"
	}
	if carrier == "rdma" {
		return "nfs+rdma://" + address(portRDMA) + dir
	}
	return "nfs+tcp://" + address(portTCP) + dir
}

// libnfsURL is the same for libnfs.
func (s *servers) libnfsURL(server, where string) string {
	dir, port := s.export(server, where), portTCP
	mount := port
	switch server {
	case "ganesha":
		port, mount = portGanesha, mountGanesha
	case "go-nfs":
		dir, port, mount = "/", portGoNFS, portGoNFS
	}
	// Looking for exports below this one takes a call that go-nfs does not know.
	return fmt.Sprintf("nfs://%s%s?nfsport=%d&mountport=%d&auto-traverse-mounts=0", host, dir, port, mount)
}
