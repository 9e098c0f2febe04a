package filecmd

import (
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/rstored/rstored/blockstore"
	"github.com/rstored/rstored/cmd/internal/cli"
	"github.com/rstored/rstored/nfs/client"
	"github.com/rstored/rstored/nfs/dial"
	"github.com/rstored/rstored/nfs/rquota"
	"github.com/rstored/rstored/rpcrdma/rpc"
	"github.com/rstored/rstored/rpcrdma/xdr"
)

// Kinds of quotas.
const (
	kindUser      = "user"
	kindDirectory = "directory"
)

// userQuota is one line of quota: of a user, or of the project of a directory. Limits of 0 are
// none.
type userQuota struct {
	URL        string     `json:"url"`
	Kind       string     `json:"kind"`
	UID        uint32     `json:"uid"`
	None       bool       `json:"none,omitempty"` // there is no quota
	Used       uint64     `json:"used_bytes"`
	Soft       uint64     `json:"soft_bytes"`
	Hard       uint64     `json:"hard_bytes"`
	Until      *time.Time `json:"until,omitempty"` // when the soft limit becomes the hard one
	Files      uint64     `json:"files"`
	FilesSoft  uint64     `json:"files_soft"`
	FilesHard  uint64     `json:"files_hard"`
	FilesUntil *time.Time `json:"files_until,omitempty"`
}

func (t *tool) quota() *cobra.Command {
	var uid int64
	var all []*userQuota
	c := t.command("quota URL...", "Show a user's quota of disk space and files", cobra.MinimumNArgs(1),
		func(r *run, args []string) error {
			if uid < -1 || uid >= 1<<32-1 {
				return cli.Usagef("--uid %d is not the number of a user", uid)
			}
			if uid == -1 {
				uid = int64(os.Geteuid())
			}
			err := r.each(args, func(u client.URL) error {
				c := r.dialer.Client(u)
				q, err := r.askQuota(c, u.Path, uint32(uid))
				if err != nil {
					return err
				}
				q.URL = u.String()
				all = append(all, q)
				// A server that does not know this kind has none.
				if d, err := r.askDirectory(c, u.Path); err == nil && !d.None {
					d.URL = q.URL
					all = append(all, d)
				}
				return nil
			})
			if err != nil || len(all) == 0 {
				return err
			}
			return t.g.Print(all, func(w io.Writer) { printQuotas(w, all) })
		})
	c.Long = `Show a user's quota of disk space and files in the file system of an export, and that of the
directory, by the protocol that
quota(1) uses too (rquota), and on the same port as NFS. Over the soft limit a user may write until
the time that is shown, and at most up to the hard limit. Only root, where it is not squashed, sees
the quotas of others. A directory that is in a project with a quota (ext4, XFS) has a second line,
for all that is in the project. df shows the same as the size of the directory.`
	c.Flags().Int64Var(&uid, "uid", -1, "`NUMBER` of the user on the server (default: the caller)")
	return c
}

// askQuota asks a server for the quota of a user.
func (r *run) askQuota(c *client.Client, path string, uid uint32) (*userQuota, error) {
	q, err := r.ask(c, rquota.Version1, func(e *xdr.Encoder) { rquota.EncodeArgs(e, path, uid) })
	if q != nil {
		q.Kind, q.UID = kindUser, uid
	}
	return q, err
}

// askDirectory asks a server for the quota of a directory.
func (r *run) askDirectory(c *client.Client, path string) (*userQuota, error) {
	q, err := r.ask(c, rquota.Version2, func(e *xdr.Encoder) { rquota.EncodeKindArgs(e, path, rquota.KindProject, 0) })
	if q != nil {
		q.Kind = kindDirectory
	}
	return q, err
}

func (r *run) ask(c *client.Client, version uint32, args func(*xdr.Encoder)) (*userQuota, error) {
	var q blockstore.Quota
	var st rquota.Status
	now := time.Now()
	err := c.RPC().Call(r.ctx, &rpc.Request{
		Prog: rquota.Program, Vers: version, Proc: rquota.ProcGet, Cred: dial.Self(), Args: args,
		Res: func(d *xdr.Decoder) (err error) { q, st, err = rquota.Decode(d, now); return err },
	})
	var refused *rpc.AcceptError
	switch {
	case errors.As(err, &refused):
		return nil, fmt.Errorf("%w on the port of NFS; quota(1) asks the server's port mapper for another", err)
	case err != nil:
		return nil, err
	case st == rquota.Perm:
		return nil, errors.New("the server does not tell this user the quota: it is another user's, or the export is not " +
			"for this client")
	}
	at := func(seconds int64) *time.Time {
		if seconds == 0 {
			return nil
		}
		return new(time.Unix(seconds, 0))
	}
	return &userQuota{
		None: st == rquota.NoQuota, Used: q.Used, Soft: q.Soft, Hard: q.Hard, Until: at(q.Until),
		Files: q.Files, FilesSoft: q.FilesSoft, FilesHard: q.FilesHard, FilesUntil: at(q.FilesUntil),
	}, nil
}

// limitOf shows a limit.
func limitOf(n uint64, show func(uint64) string) string {
	if n == 0 {
		return "none"
	}
	return show(n)
}

func printQuotas(w io.Writer, all []*userQuota) {
	number := func(n uint64) string { return fmt.Sprint(n) }
	until := func(t *time.Time) string {
		if t == nil {
			return "-"
		}
		return t.Local().Format(time.DateTime)
	}
	fmt.Fprintln(w, "UID\tUSED\tSOFT\tHARD\tUNTIL\tFILES\tSOFT\tHARD\tUNTIL\tURL")
	for _, q := range all {
		who := fmt.Sprint(q.UID)
		if q.Kind == kindDirectory {
			who = kindDirectory
		}
		if q.None {
			fmt.Fprintf(w, "%s\tno quota\t\t\t\t\t\t\t\t%s\n", who, q.URL)
			continue
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%d\t%s\t%s\t%s\t%s\n", who, amount(q.Used), limitOf(q.Soft, amount),
			limitOf(q.Hard, amount), until(q.Until), q.Files, limitOf(q.FilesSoft, number), limitOf(q.FilesHard, number),
			until(q.FilesUntil), q.URL)
	}
}
