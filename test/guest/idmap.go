package guest

import (
	"context"
	"fmt"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"syscall"
)

// ownersByName has a guest own files by name, and looks whose they are on the host.
func ownersByName(ctx context.Context, r *Run) error {
	ids := make(map[string]int)
	for _, name := range []string{"games", "mail"} {
		u, err := user.Lookup(name)
		if err != nil {
			return err
		}
		ids[name], _ = strconv.Atoi(u.Uid)
	}
	g, err := user.LookupGroup("games")
	if err != nil {
		return err
	}
	gid, _ := strconv.Atoi(g.Gid)
	if err := r.Await(ctx, "owned"); err != nil {
		return err
	}
	var st syscall.Stat_t
	if err := syscall.Stat(filepath.Join(r.Exports, "file"), &st); err != nil {
		return err
	}
	if int(st.Uid) != ids["games"] || int(st.Gid) != gid {
		return fmt.Errorf("on the host the owner is %d, the group %d; games is %d, %d", st.Uid, st.Gid, ids["games"], gid)
	}
	for _, f := range []struct {
		name     string
		uid, gid int
	}{{"host", ids["mail"], gid}, {"nameless", 12345, 54321}} {
		name := filepath.Join(r.Exports, f.name)
		if err := os.WriteFile(name, nil, 0o644); err != nil {
			return err
		}
		if err := os.Chown(name, f.uid, f.gid); err != nil {
			return err
		}
	}
	if err := r.Tell("host-owns"); err != nil {
		return err
	}
	return r.Await(ctx, "done")
}
