package safepath

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestCheck(t *testing.T) {
	me := uint32(os.Geteuid())
	dir := t.TempDir()
	if err := Check(dir, me); err != nil {
		t.Skipf("the directory of tests is not safe itself: %v", err)
	}
	mk := func(name string, mode os.FileMode) string {
		t.Helper()
		p := filepath.Join(dir, name)
		if err := os.Mkdir(p, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(p, mode); err != nil {
			t.Fatal(err)
		}
		return p
	}
	file := func(p string, mode os.FileMode) string {
		t.Helper()
		if err := os.WriteFile(p, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(p, mode); err != nil {
			t.Fatal(err)
		}
		return p
	}
	link := func(to, name string) string {
		t.Helper()
		p := filepath.Join(dir, name)
		if err := os.Symlink(to, p); err != nil {
			t.Fatal(err)
		}
		return p
	}
	good, open, group, sticky := mk("good", 0o755), mk("open", 0o777), mk("group", 0o775),
		mk("sticky", 0o777|os.ModeSticky)
	prog, loose := file(filepath.Join(good, "prog"), 0o755), file(filepath.Join(good, "loose"), 0o757)
	inOpen, inSticky := file(filepath.Join(open, "prog"), 0o755), file(filepath.Join(sticky, "prog"), 0o755)
	loop := filepath.Join(dir, "loop")
	link(loop, "loop")
	for _, tc := range []struct{ path, want string }{
		{good, ""},
		{prog, ""},
		{good + "/../good/./prog", ""},
		{inSticky, ""},
		{link(prog, "to-prog"), ""},
		{link("good/../good", "to-good") + "/prog", ""},
		{open, "written by others"},
		{sticky, "written by others"},
		{loose, "written by others"},
		{inOpen, "written by others"},
		{link(inOpen, "to-open"), "written by others"},
		{link(open, "to-open-dir") + "/prog", "written by others"},
		{open + "/../good/prog", "written by others"},
		{loop, "too many levels"},
		{"good/prog", "not an absolute path"},
		{filepath.Join(dir, "none"), "no such file"},
	} {
		if err := Check(tc.path, me); tc.want == "" && err != nil ||
			tc.want != "" && (err == nil || !strings.Contains(err.Error(), tc.want)) {
			t.Errorf("%s: %v, want %q", strings.TrimPrefix(tc.path, dir), err, tc.want)
		}
	}
	if os.Geteuid() != 0 {
		if err := Check(prog); err == nil {
			t.Error("a file of this user passes as root's")
		}
		return
	}
	// Another group than the user's own.
	if err := Check(group); err == nil || !strings.Contains(err.Error(), "written by others") {
		t.Errorf("the group root: %v", err)
	}
	for gid, want := range map[int]bool{1234: true, 4321: false} {
		if err := os.Lchown(group, 1234, gid); err != nil {
			t.Fatal(err)
		}
		if err := Check(group, 1234); (err == nil) != want {
			t.Errorf("group %d: %v", gid, err)
		}
	}
	// What belongs to another user, or is reached by a link of one.
	theirs := mk("theirs", 0o755)
	inTheirs := file(filepath.Join(theirs, "prog"), 0o755)
	stickyLink := filepath.Join(sticky, "link")
	if err := os.Symlink(prog, stickyLink); err != nil {
		t.Fatal(err)
	}
	for _, p := range []string{theirs, stickyLink} {
		if err := os.Lchown(p, 1234, 1234); err != nil {
			t.Fatal(err)
		}
	}
	for _, p := range []string{theirs, inTheirs, stickyLink} {
		if err := Check(p); err == nil || !strings.Contains(err.Error(), "belongs to user 1234") {
			t.Errorf("%s: %v", strings.TrimPrefix(p, dir), err)
		}
		if err := Check(p, 1234); err != nil {
			t.Errorf("%s: %v", strings.TrimPrefix(p, dir), err)
		}
	}
	if got := Me(); got != nil {
		t.Errorf("root trusts %v besides itself", got)
	}
}
