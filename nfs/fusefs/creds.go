package fusefs

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"os"
	"strconv"
	"sync"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"

	"github.com/rstored/rstored/nfs/client"
	"github.com/rstored/rstored/rpcrdma/rpc"
)

// Groups of a process are remembered for credsTime, of at most credsMax processes.
const (
	credsTime = time.Second
	credsMax  = 4096
)

// creds are the identities of callers. The kernel reports the user and the group of a caller. The
// supplementary groups come from /proc.
type creds struct {
	mu    sync.Mutex
	known map[fuse.Caller]knownCred
}

type knownCred struct {
	ctx   context.Context
	until time.Time
}

// identity returns a context that ends with the mount. If the mount is for all users, its calls
// have the identity of the caller.
func (f *FS) identity(h *fuse.InHeader) context.Context {
	if !f.cfg.AllowOther {
		return f.ctx
	}
	now := time.Now()
	f.creds.mu.Lock()
	k, ok := f.creds.known[h.Caller]
	f.creds.mu.Unlock()
	if ok && now.Before(k.until) {
		return k.ctx
	}
	cred := &rpc.Cred{Flavor: rpc.AuthSys, UID: h.Uid, GID: h.Gid, Groups: groupsOf(h.Pid)}
	cred.Machine, _ = os.Hostname()
	k = knownCred{client.WithCred(f.ctx, cred), now.Add(credsTime)}
	f.creds.mu.Lock()
	defer f.creds.mu.Unlock()
	if f.creds.known == nil || len(f.creds.known) >= credsMax {
		f.creds.known = make(map[fuse.Caller]knownCred)
	}
	f.creds.known[h.Caller] = k
	return k.ctx
}

// groupsOf returns the supplementary groups of a process, or none if it has ended.
func groupsOf(pid uint32) (list []uint32) {
	file, err := os.Open(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return nil
	}
	defer func() { _ = file.Close() }()
	for s := bufio.NewScanner(file); s.Scan(); {
		rest, ok := bytes.CutPrefix(s.Bytes(), []byte("Groups:"))
		if !ok {
			continue
		}
		for _, g := range bytes.Fields(rest) {
			if id, err := strconv.ParseUint(string(g), 10, 32); err == nil {
				list = append(list, uint32(id))
			}
		}
		return list
	}
	return nil
}

// Signals that stop a process unless it handles them: SIGSTOP, SIGTSTP, SIGTTIN and SIGTTOU.
const stopSignals = 1<<(19-1) | 1<<(20-1) | 1<<(21-1) | 1<<(22-1)

// dies reports whether a thread has a signal that will end its process. When a signal is fatal, the
// kernel sends SIGKILL to all threads, except for signals that write a core dump. If this process
// cannot see the thread, as in another PID namespace, dies takes any signal as fatal: otherwise
// nothing could end the thread.
func dies(thread uint32) bool {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", thread))
	if err != nil {
		return true
	}
	return fatal(status)
}

// fatal is dies for a file status of proc(5).
func fatal(status []byte) bool {
	var pending, survived uint64
	for line := range bytes.Lines(status) {
		name, value, _ := bytes.Cut(bytes.TrimSpace(line), []byte(":\t"))
		set, _ := strconv.ParseUint(string(value), 16, 64)
		switch string(name) {
		case "SigPnd", "ShdPnd":
			pending |= set
		case "SigBlk", "SigIgn", "SigCgt":
			survived |= set
		}
	}
	return pending&^(survived|stopSignals) != 0
}
