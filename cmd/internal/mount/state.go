package mount

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"github.com/rstored/rstored/nfs/client"
	"github.com/rstored/rstored/nfs/fusefs"
)

// Mount is the state of a mount, as 'rstorectl mounts' shows it.
type Mount struct {
	Dir       string    `json:"dir"`
	Source    string    `json:"source"`
	Options   string    `json:"options,omitempty"`
	PID       int       `json:"pid,omitempty"`
	Since     time.Time `json:"since,omitzero"`
	Version   string    `json:"version,omitempty"`
	Transport string    `json:"transport,omitempty"`
	Log       string    `json:"log,omitempty"`
	// Device is the minor number of the mount's device.
	Device uint32 `json:"device,omitempty"`
	// State is "ok", "waiting" if the server does not answer, "dead" if the process of the mount has
	// ended, or "of another user".
	State  string        `json:"state"`
	Client *client.Stats `json:"client,omitempty"`
	FS     *fusefs.Stats `json:"fs,omitempty"`
}

// States of a mount.
const (
	stateOK      = "ok"
	stateWaiting = "waiting"
	stateDead    = "dead"
	stateForeign = "of another user"
)

// stateDir returns the directory of the sockets and logs of this user's mounts, and makes it.
func stateDir() (string, error) {
	dir := "/run/rstored-mounts"
	if os.Geteuid() != 0 {
		dir = filepath.Join(os.TempDir(), fmt.Sprintf("rstored-mounts-%d", os.Geteuid()))
		if run := os.Getenv("XDG_RUNTIME_DIR"); run != "" {
			dir = filepath.Join(run, "rstored-mounts")
		}
	}
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, os.ErrExist) {
		return "", err
	}
	var st syscall.Stat_t
	if err := syscall.Lstat(dir, &st); err != nil {
		return "", err
	}
	if st.Mode&syscall.S_IFMT != syscall.S_IFDIR || int(st.Uid) != os.Geteuid() {
		return "", fmt.Errorf("%s belongs to somebody else", dir)
	}
	return dir, nil
}

// published is the socket of a mount.
type published struct {
	l    *net.UnixListener
	name string
	once sync.Once
}

// socketOf is the name of the socket of a process.
func socketOf(dir string, pid int) string { return filepath.Join(dir, fmt.Sprintf("%d.sock", pid)) }

// probeTime bounds the call that finds out whether the server answers.
const probeTime = 500 * time.Millisecond

// publish answers each connection to the socket of the mount with its state.
func publish(f *fusefs.FS, c *client.Client, m Mount) (*published, error) {
	dir, err := stateDir()
	if err != nil {
		return &published{}, err
	}
	p := &published{name: socketOf(dir, m.PID)}
	_ = os.Remove(p.name) // an earlier process with this number may have left it
	if p.l, err = net.ListenUnix("unix", &net.UnixAddr{Name: p.name, Net: "unix"}); err != nil {
		return p, err
	}
	go func() {
		for {
			conn, err := p.l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer func() { _ = conn.Close() }()
				_ = conn.SetDeadline(time.Now().Add(5 * time.Second))
				now := m
				client, fs := c.Stats(), f.Stats()
				now.Client, now.FS, now.State = &client, &fs, stateOK
				ctx, cancel := context.WithTimeout(context.Background(), probeTime)
				defer cancel()
				if c.Null(ctx) != nil {
					now.State = stateWaiting
				}
				_ = json.NewEncoder(conn).Encode(now)
			}()
		}
	}()
	return p, nil
}

func (p *published) close() {
	p.once.Do(func() {
		if p.l != nil {
			_ = p.l.Close()
			_ = os.Remove(p.name)
		}
	})
}

// ask reads the state of a mount from its socket.
func ask(name string) (m Mount, err error) {
	conn, err := net.DialTimeout("unix", name, time.Second)
	if err != nil {
		return m, err
	}
	defer func() { _ = conn.Close() }()
	_ = conn.SetDeadline(time.Now().Add(5 * time.Second))
	return m, json.NewDecoder(conn).Decode(&m)
}

// allPublished returns the states of this user's mounts, by the minor numbers of their devices.
// Sockets that nobody serves are removed.
func allPublished() map[uint32]Mount {
	all := make(map[uint32]Mount)
	dir, err := stateDir()
	if err != nil {
		return all
	}
	names, _ := filepath.Glob(filepath.Join(dir, "*.sock"))
	var mu sync.Mutex
	var wg sync.WaitGroup
	for _, name := range names { // together: each waits for a server that may not answer
		wg.Go(func() {
			m, err := ask(name)
			mu.Lock()
			defer mu.Unlock()
			switch {
			case err == nil:
				all[m.Device] = m
			case errors.Is(err, syscall.ECONNREFUSED):
				_ = os.Remove(name)
			}
		})
	}
	wg.Wait()
	return all
}
