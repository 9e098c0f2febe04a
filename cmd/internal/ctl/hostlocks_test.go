package ctl

import (
	"strings"
	"testing"
)

func TestHostLocksFlag(t *testing.T) {
	f, run := start(t)
	if code, _, errOut := run("export", "set", "/data", "--host-locks=false"); code != 0 || f.patch.HostLocks == nil ||
		*f.patch.HostLocks || f.patch.Async != nil {
		t.Errorf("%d %s: %+v", code, errOut, f.patch)
	}
	if code, _, errOut := run("export", "add", "/srv/data", "--host-locks=false"); code != 0 ||
		f.exports[0].HostLocks == nil || *f.exports[0].HostLocks {
		t.Errorf("%d %s: %+v", code, errOut, f.exports)
	}
	if code, out, _ := run("export", "list"); code != 0 || !strings.Contains(out, "no_host_locks") {
		t.Errorf("%d %s", code, out)
	}
}
