package fusefs

import (
	"bufio"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// mapping is a shared mapping of an open file in a child process, see inChild.
type mapping struct {
	t   *testing.T
	c   *exec.Cmd
	in  io.WriteCloser
	out *bufio.Reader
}

// mapInChild maps the first n bytes of f. The test calls serveMapping at its begin.
func mapInChild(t *testing.T, f *os.File, n int) *mapping {
	t.Helper()
	test, _, _ := strings.Cut(t.Name(), "/")
	m := &mapping{t: t, c: exec.Command(os.Args[0], "-test.run=^"+test+"$")}
	m.c.Env = append(os.Environ(), childFile+"="+strconv.Itoa(n))
	m.c.ExtraFiles = []*os.File{f}
	m.c.Stderr = os.Stderr
	var err error
	m.in, err = m.c.StdinPipe()
	must(t, err)
	out, err := m.c.StdoutPipe()
	must(t, err)
	m.out = bufio.NewReader(out)
	must(t, m.c.Start())
	return m
}

// ask has the child carry out a command, and returns its answer:
//
//	sum             the SHA-256 of the mapped bytes
//	put OFFSET HEX  writes bytes
//	sync            is msync(2)
func (m *mapping) ask(command string) string {
	m.t.Helper()
	_, err := io.WriteString(m.in, command+"\n")
	must(m.t, err)
	line, err := m.out.ReadString('\n')
	if err != nil || !strings.HasPrefix(line, "= ") {
		m.t.Fatalf("%s: %q, %v", command, line, err)
	}
	return strings.TrimSpace(line[2:])
}

// end unmaps the file.
func (m *mapping) end() {
	m.t.Helper()
	must(m.t, m.in.Close())
	_, _ = io.Copy(io.Discard, m.out)
	must(m.t, m.c.Wait())
}

func hash(b []byte) string {
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}

// serveMapping carries out the commands of mapping, and returns true, if this process is the child.
func serveMapping(t *testing.T) bool {
	t.Helper()
	env := os.Getenv(childFile)
	if env == "" {
		return false
	}
	n, err := strconv.Atoi(env)
	must(t, err)
	mem, err := unix.Mmap(3, 0, n, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	must(t, err)
	for in := bufio.NewScanner(os.Stdin); in.Scan(); {
		answer := ""
		switch f := strings.Fields(in.Text()); f[0] {
		case "sum":
			answer = hash(mem)
		case "put":
			off, err := strconv.Atoi(f[1])
			must(t, err)
			b, err := hex.DecodeString(f[2])
			must(t, err)
			copy(mem[off:], b)
		case "sync":
			must(t, unix.Msync(mem, unix.MS_SYNC))
		}
		fmt.Println("=", answer)
	}
	must(t, unix.Munmap(mem))
	return true
}
