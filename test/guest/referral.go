package guest

import (
	"context"
	"os"
	"path/filepath"
)

// referralExports are those of the script referral. The first one is the root, with the addresses
// of the server.
var referralExports = []string{
	"%s/top=/(rw,no_root_squash,fsid=root,replicas=/@" + HostAddr + "+[" + HostAddr6 + "])",
	"%s/home=/home(rw,no_root_squash)",
	"%s/pub=/pub(rw,no_root_squash)",
	"%s/away=/pub/away(rw,refer=/home@" + HostAddr + ")",
	"%s/moving=/moving(rw,no_root_squash)",
}

func referralFiles(exports string) error {
	for name, text := range map[string]string{
		"top/pub/x": "", "top/home/x": "", "top/moving/x": "", "pub/away/x": "", "away/hidden": "not here",
		"home/inside": "in the new home\n", "pub/file": "beside it\n", "moving/file": "at the old place\n",
	} {
		name = filepath.Join(exports, name)
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			return err
		}
		if filepath.Base(name) == "x" {
			continue
		}
		if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// moves gives an export under a guest's mount another server.
func moves(ctx context.Context, r *Run) error {
	if err := r.Await(ctx, "mounted"); err != nil {
		return err
	}
	if err := r.Ctl("export", "set", "/moving", "--option", "refer=/home@"+HostAddr); err != nil {
		return err
	}
	return r.Tell("moved")
}
