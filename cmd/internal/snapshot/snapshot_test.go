package snapshot

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
	"unsafe"

	"github.com/rstored/rstored/cmd/internal/desired"
)

func at(t *testing.T, s string) time.Time {
	t.Helper()
	x, err := time.Parse("2006-01-02 15:04", s)
	if err != nil {
		t.Fatal(err)
	}
	return x
}

func auto(t time.Time) Snapshot { return Snapshot{Name: autoPrefix + Stamp(t), Made: t} }

// TestSchedule: a month of runs every ten minutes leaves the last snapshot of each hour, day, week
// and month, as many as are asked for, and those of people.
func TestSchedule(t *testing.T) {
	s := Schedule{Hourly: 3, Daily: 2, Weekly: 2, Monthly: 2}
	begin := at(t, "2026-01-20 00:05")
	list := []Snapshot{{Name: "mine", Made: begin.Add(-time.Hour)}}
	for clock := begin; clock.Before(at(t, "2026-02-20 12:30")); clock = clock.Add(10 * time.Minute) {
		if s.due(list, clock) {
			list = append(list, auto(clock))
		}
		gone := s.expired(list)
		list = slices.DeleteFunc(list, func(x Snapshot) bool { return slices.Contains(gone, x.Name) })
	}
	var got []string
	for _, x := range list {
		got = append(got, strings.TrimPrefix(x.Name, autoPrefix))
	}
	want := []string{
		"mine", "2026-01-31T23-05-00Z", // the last one of January
		"2026-02-15T23-05-00Z", // the last one of the week before
		"2026-02-19T23-05-00Z", // of the day before
		"2026-02-20T10-05-00Z", "2026-02-20T11-05-00Z", "2026-02-20T12-05-00Z",
	}
	if !slices.Equal(got, want) {
		t.Errorf("left\n%q, want\n%q", got, want)
	}
	if (Schedule{}).due(nil, begin) || !(Schedule{Weekly: 1}).due(list[:1], begin) {
		t.Error("due")
	}
	if err := (Schedule{Daily: -1}).Validate(); err == nil {
		t.Error("a negative number is valid")
	}
}

// TestLayouts: the arguments of ioctls have the sizes of linux/btrfs.h.
func TestLayouts(t *testing.T) {
	if a, b, c := unsafe.Sizeof(volumeArgs{}), unsafe.Sizeof(removeArgs{}), unsafe.Sizeof(subvolumeInfo{}); a != 4096 ||
		b != 4096 || c != 504 {
		t.Errorf("%d, %d, %d", a, b, c)
	}
	if snapCreate != 0x50009417 || snapDestroy != 0x5000940f {
		t.Errorf("%#x, %#x", snapCreate, snapDestroy)
	}
}

// host records the programs that are run, and answers for them.
type host struct {
	ran     []string
	answers map[string]string // by the begin of the command
}

func (h *host) run(name string, args ...string) (string, error) {
	line := strings.Join(append([]string{name}, args...), " ")
	h.ran = append(h.ran, line)
	for begin, out := range h.answers {
		if strings.HasPrefix(line, begin) {
			if out == "fails" {
				return "", errors.New("it fails")
			}
			return out, nil
		}
	}
	return "", nil
}

