package state

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/rstored/rstored/cmd/internal/config"
)

// historyName is the directory of the files that were applied. The number of the last one is in
// the state, which decides: a file with a higher number was never applied.
const historyName = "history"

// HistoryMax is the number of entries that Prune leaves.
const HistoryMax = 32

// Entry is a file that was applied, as a whole.
type Entry struct {
	Number  int       `json:"number"`
	Time    time.Time `json:"time"`
	UID     uint32    `json:"uid"`
	User    string    `json:"user,omitempty"` // name of UID at that time, or the certificate name of a remote user
	Comment string    `json:"comment,omitempty"`
	// RollbackOf is the number of the entry that was applied again; 0: it is none.
	RollbackOf int    `json:"rollback_of,omitempty"`
	Name       string `json:"name"`   // of the file
	Syntax     string `json:"syntax"` // of config.Document
	Digest     string `json:"digest"` // SHA-256 of Text, hexadecimal
	Text       string `json:"text,omitempty"`
}

// Applied is the sum of the applied files: the exports of the last file that has any, and for each
// setting of ports the value of the last file that has it.
type Applied struct {
	Entry           int `json:"entry"` // the last of them
	config.Document `json:"document"`
}

// Applied returns nil if no file is applied. The caller must not change the result.
func (s *Store) Applied() *Applied {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.cur.Applied
}

// Apply adds a file to the history, under the next number, and replaces what was applied. It drops
// run-time changes of exports if the file has exports, and run-time changes of ports of the given
// transports. Either all of this happens or nothing. undo reverts it, for a caller that finds that
// the file cannot be served; nothing else may have changed in between. release means that no file
// is applied from now on; doc is then the configuration's own.
//
// before is what was served until now. With the first file it becomes entry 0 of the history.
func (s *Store) Apply(
	e, before Entry, doc *config.Document, transports []string, release bool,
) (number int, undo func() error, err error) {
	s.mu.Lock()
	was := s.cur
	s.mu.Unlock()
	e.Number = was.LastEntry + 1
	if was.LastEntry == 0 {
		before.Number = 0
		if err := s.writeEntry(&before); err != nil {
			return 0, nil, fmt.Errorf("history was not saved: %w", err)
		}
	}
	if err := s.writeEntry(&e); err != nil {
		return 0, nil, fmt.Errorf("history was not saved: %w", err)
	}
	s.at("history")
	next := &Applied{Entry: e.Number}
	if was.Applied != nil {
		next.Document = was.Applied.Document
	}
	listen := make(map[string][]string)
	maps.Copy(listen, next.Listen)
	maps.Copy(listen, doc.Listen)
	next.Listen, next.Ignored, next.Warnings = listen, nil, nil
	if doc.Exports != nil {
		next.Exports = doc.Exports
	}
	if release {
		next = nil
	}
	err = s.update(func(c *contents) {
		c.Applied, c.LastEntry = next, e.Number
		if doc.Exports != nil {
			c.Exports, c.RemovedExports = nil, nil
		}
		about := func(p Port) bool { return slices.Contains(transports, p.Transport) }
		c.Ports, c.RemovedPorts = slices.DeleteFunc(c.Ports, about), slices.DeleteFunc(c.RemovedPorts, about)
	})
	if err != nil {
		return 0, nil, errors.Join(err, os.Remove(s.entryName(e.Number)))
	}
	s.at("state")
	undo = func() error {
		err := s.update(func(c *contents) {
			c.Applied, c.LastEntry = was.Applied, was.LastEntry
			c.Exports, c.RemovedExports, c.Ports, c.RemovedPorts = was.Exports, was.RemovedExports, was.Ports, was.RemovedPorts
		})
		if err != nil {
			return err
		}
		return os.Remove(s.entryName(e.Number))
	}
	return e.Number, undo, nil
}

// at reports a step of a change to a test.
func (s *Store) at(point string) {
	if s.Reached != nil {
		s.Reached(point)
	}
}

func (s *Store) entryName(n int) string {
	return filepath.Join(s.dir, historyName, fmt.Sprintf("%08d.json", n))
}

func (s *Store) writeEntry(e *Entry) error {
	if err := os.MkdirAll(filepath.Join(s.dir, historyName), 0o700); err != nil {
		return err
	}
	b, err := json.MarshalIndent(e, "", "  ")
	if err != nil {
		return err
	}
	return writeFile(s.entryName(e.Number), append(b, '\n'), s.mayWrite)
}

// entries lists the numbers of the files of the history, in order, 0 among them.
func (s *Store) entries() ([]int, error) {
	list, err := os.ReadDir(filepath.Join(s.dir, historyName))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	var out []int
	for _, f := range list {
		if n, err := strconv.Atoi(strings.TrimSuffix(f.Name(), ".json")); err == nil && n >= 0 &&
			f.Name() == filepath.Base(s.entryName(n)) {
			out = append(out, n)
		}
	}
	slices.Sort(out)
	return out, err
}

// Prune removes entries beyond HistoryMax, and files that a crash left behind.
func (s *Store) Prune() error {
	list, err := s.entries()
	s.mu.Lock()
	last := s.cur.LastEntry
	s.mu.Unlock()
	errs := []error{err}
	for _, n := range list {
		if n > last || n <= last-HistoryMax {
			errs = append(errs, os.Remove(s.entryName(n)))
		}
	}
	if files, err := filepath.Glob(filepath.Join(s.dir, historyName, ".*.json.*")); err == nil {
		for _, f := range files { // writeFile did not get to its end
			errs = append(errs, os.Remove(f))
		}
	}
	return errors.Join(errs...)
}

// History lists the files that were applied, the latest first, without their texts. One that
// cannot be read is left out.
func (s *Store) History() ([]Entry, error) {
	list, err := s.entries()
	if err != nil {
		return nil, err
	}
	out := []Entry{}
	for _, n := range list {
		if e, err := s.Entry(n); err == nil && n > 0 {
			e.Text = ""
			out = append(out, e)
		}
	}
	slices.SortFunc(out, func(a, b Entry) int { return cmp.Compare(b.Number, a.Number) })
	return out, nil
}

// Entry returns an entry of the history. Number 0 is what the first applied file replaced. The
// error is fs.ErrNotExist if there is no such entry.
func (s *Store) Entry(n int) (e Entry, err error) {
	s.mu.Lock()
	last := s.cur.LastEntry
	s.mu.Unlock()
	if n < 0 || n > last || last == 0 {
		return e, fs.ErrNotExist
	}
	b, err := os.ReadFile(s.entryName(n))
	if err != nil {
		return e, err
	}
	return e, json.Unmarshal(b, &e)
}
