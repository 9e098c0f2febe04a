package state

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/rstored/rstored/cmd/internal/config"
	"github.com/rstored/rstored/cmd/internal/lease"
	"github.com/rstored/rstored/cmd/internal/safepath"
	"github.com/rstored/rstored/nfs/nlm"
)

// Files in the state directory.
const (
	fileName   = "state.json"
	secretName = "handle.key"
	lockName   = "lock"
)

// version of the file's format. A file of another version is refused: guessing
// at it could hand one export's handles to another.
const version = 1

// secretLen is the length of the handle secret in bytes.
const secretLen = 32

// Port is a port that was added or removed at run time.
type Port struct {
	Transport string `json:"transport"`
	Listen    string `json:"listen"`
}

// contents is the file.
type contents struct {
	Version        int               `json:"version"`
	NextID         uint32            `json:"next_export_id"`
	IDs            map[string]uint32 `json:"export_ids"`
	Exports        []config.Export   `json:"exports"`
	RemovedExports []string          `json:"removed_exports"`
	Ports          []Port            `json:"ports"`
	RemovedPorts   []Port            `json:"removed_ports"`
	PKeys          []string          `json:"pkeys,omitempty"`
	RemovedPKeys   []string          `json:"removed_pkeys,omitempty"`
	Applied        *Applied          `json:"applied,omitempty"`
	LastEntry      int               `json:"last_entry,omitempty"` // of the history
	LockState      int32             `json:"lock_state"`           // starts of the lock service, see NextLockState
	LockClients    []nlm.Client      `json:"lock_clients"`
	// Filesystems are by numbers of exports.
	Filesystems map[uint32]Filesystem `json:"filesystems,omitempty"`
	// Root is the pseudo path of the export at "/".
	Root string `json:"root,omitempty"`
}

// Store is an open state directory. Its methods may be called from any
// goroutine; those that change something return after the change is on disk.
type Store struct {
	dir     string
	lock    *os.File
	common  *os.File      // locked too if nodes share the directory; see Sharing.lockCommon
	lease   *lease.Holder // nil unless nodes share the directory
	journal *Journal
	shared  Shared // nil: this server is in no cluster
	// Reached is called at steps of Apply, for tests that end the process there: at "history" the file
	// is in the history, at "state" it is in force. It is set before the first change.
	Reached func(point string)

	// gate is locked while another process has the directory; see release.
	gate sync.Mutex

	mu  sync.Mutex
	cur contents
}

// ErrBusy says that another process has the state directory open.
var ErrBusy = errors.New("another rstored is using this state directory")

// Open creates the directory if need be, locks it and reads the state. share, if not nil, says that
// other nodes use the directory too: then Open waits for the lease, until ctx ends.
func Open(ctx context.Context, dir string, share *Sharing) (*Store, error) {
	if err := share.provide(dir); err != nil {
		return nil, fmt.Errorf("state directory: %w", err)
	}
	abs, err := filepath.Abs(dir)
	if err == nil {
		err = safepath.Check(abs, uint32(os.Geteuid()))
	}
	if err != nil {
		return nil, fmt.Errorf("state directory: %w; others could put exports and a key of theirs there", err)
	}
	lock, err := os.OpenFile(filepath.Join(dir, share.lockName()), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("state directory: %w", err)
	}
	common, err := share.openCommon(dir)
	if err != nil {
		return nil, errors.Join(err, lock.Close())
	}
	try := func() error {
		if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
			return err
		}
		return lockCommon(common)
	}
	err = try()
	busy := errors.Is(err, unix.EWOULDBLOCK)
	switch {
	case err == nil, busy && share != nil: // the process before may be about to end, or may be stopped
	case busy:
		closeAll(lock, common)
		return nil, fmt.Errorf("%s: %w", dir, ErrBusy)
	default:
		closeAll(lock, common)
		return nil, fmt.Errorf("lock of %s: %w", dir, err)
	}
	var held *lease.Holder
	if share != nil {
		if held, err = lease.Take(ctx, share.config(dir, func() bool { return try() == nil })); err != nil {
			closeAll(lock, common)
			return nil, fmt.Errorf("%s: %w", dir, err)
		}
		if err := detach(dir); err != nil {
			closeAll(lock, common)
			return nil, errors.Join(err, held.Release())
		}
	}
	s, err := load(dir, lock, common, held)
	if err != nil {
		return nil, err
	}
	if err := s.Prune(); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

// Check reports whether Open could read the state of a directory, which need not exist yet. It
// changes nothing, and does not lock the directory.
func Check(dir string) error {
	if st, err := os.Stat(dir); err == nil && !st.IsDir() {
		return fmt.Errorf("%s is not a directory", dir)
	}
	return (&Store{dir: dir}).read()
}

// load reads the state of a directory whose lock is held.
func load(dir string, lock, common *os.File, held *lease.Holder) (*Store, error) {
	s := &Store{dir: dir, lock: lock, common: common, lease: held}
	err := s.read()
	if err == nil {
		s.journal, err = openJournal(dir)
	}
	if err != nil {
		if held != nil {
			_ = held.Release()
		}
		closeAll(lock, common)
		return nil, err
	}
	return s, nil
}

