package posixfs

import (
	"time"

	"github.com/rstored/rstored/blockstore"
	"golang.org/x/sys/unix"
)

var _ blockstore.Births = (*FS)(nil)

// birth asks the kernel when the object of a path descriptor was made; ok is false if the
// filesystem does not know.
func birth(fd int) (at time.Time, ok bool, err error) {
	var st unix.Statx_t
	err = retry(func() error {
		return unix.Statx(fd, "", unix.AT_EMPTY_PATH|unix.AT_STATX_DONT_SYNC, unix.STATX_BTIME, &st)
	})
	if err != nil || st.Mask&unix.STATX_BTIME == 0 {
		return at, false, err
	}
	return time.Unix(st.Btime.Sec, int64(st.Btime.Nsec)), true, nil
}

// Birth implements blockstore.Births.
func (f *FS) Birth(_ *blockstore.Cred, h blockstore.Handle) (time.Time, error) {
	if !f.limits.Births {
		return time.Time{}, blockstore.ErrNotSupp
	}
	o, err := f.acquire(h)
	if err != nil {
		return time.Time{}, err
	}
	defer f.release(o)
	at, ok, err := birth(o.path)
	if err != nil || ok {
		return at, mapErr(err)
	}
	// ext4 has inodes without room for this time.
	a, err := o.attr()
	if a.Ctime.Before(a.Mtime) {
		return a.Ctime, err
	}
	return a.Mtime, err
}
