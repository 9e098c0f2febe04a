package guest

import (
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
)

// copySize is the size of the file that is copied within the server, in bytes.
const copySize = 300<<20 + 12345

// twoExports are those of the script copy.
var twoExports = []string{"%s/one=/one(rw,no_root_squash)", "%s/two=/two(rw,no_root_squash)"}

// bigFile makes them, with a file in one.
func bigFile(exports string) error {
	for _, d := range []string{"one", "two"} {
		if err := os.Mkdir(filepath.Join(exports, d), 0o755); err != nil {
			return err
		}
	}
	f, err := os.Create(filepath.Join(exports, "one", "big"))
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = io.CopyN(f, rand.NewChaCha8([32]byte{1}), copySize)
	return err
}

// copied holds the copies that the guest asked for against the file, and checks that
// they were made after their replies, and that one was stopped.
func copied(ctx context.Context, r *Run) error {
	if err := r.Await(ctx, "copied"); err != nil {
		return err
	}
	want, err := sum(filepath.Join(r.Exports, "one", "big"))
	if err != nil {
		return err
	}
	for _, name := range []string{"one/copy", "one/cp", "two/copy"} {
		got, err := sum(filepath.Join(r.Exports, name))
		if err != nil {
			return err
		}
		if got != want {
			return fmt.Errorf("%s is not the file that was copied", name)
		}
	}
	n, err := r.counts()
	if err != nil {
		return err
	}
	r.Logf("%v %v", n.Events, n.Errors)
	if n.Events["nfs4_offloads"] < 4 || n.Events["nfs4_offloads_cancelled"] == 0 {
		return fmt.Errorf("%d copies after their replies, %d stopped", n.Events["nfs4_offloads"],
			n.Events["nfs4_offloads_cancelled"])
	}
	if lost := n.Errors["nfs4_callbacks_lost"]; lost > 0 {
		return fmt.Errorf("%d callbacks were not answered", lost)
	}
	return r.Tell("compared")
}

func sum(path string) (s [sha256.Size]byte, err error) {
	f, err := os.Open(path)
	if err != nil {
		return s, err
	}
	defer f.Close()
	h := sha256.New()
	_, err = io.Copy(h, f)
	return [sha256.Size]byte(h.Sum(nil)), err
}