func (s *Store) read() error {
	s.cur = contents{Version: version, NextID: 1, IDs: make(map[string]uint32)}
	name := filepath.Join(s.dir, fileName)
	b, err := os.ReadFile(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	var c contents
	if err := json.Unmarshal(b, &c); err != nil {
		return fmt.Errorf("%s is damaged (%w): put it back from a backup, or move the whole directory away; then exports "+
			"and "+
			"ports that were added at run time are gone, and clients must mount again", name, err)
	}
	if c.Version != version {
		return fmt.Errorf("%s: format %d, but this program knows only %d", name, c.Version, version)
	}
	if c.IDs == nil {
		c.IDs = make(map[string]uint32)
	}
	for i := range c.Exports {
		if err := c.Exports[i].Normalize(); err != nil {
			return fmt.Errorf("%s: exports[%d]: %w", name, i, err)
		}
	}
	if c.Applied != nil {
		if err := c.Applied.Normalize(); err != nil {
			return fmt.Errorf("%s: applied: %w", name, err)
		}
	}
	for _, id := range c.IDs {
		c.NextID = max(c.NextID, id+1)
	}
	s.cur = c
	return nil
}

// Dir is the directory.
func (s *Store) Dir() string { return s.dir }

// Close releases the lock, and the lease.
func (s *Store) Close() error {
	err := s.journal.db.Close()
	if s.lease != nil {
		err = errors.Join(err, s.lease.Release())
	}
	closeAll(s.lock, s.common)
	return err
}

// closeAll closes lock files, which have no data. Some may be nil.
func closeAll(files ...*os.File) {
	for _, f := range files {
		_ = f.Close()
	}
}

// update applies change to a copy, writes that to disk, and only then makes it
// the current state.
func (s *Store) update(change func(*contents)) error {
	s.gate.Lock()
	defer s.gate.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	b, err := json.Marshal(s.cur)
	if err != nil {
		return err
	}
	var next contents
	if err := json.Unmarshal(b, &next); err != nil {
		return err
	}
	if next.IDs == nil {
		next.IDs = make(map[string]uint32)
	}
	change(&next)
	b, err = json.MarshalIndent(next, "", "  ")
	if err != nil {
		return err
	}
	if err := writeFile(filepath.Join(s.dir, fileName), append(b, '\n'), s.mayWrite); err != nil {
		return fmt.Errorf("state was not saved: %w", err)
	}
	s.cur = next
	return nil
}

// NextLockState counts a start of the lock service: 1, 3, 5 and so on, as a status
// monitor counts.
func (s *Store) NextLockState() (state int32, err error) {
	err = s.update(func(c *contents) {
		c.LockState = (c.LockState + 1) | 1
		state = c.LockState
	})
	return state, err
}

// LockClients returns the hosts that had locks when this was last set.
func (s *Store) LockClients() []nlm.Client {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.cur.LockClients)
}

// SetLockClients remembers the hosts that have locks.
func (s *Store) SetLockClients(list []nlm.Client) error {
	return s.update(func(c *contents) { c.LockClients = list })
}

// Journal is the list of the clients of NFS version 4 with state, unless the server is in a cluster.
func (s *Store) Journal() *Journal { return s.journal }

// Secret is the key of the handles' authentication codes. It is made at the
// first call; losing it makes every handle of every client stale.
func (s *Store) Secret() ([]byte, error) {
	if s.shared != nil {
		return s.shared.Secret(), nil
	}
	b, err := ReadSecret(s.dir)
	if !errors.Is(err, fs.ErrNotExist) {
		return b, err
	}
	name := filepath.Join(s.dir, secretName)
	b = make([]byte, secretLen)
	if _, err := rand.Read(b); err != nil {
		return nil, err
	}
	return b, writeFile(name, b, s.mayWrite)
}

// ReadSecret reads the secret of a directory that another process may have open. The error is
// fs.ErrNotExist if there is none yet.
func ReadSecret(dir string) ([]byte, error) {
	name := filepath.Join(dir, secretName)
	b, err := os.ReadFile(name)
	if err == nil && len(b) != secretLen {
		return nil, fmt.Errorf("%s: %d bytes long instead of %d; remove it to make a new one (clients must then mount again)",
			name, len(b), secretLen)
	}
	return b, err
}

// mayWrite is an error if another node may have the directory by now.
func (s *Store) mayWrite() error {
	if s.lease != nil && !s.lease.Serving() {
		return errors.New("this node has lost the lease on the state directory")
	}
	return nil
}

// writeFile replaces a file. After a crash the file is the old or the new one, whole. It calls may
// just before the rename, because writing the new file can take long.
func writeFile(name string, b []byte, may func() error) error {
	tmp, err := os.CreateTemp(filepath.Dir(name), "."+filepath.Base(name)+".*")
	if err != nil {
		return err
	}
	defer func() { _ = os.Remove(tmp.Name()) }()
	if _, err := tmp.Write(b); err != nil {
		_ = tmp.Close()
		return err
	}
	if err := errors.Join(tmp.Sync(), tmp.Close()); err != nil {
		return err
	}
	if err := may(); err != nil {
		return err
	}
	if err := os.Rename(tmp.Name(), name); err != nil {
		return err
	}
	d, err := os.Open(filepath.Dir(name))
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
