package state

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rstored/rstored/cmd/internal/config"
)

func openStore(t *testing.T, dir string) *Store {
	t.Helper()
	s, err := Open(context.Background(), dir, nil)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func closeStore(t *testing.T, s *Store) {
	t.Helper()
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
}

func document(t *testing.T, text string) *config.Document {
	t.Helper()
	d, err := config.ParseDocument("f", config.SyntaxYAML, []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// TestApply: a file takes the place of what is its to say, and no more; undo takes it back, and a
// restart finds the same.
func TestApply(t *testing.T) {
	dir := t.TempDir()
	s := openStore(t, dir)
	run := config.Export{Path: "/run"}
	if err := errors.Join(run.Normalize(), s.PutExport(run), s.RemoveExport("/away", true),
		s.PutPort(Port{"tcp", ":1"}, false), s.RemovePort(Port{"rdma", ":2"}, true)); err != nil {
		t.Fatal(err)
	}
	show := func() string {
		e, re := s.Exports()
		p, rp := s.Ports()
		out := fmt.Sprint(len(e), re, p, rp)
		if a := s.Applied(); a != nil {
			out += fmt.Sprintf(" %d:", a.Entry)
			for _, x := range a.Exports {
				out += x.Pseudo
			}
			out += fmt.Sprint(a.Exports == nil, a.Listen)
		}
		h, err := s.History()
		if err != nil {
			t.Fatal(err)
		}
		for _, x := range h {
			out += fmt.Sprintf(" #%d %s", x.Number, x.Comment)
		}
		return out
	}
	const before = "1 [/away] [{tcp :1}] [{rdma :2}]"
	if got := show(); got != before {
		t.Fatalf("%q", got)
	}
	apply := func(comment, text string, transports ...string) func() error {
		t.Helper()
		_, undo, err := s.Apply(Entry{Comment: comment, Text: text}, Entry{}, document(t, text), transports, false)
		if err != nil {
			t.Fatal(err)
		}
		return undo
	}
	undo := apply("one", "exports: [{path: /a}]\n")
	const one = "0 [] [{tcp :1}] [{rdma :2}] 1:/afalse map[] #1 one"
	if got := show(); got != one {
		t.Errorf("%q, want %q", got, one)
	}
	if err := undo(); err != nil || show() != before {
		t.Errorf("undone: %q, %v", show(), err)
	}
	apply("one", "exports: [{path: /a}]\n")
	apply("two", "tcp_listen: [':7']\n", "tcp")
	const two = "0 [] [] [{rdma :2}] 2:/afalse map[tcp_listen:[:7]] #2 two #1 one"
	if got := show(); got != two {
		t.Errorf("%q, want %q", got, two)
	}
	closeStore(t, s)
	s = openStore(t, dir)
	if got := show(); got != two {
		t.Errorf("after a restart %q", got)
	}
	apply("none", "exports: []\n")
	closeStore(t, s)
	s = openStore(t, dir)
	defer closeStore(t, s)
	if a := s.Applied(); a.Exports == nil || len(a.Exports) != 0 {
		t.Errorf("no exports are %v after a restart", a.Exports)
	}
	if e, err := s.Entry(2); err != nil || e.Text != "tcp_listen: [':7']\n" {
		t.Errorf("entry 2: %+v, %v", e, err)
	}
	if _, err := s.Entry(4); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("entry 4: %v", err)
	}
}

// TestHistoryBounded: the oldest go, and what a crash left over is not taken for an entry.
func TestHistoryBounded(t *testing.T) {
	dir := t.TempDir()
	s := openStore(t, dir)
	const n = HistoryMax + 5
	for i := range n {
		if _, _, err := s.Apply(Entry{}, Entry{}, document(t, fmt.Sprintf("tcp_listen: [':%d']\n", i+1)), nil,
			false); err != nil {
			t.Fatal(err)
		}
		if err := s.Prune(); err != nil {
			t.Fatal(err)
		}
	}
	list, err := s.History()
	if err != nil || len(list) != HistoryMax || list[0].Number != n {
		t.Errorf("%d entries, %v", len(list), err)
	}
	if err := s.writeEntry(&Entry{Number: n + 1}); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, historyName, "."+filepath.Base(s.entryName(n+2))+".123"), nil,
		0o600); err != nil {
		t.Fatal(err)
	}
	closeStore(t, s)
	s = openStore(t, dir)
	defer closeStore(t, s)
	files, err := os.ReadDir(filepath.Join(dir, historyName))
	if err != nil || len(files) != HistoryMax {
		t.Errorf("%d files, %v", len(files), err)
	}
	for _, f := range files {
		if strings.HasPrefix(f.Name(), ".") {
			t.Errorf("%s was left", f.Name())
		}
	}
}

// TestApplyEnds: whenever it ends on the way, there is the old or the new, with its history.
func TestApplyEnds(t *testing.T) {
	for point, want := range map[string]int{"history": 1, "state": 2} {
		dir := t.TempDir()
		s := openStore(t, dir)
		if _, _, err := s.Apply(Entry{}, Entry{}, document(t, "exports: [{path: /a}]\n"), nil, false); err != nil {
			t.Fatal(err)
		}
		type ended struct{}
		func() {
			defer func() {
				if _, ok := recover().(ended); !ok {
					t.Errorf("%s was not reached", point)
				}
			}()
			s.Reached = func(p string) {
				if p == point {
					panic(ended{})
				}
			}
			_, _, _ = s.Apply(Entry{}, Entry{}, document(t, "exports: [{path: /b}]\n"), nil, false)
		}()
		closeStore(t, s)
		s = openStore(t, dir)
		list, err := s.History()
		if a := s.Applied(); err != nil || a.Entry != want || len(list) != want ||
			a.Exports[0].Pseudo != map[int]string{1: "/a", 2: "/b"}[want] {
			t.Errorf("ended after %s: %+v, history %v, %v", point, a, list, err)
		}
		closeStore(t, s)
	}
}
