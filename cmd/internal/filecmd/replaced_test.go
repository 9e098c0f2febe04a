package filecmd

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// TestReplacedSource: what has taken the place of a listed file is not read, and nothing waits for
// the writer of a FIFO.
func TestReplacedSource(t *testing.T) {
	for what, replace := range map[string]func(secret, p string) error{
		"symbolic link": os.Symlink,
		"file":          os.Link,
		"FIFO":          func(_, p string) error { return unix.Mkfifo(p, 0o600) },
	} {
		dir := t.TempDir()
		secret, p := filepath.Join(dir, "secret"), filepath.Join(dir, "f")
		err := errors.Join(os.WriteFile(secret, []byte("SECRET"), 0o600), os.WriteFile(p, []byte("public"), 0o644))
		if err != nil {
			t.Fatal(err)
		}
		o, err := localObject(p, false)
		if err != nil {
			t.Fatal(err)
		}
		b := make([]byte, 6)
		if err := (local{}).read(t.Context(), o, b); err != nil || string(b) != "public" {
			t.Errorf("before: %q, %v", b, err)
		}
		if err := errors.Join(os.Remove(p), replace(secret, p)); err != nil {
			t.Fatal(err)
		}
		for name, err := range map[string]error{
			"read": local{}.read(t.Context(), o, b), "stream": local{}.stream(t.Context(), o, io.Discard),
			"readable": readable(o),
		} {
			if !errors.Is(err, errReplaced) {
				t.Errorf("%s, %s: %v", what, name, err)
			}
		}
	}
}
