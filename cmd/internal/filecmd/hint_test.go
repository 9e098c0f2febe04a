package filecmd

import (
	"fmt"
	"io/fs"
	"strings"
	"syscall"
	"testing"

	"github.com/rstored/rstored/nfs"
)

func TestHint(t *testing.T) {
	full := &fs.PathError{Op: "write", Path: "/x", Err: syscall.ENOSPC}
	for _, tc := range []struct {
		err  error
		uid  int
		want string
	}{
		{fmt.Errorf("x: %w", nfs.ErrNoSpc), 1000, "on the server"},
		{fmt.Errorf("x: %w", nfs.ErrDQuot), 1000, "on the server"},
		{fmt.Errorf("x: %w", full), 1000, "on this host"},
		{fmt.Errorf("x: %w", nfs.ErrAcces), 0, "root_squash"},
		{fmt.Errorf("x: %w", nfs.ErrAcces), 1000, ""},
		{fs.ErrPermission, 0, ""},
		{nfs.ErrNoEnt, 0, ""},
	} {
		if got := hint(tc.err, tc.uid); !strings.Contains(got, tc.want) || (got == "") != (tc.want == "") {
			t.Errorf("%v of user %d: %q, want %q", tc.err, tc.uid, got, tc.want)
		}
	}
}
