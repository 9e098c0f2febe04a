package filecmd

import (
	"bufio"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/rstored/rstored/blockstore"
	"github.com/rstored/rstored/cmd/internal/cli"
	"github.com/rstored/rstored/nfs"
	"github.com/rstored/rstored/nfs/client"
	"github.com/rstored/rstored/nfs/nfs3"
)

// entry is an object in the output of ls and stat.
type entry struct {
	Name string `json:"name"`
	// Raw is the name in base64 if it is not UTF-8, which JSON cannot hold.
	Raw    string `json:"name_base64,omitempty"`
	Type   string `json:"type"`
	Mode   string `json:"mode"`
	NLink  uint32 `json:"nlink"`
	UID    uint32 `json:"uid"`
	GID    uint32 `json:"gid"`
	Size   uint64 `json:"size"`
	Used   uint64 `json:"used"`
	FileID uint64 `json:"file_id"`
	FSID   uint64 `json:"fsid"`
	Device string `json:"device,omitempty"`
	Target string `json:"target,omitempty"`
	Atime  string `json:"atime"`
	Mtime  string `json:"mtime"`
	Ctime  string `json:"ctime"`
	// Quota is that of a directory's project, if stat found one.
	Quota *userQuota `json:"quota,omitempty"`

	mode  string // as ls(1) has it
	mtime time.Time
}

var typeNames = map[blockstore.FileType]string{
	blockstore.TypeReg: "file", blockstore.TypeDir: "directory", blockstore.TypeLnk: "symlink",
	blockstore.TypeFifo: "fifo", blockstore.TypeSock: "socket",
	blockstore.TypeBlk: "block device", blockstore.TypeChr: "character device",
}

func newEntry(name string, a *nfs3.Attr) *entry {
	e := &entry{
		Name: name, Type: typeNames[a.Type], Mode: fmt.Sprintf("%04o", a.Mode&0o7777), NLink: a.NLink, UID: a.UID, GID: a.GID,
		Size: a.Size, Used: a.Used, FileID: a.FileID, FSID: a.FSID,
		Atime: a.Atime.Format(time.RFC3339Nano), Mtime: a.Mtime.Format(time.RFC3339Nano),
		Ctime: a.Ctime.Format(time.RFC3339Nano),
		mode:  modeString(a), mtime: a.Mtime,
	}
	if e.Type == "" {
		e.Type = fmt.Sprintf("type %d", a.Type)
	}
	if a.Type == blockstore.TypeBlk || a.Type == blockstore.TypeChr {
		e.Device = fmt.Sprintf("%d:%d", a.Major, a.Minor)
	}
	if !utf8.ValidString(name) {
		e.Raw = base64.StdEncoding.EncodeToString([]byte(name))
	}
	return e
}

// modeString returns type and permissions as ls(1) prints them.
func modeString(a *nfs3.Attr) string {
	b := []byte("?rwxrwxrwx")
	b[0] = "?-dbclsp"[min(a.Type, blockstore.TypeFifo)]
	for i := range 9 {
		if a.Mode&(0o400>>i) == 0 {
			b[1+i] = '-'
		}
	}
	for _, s := range []struct {
		bit uint32
		at  int
		set byte
	}{{0o4000, 3, 's'}, {0o2000, 6, 's'}, {0o1000, 9, 't'}} {
		switch {
		case a.Mode&s.bit == 0:
		case b[s.at] == 'x':
			b[s.at] = s.set
		default:
			b[s.at] = s.set - 'a' + 'A'
		}
	}
	return string(b)
}

// printable escapes a name that would disturb a line.
func printable(name string) string {
	q := strconv.Quote(name)
	if q[1:len(q)-1] == name || strings.ReplaceAll(q[1:len(q)-1], `\"`, `"`) == name {
		return name
	}
	return q
}

func isDir(n *client.Node) bool { return n.Attr.Type == blockstore.TypeDir }

