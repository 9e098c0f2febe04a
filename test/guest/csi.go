package guest

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/rstored/rstored/test/csi"
)

// csiTools lays the driver, csi-sanity and a client beside what is exported.
func csiTools(exports string) error {
	tools, volumes := filepath.Join(exports, "tools"), filepath.Join(exports, "volumes")
	for _, d := range []string{tools, volumes} {
		if err := os.Mkdir(d, 0o755); err != nil {
			return err
		}
	}
	return csi.Tools(context.Background(), filepath.Join("..", ".."), tools)
}

// ownServerCSI is ownServer, with the driver and with certificates by which it controls the daemon.
func ownServerCSI(ctx context.Context, r *Run) error {
	if err := csi.Tools(ctx, filepath.Join("..", ".."), r.Share); err != nil {
		return err
	}
	ca, err := newSigner(r.Share, "ca")
	if err != nil {
		return err
	}
	for file, name := range map[string]string{"server": "127.0.0.1", "driver": "csi.example.org"} {
		if err := ca.issue(r.Share, file, name, time.Now().Add(24*time.Hour)); err != nil {
			return err
		}
	}
	return ownServer(ctx, r)
}

// published looks at what a pod of the guest has written: it is in the directory of its volume,
// which goes with the volume.
func published(ctx context.Context, r *Run) error {
	if err := r.Await(ctx, "written"); err != nil {
		return err
	}
	volumes := filepath.Join(r.Exports, "volumes")
	got, err := sum(filepath.Join(volumes, "pvc-1", "file"))
	if err != nil {
		return err
	}
	want, err := sum(filepath.Join(r.Share, "file"))
	if err != nil {
		return err
	}
	if got != want {
		return fmt.Errorf("the file in the volume is not what the guest has written")
	}
	if err := r.Tell("seen"); err != nil {
		return err
	}
	if err := r.Await(ctx, "deleted"); err != nil {
		return err
	}
	left, err := filepath.Glob(filepath.Join(volumes, "[^.]*"))
	if err == nil && len(left) > 0 {
		err = fmt.Errorf("left of volumes that were deleted: %q", left)
	}
	return err
}
