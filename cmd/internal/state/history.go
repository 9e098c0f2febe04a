package state

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
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

// HistoryMax is how many files are kept.
const HistoryMax = 32

// Entry is a file that was applied, as a whole.
type Entry struct {
	Number  int       `json:"number"`
	Time    time.Time `json:"time"`
	UID     uint32    `json:"uid"`
	User    string    `json:"user,omitempty"` // what UID was called, or the certificate of who is on another host
	Comment string    `json:"comment,omitempty"`
	// RollbackOf is the number of the entry that was applied again; 0: it is none.
	RollbackOf int    `json:"rollback_of,omitempty"`
	Name       string `json:"name"`   // of the file
	Syntax     string `json:"syntax"` // of config.Document
	Digest     string `json:"digest"` // SHA-256 of Text, hexadecimal
	Text       string `json:"text,omitempty"`
}

// Applied is what the files that were applied say together: of exports, and of each setting of
// ports, the last one that says anything of it.
type Applied struct {
	Entry           int `json:"entry"` // the last of them
	config.Document `json:"document"`
}

// Applied is nil if none was applied. It is not to be changed.
func (s *Store) Applied() *Applied {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.cur.Applied
}

// Apply enters a file into the history, under the next number, and has what it says take the
// place of what was applied before. Of the changes made at run time those are forgotten that are
// about exports, if it has any to say, and about ports of these transports. All of it happens, or
// nothing. undo takes it back, for a caller that finds that it cannot be done; nothing else may
// have been changed meanwhile. With release nothing is applied any more, and doc is what there is
// without.
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
	for k, v := range next.Listen {
		listen[k] = v
	}
	for k, v := range doc.Listen {
		listen[k] = v
	}
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

// at tells a test how far a change has come.
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
	return writeFile(s.entryName(e.Number), append(b, '\n'))
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

// Prune removes what is beyond the bound of the history, and what a crash has left.
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

// Entry is one of them, or with the number 0 what the first one replaced. Its error is
// fs.ErrNotExist if there is none.
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