// regular refuses objects that are not regular files.
func regular(n *client.Node) error {
	switch n.Attr.Type {
	case blockstore.TypeReg:
		return nil
	case blockstore.TypeDir:
		return nfs.ErrIsDir
	}
	return fmt.Errorf("is a %s, not a regular file", typeNames[n.Attr.Type])
}

// gone reports whether an object was removed while its directory was listed.
func gone(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || client.IsStatus(err, nfs.ErrNoEnt) || client.IsStatus(err, nfs.ErrStale)
}

func (t *tool) list() *cobra.Command {
	var long bool
	c := t.command("ls URL...", "List directories", cobra.MinimumNArgs(1), func(r *run, args []string) error {
		var all []*entry
		for i, a := range args {
			u, err := remoteURL(a)
			if err != nil {
				return err
			}
			list, err := r.entries(u, long || r.g.Output != cli.FormatTable)
			if err != nil {
				if r.ctx.Err() != nil {
					return r.ctx.Err()
				}
				r.fail(named(u.String(), err))
				continue
			}
			if r.g.Output != cli.FormatTable {
				all = append(all, list...)
				continue
			}
			if err := buffered(r.g.Out, func(w io.Writer) {
				if len(args) > 1 {
					if i > 0 {
						fmt.Fprintln(w)
					}
					fmt.Fprintf(w, "%s:\n", u)
				}
				printEntries(w, list, long)
			}); err != nil {
				return err
			}
		}
		if r.g.Output == cli.FormatTable {
			return nil
		}
		if all == nil {
			all = []*entry{}
		}
		return r.g.Print(all, nil)
	})
	c.Flags().BoolVarP(&long, "long", "l", false, "with type, mode, links, owner, size and time")
	return c
}

// entries lists a directory, sorted by name. If u names an object of another type, the list has
// this object alone. With targets, entries also reads the targets of symbolic links.
func (r *run) entries(u client.URL, targets bool) ([]*entry, error) {
	c := r.dialer.Client(u)
	n, err := c.Follow(r.ctx, u.Path, true)
	if err != nil {
		return nil, err
	}
	var list []*entry
	add := func(name string, n *client.Node) error {
		e := newEntry(name, &n.Attr)
		if targets && n.Attr.Type == blockstore.TypeLnk {
			if e.Target, err = c.ReadLink(r.ctx, n.Handle); err != nil {
				return err
			}
		}
		list = append(list, e)
		return nil
	}
	if !isDir(n) {
		return list, add(path.Base(u.Path), n)
	}
	err = c.ReadDir(r.ctx, n.Handle, func(e *client.Entry) error {
		m, err := child(r.ctx, c, n, e)
		if err == nil {
			err = add(e.Name, m)
		}
		if gone(err) {
			return nil
		}
		return err
	})
	slices.SortFunc(list, func(a, b *entry) int { return strings.Compare(a.Name, b.Name) })
	return list, err
}

func printEntries(w io.Writer, list []*entry, long bool) {
	if !long {
		for _, e := range list {
			fmt.Fprintln(w, printable(e.Name))
		}
		return
	}
	// The name and the target of a link come last, and are escaped: a tab in them would shift the
	// columns behind them.
	tw := tabwriter.NewWriter(w, 0, 8, 1, ' ', 0)
	defer func() { _ = tw.Flush() }()
	for _, e := range list {
		size := strconv.FormatUint(e.Size, 10)
		if e.Device != "" {
			size = e.Device
		}
		fmt.Fprintf(tw, "%s\t%d\t%d\t%d\t%s\t%s\t%s\n", e.mode, e.NLink, e.UID, e.GID, size,
			e.mtime.Format("2006-01-02 15:04"), e.label())
	}
}

// buffered writes many small pieces at once.
func buffered(w io.Writer, write func(io.Writer)) error {
	b := bufio.NewWriterSize(w, 64<<10)
	write(b)
	return b.Flush()
}