// TestCommands: what is asked of ZFS and LVM.
func TestCommands(t *testing.T) {
	for _, c := range []struct {
		kind, source string
		answers      map[string]string
		want         []string
	}{
		{
			"zfs", "tank/data",
			map[string]string{"zfs list": "tank/data@a\t1700000000\ntank/data@b c\t1\ntank/data@z\t1600000000\n"},
			[]string{
				"zfs snapshot tank/data@new", "mount -t zfs -o ro tank/data@new DIR/.snapshots/new",
				"zfs list -H -p -t snapshot -d 1 -o name,creation tank/data",
				"zfs destroy tank/data@new",
			},
		},
		{
			"xfs", "/dev/mapper/vg-data",
			map[string]string{
				"lvs --noheadings --separator /": "  vg/data/pool\n",
				"lvs --config":                   "  data-rstored-a,1700000000\n  other,5\n  data-rstored-z,1600000000\n",
			},
			[]string{
				"lvs --noheadings --separator / -o vg_name,lv_name,pool_lv /dev/mapper/vg-data",
				"lvcreate --quiet --snapshot --setactivationskip n --name data-rstored-new vg/data",
				"mount -t xfs -o ro,norecovery,nouuid /dev/vg/data-rstored-new DIR/.snapshots/new",
				`lvs --config report { time_format="%s" } --noheadings --separator , -o lv_name,lv_time --select origin=data vg`,
				"lvremove --quiet --yes vg/data-rstored-new",
			},
		},
	} {
		dir, err := filepath.EvalSymlinks(t.TempDir())
		if err != nil {
			t.Fatal(err)
		}
		h := &host{answers: c.answers}
		v, err := open(dir, []desired.Mount{{At: "/", Kind: "ext4"}, {At: dir, Kind: c.kind, Source: c.source}}, h.run)
		if err != nil {
			t.Fatal(err)
		}
		if err := v.Create("new"); err != nil {
			t.Fatal(err)
		}
		list, err := v.List()
		if err != nil || fmt.Sprint(list) != "[{z 2020-09-13 12:26:40 +0000 UTC} {a 2023-11-14 22:13:20 +0000 UTC}]" {
			t.Errorf("%s: %v, %v", c.kind, list, err)
		}
		if err := v.Remove("new"); err != nil {
			t.Fatal(err)
		}
		for i := range h.ran {
			h.ran[i] = strings.ReplaceAll(h.ran[i], dir, "DIR")
		}
		if !slices.Equal(h.ran, c.want) {
			t.Errorf("%s: ran\n%s, want\n%s", c.kind, strings.Join(h.ran, "\n"), strings.Join(c.want, "\n"))
		}
		if left, err := os.ReadDir(filepath.Join(dir, desired.SnapshotDir)); err != nil || len(left) > 0 {
			t.Errorf("%s: %v are left, %v", c.kind, left, err)
		}
	}
}

// TestRunFails: when no snapshot can be made, none is removed.
func TestRunFails(t *testing.T) {
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	old := []string{"auto-2020-01-01T00-00-00Z", "auto-2020-01-02T00-00-00Z"}
	h := &host{answers: map[string]string{
		"zfs snapshot": "fails", "zfs list": "d@" + old[0] + "\t1577836800\n" + "d@" + old[1] + "\t1577923200\n",
	}}
	v, err := open(dir, []desired.Mount{{At: dir, Kind: "zfs", Source: "d"}}, h.run)
	if err != nil {
		t.Fatal(err)
	}
	if err := v.SetSchedule(Schedule{Daily: 1}); err != nil {
		t.Fatal(err)
	}
	if s, err := v.Schedule(); err != nil || s.String() != "daily 1" {
		t.Errorf("%s, %v", s, err)
	}
	if made, removed, err := v.Run(at(t, "2026-01-01 00:00")); err == nil || len(made)+len(removed) > 0 {
		t.Errorf("made %q, removed %q, %v", made, removed, err)
	}
	h.answers["zfs snapshot"] = ""
	made, removed, err := v.Run(at(t, "2026-01-01 00:00"))
	if err != nil || len(made) != 1 || !slices.Equal(removed, old) {
		t.Errorf("made %q, removed %q, %v", made, removed, err)
	}
	if err := v.SetSchedule(Schedule{}); err != nil {
		t.Fatal(err)
	}
	if s, err := v.Schedule(); err != nil || !s.Empty() {
		t.Errorf("%s, %v", s, err)
	}
}

// TestRefused: where no snapshot can be made, and names that are none.
func TestRefused(t *testing.T) {
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	h := &host{answers: map[string]string{"lvs": "  vg/data/\n"}}
	for want, m := range map[string]desired.Mount{
		"no thin pool":          {At: dir, Kind: "ext4", Source: "/dev/vg/data"},
		"need btrfs, ZFS":       {At: dir, Kind: "tmpfs", Source: "tmpfs"},
		"part of the ext4":      {At: "/", Kind: "ext4", Source: "/dev/sda"},
		"no subvolume, and onl": {At: "/", Kind: "btrfs", Source: "/dev/sda"},
	} {
		if _, err := open(dir, []desired.Mount{m}, h.run); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: %v", m, err)
		}
	}
	v, err := open(dir, []desired.Mount{{At: dir, Kind: "zfs", Source: "d"}}, h.run)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"", ".", "..", ".hidden", "a/b", "a@b", "a b", "-a", strings.Repeat("x", 64)} {
		if v.Create(name) == nil || v.Remove(name) == nil {
			t.Errorf("%q is accepted", name)
		}
	}
}
