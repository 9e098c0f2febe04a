package posixfs

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// TestProjectQuota: which project a directory gets, and what is refused. The case quota-project of
// test/guest does the same with real quotas.
func TestProjectQuota(t *testing.T) {
	dir := t.TempDir()
	var s unix.Stat_t
	if err := unix.Stat(dir, &s); err != nil {
		t.Fatal(err)
	}
	var x, above fsxattr
	limits, used := map[uint32]uint64{}, map[uint32]uint64{}
	var fail error
	p := projects{
		get: func(fd int) (fsxattr, error) {
			var of unix.Stat_t
			if err := unix.Fstat(fd, &of); err != nil || of.Ino != s.Ino {
				return above, err
			}
			return x, nil
		},
		set: func(_ int, to fsxattr) error { x = to; return nil },
		quota: func(_ int, project uint32) (dqblk, error) {
			if used[project] == 0 {
				return dqblk{}, unix.ENOENT
			}
			return dqblk{space: used[project]}, nil
		},
		limit: func(_ int, project uint32, d dqblk) error {
			if fail == nil && d.valid == quotaLimits {
				limits[project] = d.hard
			}
			return fail
		},
	}
	bound := func(bytes uint64) error {
		d, err := os.Open(dir)
		if err != nil {
			t.Fatal(err)
		}
		defer d.Close()
		return p.bound(d, bytes)
	}
	refused := func(err error, want string) {
		t.Helper()
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v; want %q", err, want)
		}
	}
	if err := bound(0); err != nil || x.project != 0 {
		t.Errorf("no bound, and no project: %+v, %v", x, err)
	}
	first := projectOurs | uint32(s.Ino^s.Ino>>32)
	used[first] = 4096
	if err := bound(1<<20 + 1); err != nil || x.project != first+1 || x.flags&projectInherit == 0 ||
		limits[x.project] != 1025 {
		t.Errorf("%+v, %v, %v", x, limits, err)
	}
	// A new directory below one with a project is in that project.
	above = fsxattr{project: 42, flags: projectInherit}
	x, limits[42] = above, 100
	if err := bound(0); err != nil || limits[42] != 100 || x != above {
		t.Errorf("no bound, in the parent's project: %+v, %v, %v", x, limits, err)
	}
	if err := bound(4096); err != nil || limits[42] != 100 || x.project != first+1 || limits[first+1] != 4 {
		t.Errorf("a bound, in the parent's project: %+v, %v, %v", x, limits, err)
	}
	if err := bound(8192); err != nil || limits[42] != 100 || x.project != first+1 || limits[first+1] != 8 {
		t.Errorf("another bound below the parent's project: %+v, %v, %v", x, limits, err)
	}
	for n := range uint32(projectTrials) {
		used[first+n] = 4096
	}
	x = above
	refused(bound(4096), "no free number")
	if x != above || limits[42] != 100 {
		t.Errorf("without a free number: %+v, %v", x, limits)
	}
	x = fsxattr{project: first + 1, flags: projectInherit}
	if err := os.WriteFile(filepath.Join(dir, "f"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := bound(0); err != nil || limits[first+1] != 0 {
		t.Errorf("a bound that is taken back: %v, %v", limits, err)
	}
	x = fsxattr{project: 7, flags: projectInherit}
	if err := bound(4096); err != nil || limits[7] != 4 {
		t.Errorf("a project of the administrator's: %v, %v", limits, err)
	}
	x = fsxattr{}
	refused(bound(4096), "has files and no project")
	x = above
	refused(bound(4096), dir+" has files and only the project 42")
	if x != above || limits[42] != 100 {
		t.Errorf("files in the parent's project: %+v, %v", x, limits)
	}
	x = fsxattr{project: 7, flags: projectInherit}
	fail = unix.EPERM
	refused(bound(4096), "CAP_SYS_ADMIN")
	fail = unix.ESRCH
	refused(bound(4096), "mount it with prjquota")
}