func (t *tool) stat() *cobra.Command {
	all := []*entry{}
	return t.nodeCommand("stat URL...", "Show the attributes of files", false,
		func(r *run, u client.URL, c *client.Client, n *client.Node) (err error) {
			e := newEntry(u.String(), &n.Attr)
			if n.Attr.Type == blockstore.TypeLnk {
				e.Target, err = c.ReadLink(r.ctx, n.Handle)
			}
			if n.Attr.Type == blockstore.TypeDir {
				// A server that does not know this kind of quota has none.
				if q, err := r.askDirectory(c, u.Path); err == nil && !q.None {
					q.URL = u.String()
					e.Quota = q
				}
			}
			if err == nil {
				all = append(all, e)
			}
			return err
		}, func() error {
			return t.g.Print(all, func(w io.Writer) {
				for i, e := range all {
					if i > 0 {
						fmt.Fprintln(w)
					}
					printEntry(w, e)
				}
			})
		})
}

// label is the name of an object, and the target of a symbolic link.
func (e *entry) label() string {
	if e.Target == "" {
		return printable(e.Name)
	}
	return printable(e.Name) + " -> " + printable(e.Target)
}

func printEntry(w io.Writer, e *entry) {
	fmt.Fprintf(w, "name\t%s\ntype\t%s\n", e.label(), e.Type)
	if e.Device != "" {
		fmt.Fprintf(w, "device\t%s\n", e.Device)
	}
	fmt.Fprintf(w, "size\t%d\nallocated\t%d\nmode\t%s (%s)\nlinks\t%d\nowner\t%d:%d\n",
		e.Size, e.Used, e.Mode, e.mode, e.NLink, e.UID, e.GID)
	fmt.Fprintf(w, "file id\t%d\nfilesystem\t%#x\naccessed\t%s\nmodified\t%s\nchanged\t%s\n",
		e.FileID, e.FSID, e.Atime, e.Mtime, e.Ctime)
	if e.Quota != nil {
		fmt.Fprintf(w, "quota\t%s of %s used\n", amount(e.Quota.Used), limitOf(e.Quota.Hard, amount))
	}
}

// usage is one line of df.
type usage struct {
	URL        string `json:"url"`
	Bytes      uint64 `json:"bytes"`
	BytesFree  uint64 `json:"bytes_free"`
	BytesAvail uint64 `json:"bytes_available"`
	Files      uint64 `json:"files"`
	FilesFree  uint64 `json:"files_free"`
	FilesAvail uint64 `json:"files_available"`
}

func (t *tool) df() *cobra.Command {
	all := []*usage{}
	return t.nodeCommand("df URL...", "Show the space of file systems", true,
		func(r *run, u client.URL, c *client.Client, n *client.Node) error {
			s, err := c.Stat(r.ctx, n.Handle)
			if err == nil {
				all = append(all, &usage{
					u.String(), s.TotalBytes, s.FreeBytes, s.AvailBytes, s.TotalFiles, s.FreeFiles, s.AvailFiles,
				})
			}
			return err
		}, func() error {
			return t.g.Print(all, func(w io.Writer) {
				fmt.Fprintln(w, "SIZE\tUSED\tAVAIL\tUSE\tFILES\tFILES FREE\tURL")
				for _, s := range all {
					used := s.Bytes - min(s.BytesFree, s.Bytes)
					share := "-"
					if of := used + s.BytesAvail; of > 0 {
						share = fmt.Sprintf("%d%%", (used*100+of-1)/of)
					}
					fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%d\t%d\t%s\n", amount(s.Bytes), amount(used), amount(s.BytesAvail), share,
						s.Files, s.FilesFree, s.URL)
				}
			})
		})
}

// amount is a number of bytes for people.
func amount(n uint64) string {
	units := [...]string{"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"}
	i, v := 0, float64(n)
	for v >= 1024 && i < len(units)-1 {
		v, i = v/1024, i+1
	}
	if i == 0 {
		return fmt.Sprintf("%d B", n)
	}
	return fmt.Sprintf("%.1f %s", v, units[i])
}
