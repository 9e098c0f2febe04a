package upgrade

import (
	"bytes"
	"encoding/gob"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/rstored/rstored/cmd/internal/handover"
)

// Words of the two processes, as names of parts.
const (
	WordHello    = "hello"
	WordPrepared = "prepared"
	WordRestore  = "restore"
	WordRestored = "restored"
	WordGo       = "go"
	WordServing  = "serving"
	wordError    = "error"
)

// Versions of the words and of all other parts. PartVersion changes when an earlier program writes
// parts that this one cannot read.
const (
	WordVersion = 1
	PartVersion = 1
)

// Hello is what the new process checks before the old one freezes: an upgrade cannot change these
// paths.
type Hello struct {
	Version           string
	StateDir, Control string
	// Node is the old process's, and Token is what its release of the lease will have, if the new
	// process is on another node.
	Node, Token string
}

// Restored reports what the new process has restored: its version, and the numbers of connections.
type Restored struct {
	Version   string
	RDMA, TCP int
}

// Encode makes the data of a part.
func Encode(v any) ([]byte, error) {
	var b bytes.Buffer
	if err := gob.NewEncoder(&b).Encode(v); err != nil {
		return nil, err
	}
	return b.Bytes(), nil
}

// Decode reads the data of a part.
func Decode(p *handover.Part, v any) error {
	if err := gob.NewDecoder(bytes.NewReader(p.Data)).Decode(v); err != nil {
		return fmt.Errorf("part %q of the handover: %w", p.Name, err)
	}
	return nil
}

// Executable is the path by which this process was started, which an upgrade starts again.
func Executable() (string, error) {
	if p, err := exec.LookPath(os.Args[0]); err == nil {
		if p, err = filepath.Abs(p); err == nil && Runs(p) {
			return p, nil
		}
	}
	return os.Executable()
}

// Runs reports whether the file at a path is the one that this process executes.
func Runs(path string) bool {
	a, err := os.Stat("/proc/self/exe")
	if err != nil {
		return true // it cannot be found out
	}
	b, err := os.Stat(path)
	return err == nil && os.SameFile(a, b)
}
