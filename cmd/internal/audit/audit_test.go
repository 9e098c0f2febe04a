package audit

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"
)

// TestFile: lines are written in order, to the file of that name at the time, and nothing after
// the end.
func TestFile(t *testing.T) {
	name := filepath.Join(t.TempDir(), "audit.log")
	l, err := Open("file "+name, zap.NewNop())
	if err != nil {
		t.Fatal(err)
	}
	l.Event("connect", zap.String("client", "a"))
	l.Flush()
	if err := os.Rename(name, name+".1"); err != nil {
		t.Fatal(err)
	}
	if err := l.Reopen(); err != nil {
		t.Fatal(err)
	}
	l.Slog().With("transport", "tcp").Info("mount", "path", "/b", "uid", uint32(7))
	l.Flush()
	l.Record("control", zap.Any("old", map[string]any{"x": 1}))
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	l.Event("late")
	if err := l.Close(); err != nil {
		t.Errorf("closed twice: %v", err)
	}
	for file, want := range map[string][]string{
		name + ".1": {`"event":"connect","client":"a"}`},
		name:        {`"event":"mount","transport":"tcp","path":"/b","uid":7}`, `"event":"control","old":{"x":1}}`},
	} {
		b, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		lines := strings.Split(strings.TrimSpace(string(b)), "\n")
		if len(lines) != len(want) {
			t.Fatalf("%s: %q", file, lines)
		}
		for i := range want {
			if !strings.HasSuffix(lines[i], want[i]) || !strings.HasPrefix(lines[i], `{"time":"`) {
				t.Errorf("%s: %s, want ...%s", file, lines[i], want[i])
			}
		}
	}
	if l.Dropped() != 1 {
		t.Errorf("%d dropped, want the one after the end", l.Dropped())
	}
}

// TestFlood: what clients do is written so often and no more, what is left out is counted and
// told, and what administrators do is written all the same.
func TestFlood(t *testing.T) {
	core, lines := observer.New(zap.InfoLevel)
	l, err := Open("log", zap.New(core))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	clock := l.filled
	l.now = func() time.Time { return clock }
	const events = 10_000
	for range events {
		l.Event("connect")
	}
	l.Record("control")
	l.Flush()
	n := lines.FilterMessage("connect").Len()
	if n != burst || uint64(n)+l.Dropped() != events || lines.FilterMessage("control").Len() != 1 ||
		l.Counts()["connect"] != events {
		t.Errorf("%d lines, %d dropped of %v", n, l.Dropped(), l.Counts())
	}
	clock = clock.Add(time.Second)
	dropped := l.Dropped()
	l.Event("after")
	l.Flush()
	after := lines.FilterMessage("after").All()
	if len(after) != 1 || after[0].LoggerName != "audit" || after[0].ContextMap()["missing_before"] != dropped {
		t.Errorf("%+v, %d dropped", after, dropped)
	}
}

func TestOff(t *testing.T) {
	core, lines := observer.New(zap.InfoLevel)
	l, err := Open("off", zap.New(core))
	if err != nil {
		t.Fatal(err)
	}
	l.Event("connect")
	l.Record("control")
	l.Slog().Info("mount")
	if err := l.Close(); err != nil || lines.Len() != 0 || len(l.Counts()) != 0 {
		t.Errorf("%v, %d lines, %v", err, lines.Len(), l.Counts())
	}
	var none *Log
	none.Record("x")
	none.Event("x")
	none.Flush()
	if err := none.Close(); err != nil {
		t.Error(err)
	}
	for _, bad := range []string{"", "file", "file relative", "syslog", "/var/log/x"} {
		if _, err := Open(bad, zap.NewNop()); err == nil {
			t.Errorf("%q is a setting", bad)
		}
	}
	if _, err := Open("file /nonexistent/dir/x", zap.NewNop()); err == nil {
		t.Error("a file that cannot be made was opened")
	}
}

// TestCheck: Check says of every path what Open then does, and creates nothing. Open creates one
// directory, as /var/log/rstored.
func TestCheck(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "file"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for name, good := range map[string]bool{
		"file": true, "new": true, "rstored/audit.log": true, "a/b/audit.log": false, "file/audit.log": false, ".": false,
	} {
		path := filepath.Join(dir, name)
		_, before := os.Stat(path)
		err := Check("file " + path)
		if (err == nil) != good {
			t.Errorf("%s: %v", name, err)
		}
		if _, after := os.Stat(path); (after == nil) != (before == nil) {
			t.Errorf("%s: Check has made it", name)
		}
		l, err := Open("file "+path, zap.NewNop())
		if (err == nil) != good {
			t.Errorf("%s: Check and Open disagree: %v", name, err)
		}
		_ = l.Close()
	}
	if err := Check("off"); err != nil {
		t.Error(err)
	}
}
