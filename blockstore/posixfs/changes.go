package posixfs

import (
	"fmt"
	"maps"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rstored/rstored/blockstore"
	"golang.org/x/sys/unix"
)

const (
	// changesMax bounds each of the two generations of objects that changed more than once in a tick.
	changesMax = 1 << 15
	// sealTime is what the store adds to the ctime of an inode that last changed before the store
	// was opened (changes.sealed). sealMost is the most changes that are counted in a tick, of a
	// nanosecond each. Their sum is less than the shortest tick, which is a millisecond.
	sealTime = 500 * time.Microsecond
	sealMost = 400_000
)

// changes makes the ctimes of any two changes by this server differ. Clients that cache need
// that: version 3 compares ctime, and the change attribute of version 4 is derived from it. The
// ctimes of the kernel advance by the tick of its clock only (1 to 10 ms), before Linux 6.13 and
// on some filesystems since. A change that leaves the ctime of the kernel as it was adds a
// nanosecond to the ctime that the store reports for the inode.
//
// These nanoseconds are in memory only. For an inode that last changed before the store was opened,
// or that was removed from memory for room, the store does not know their number. It then adds
// sealTime to the ctime of the kernel: more than any number of nanoseconds, and less than a tick.
// So the reported ctime never decreases.
type changes struct {
	coarse bool // ctimes have the resolution of a tick
	max    int  // changesMax

	some   atomic.Bool  // recent or before is not empty
	sealed atomic.Int64 // ctimes up to this one, in nanoseconds since 1970
	mu     sync.Mutex
	recent map[inode]stamp
	before map[inode]stamp
}

type inode struct{ dev, ino uint64 }

// stamp is the number of changes of an inode after the first one in the tick of a ctime.
type stamp struct {
	ctime int64
	n     int64
}

func (c *changes) init(coarse bool) {
	c.coarse, c.max = coarse, changesMax
	c.recent = make(map[inode]stamp)
}

// sealNow seals all changes up to now, and waits until the clock of ctimes has advanced: a
// change in a tick that is sealed already could not be sealed again.
func (c *changes) sealNow() {
	now := time.Now().UnixNano()
	c.seal(now)
	var ts unix.Timespec
	for c.coarse && unix.ClockGettime(unix.CLOCK_REALTIME_COARSE, &ts) == nil && ts.Nano() <= now+int64(sealTime) &&
		now-ts.Nano() < int64(time.Second) {
		time.Sleep(time.Millisecond)
	}
}

// seal seals all changes up to a time.
func (c *changes) seal(at int64) { c.sealed.Store(max(c.sealed.Load(), at)) }

// find returns the stamp of an inode; mu is held.
func (c *changes) find(i inode) stamp {
	if s, ok := c.recent[i]; ok {
		return s
	}
	return c.before[i]
}

// ctime returns the ctime to report for an inode whose ctime in the kernel is t.
func (c *changes) ctime(i inode, t time.Time) time.Time {
	at := t.UnixNano()
	var add time.Duration
	if c.coarse && at <= c.sealed.Load() {
		add = sealTime
	}
	if c.some.Load() {
		c.mu.Lock()
		if s := c.find(i); s.ctime == at {
			add += time.Duration(s.n)
		}
		c.mu.Unlock()
	}
	return t.Add(add)
}

// add records a change that left the ctime of an inode as it was.
func (c *changes) add(i inode, t time.Time) {
	at := t.UnixNano()
	c.mu.Lock()
	defer c.mu.Unlock()
	s := c.find(i)
	if s.ctime != at {
		s = stamp{ctime: at}
	}
	s.n = min(s.n+1, sealMost)
	if len(c.recent) >= c.max {
		older := c.before
		c.before, c.recent = c.recent, make(map[inode]stamp)
		for i, s := range older {
			if _, ok := c.before[i]; s.ctime != at {
				c.seal(s.ctime)
			} else if !ok {
				c.recent[i] = s // the inode can change again in this tick
			}
		}
		if sealed := c.sealed.Load(); c.coarse { // sealed inodes lose their counts now, all at the same time
			maps.DeleteFunc(c.before, func(_ inode, s stamp) bool { return s.ctime <= sealed })
		}
	}
	c.recent[i] = s
	c.some.Store(true)
}

// attrOf returns the attributes to report.
func (c *changes) attrOf(st *unix.Stat_t) blockstore.Attr {
	a := attrOf(st)
	a.Ctime = c.ctime(inode{st.Dev, st.Ino}, a.Ctime)
	return a
}

// attrOfStatx is attrOf for statx.
func (c *changes) attrOfStatx(sx *unix.Statx_t) blockstore.Attr {
	a := attrOfStatx(sx)
	a.Ctime = c.ctime(inode{unix.Mkdev(sx.Dev_major, sx.Dev_minor), sx.Ino}, a.Ctime)
	return a
}

// changed returns the attributes to report for an inode that was changed. st is from after the
// change. The ctime differs from before.
func (c *changes) changed(st *unix.Stat_t, before time.Time) blockstore.Attr {
	a := c.attrOf(st)
	if a.Ctime.Equal(before) {
		c.add(inode{st.Dev, st.Ino}, time.Unix(st.Ctim.Unix()))
		a = c.attrOf(st)
	}
	return a
}

// changedFD is changed for the inode of a descriptor.
func (c *changes) changedFD(fd int, before time.Time) {
	var st unix.Stat_t
	if unix.Fstat(fd, &st) == nil {
		c.changed(&st, before)
	}
}

// coarseTimes reports whether ctimes of a filesystem have the resolution of a tick, or a longer
// one. Since Linux 6.13 ext4, XFS, btrfs and tmpfs have finer ones.
func coarseTimes(fd int) bool {
	switch mountedAs(fd) { // the magic number does not distinguish ext4 from ext2 and ext3
	case "ext4", "xfs", "btrfs", "tmpfs":
	default:
		return true
	}
	var u unix.Utsname
	var major, minor int
	if unix.Uname(&u) != nil {
		return true
	}
	if _, err := fmt.Sscanf(unix.ByteSliceToString(u.Release[:]), "%d.%d", &major, &minor); err != nil {
		return true
	}
	return major < 6 || major == 6 && minor < 13
}

// mountedAs returns the type of filesystem that /proc/self/mountinfo has for a directory; empty
// if that is not known.
func mountedAs(fd int) string {
	var sx unix.Statx_t
	if unix.Statx(fd, "", unix.AT_EMPTY_PATH, unix.STATX_MNT_ID, &sx) != nil || sx.Mask&unix.STATX_MNT_ID == 0 {
		return ""
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return ""
	}
	for line := range strings.Lines(string(mounts)) {
		mount, rest, _ := strings.Cut(line, " ")
		if _, super, ok := strings.Cut(rest, " - "); ok && mount == strconv.FormatUint(sx.Mnt_id, 10) {
			kind, _, _ := strings.Cut(super, " ")
			return kind
		}
	}
	return ""
}
