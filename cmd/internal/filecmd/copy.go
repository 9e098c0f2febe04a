package filecmd

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/rstored/rstored/cmd/internal/cli"
	"github.com/rstored/rstored/nfs/client"
)

// copyFlags are the flags of put, get and cp.
type copyFlags struct {
	recursive, verify, owner, resume, fsync bool

	jobs int
}

func (o *copyFlags) add(c *cobra.Command) {
	f := c.Flags()
	f.BoolVarP(&o.recursive, "recursive", "r", false, "copy directories and what is in them")
	f.BoolVar(&o.verify, "verify", false, "read every copy again and compare its SHA-256 with the source's")
	f.BoolVar(&o.owner, "owner", false, "keep user and group, which usually takes root")
	f.BoolVar(&o.resume, "resume", false,
		"keep what there is of a large file when its copy fails, and go on there next time")
	f.BoolVar(&o.fsync, "fsync", false, "write each file of a tree to the disk of this host before it gets its name, "+
		"and not all of them together at the end")
	f.IntVarP(&o.jobs, "jobs", "j", defaultJobs, "how many files at once")
}

const copyLong = `

Mode and times, symbolic links, hard links, fifos and holes are kept. A target
that is a directory is copied into. What cannot be copied is reported and the
rest goes on; the exit code is then 1. Set-ID bits are kept with --owner only.

A file is written beside its target, as .NAME.rstored-part-ID, and takes its
place when it is complete: after a failure or a signal the old target is there
as it was. So the target is a new file: a symbolic link in its place is replaced
and not followed, and other hard links to an old target keep the old data. After
a kill, files with such names may be removed.

With --resume what there is of a file of more than 64 MiB without holes stays
after a failure, and the same command goes on with it, if the source has not
changed since, and the file is one that only this user can have written.`

func (t *tool) put() *cobra.Command {
	var o copyFlags
	do := func(r *run, args []string) error {
		src, dst := args[:len(args)-1], args[len(args)-1]
		for _, s := range src {
			if client.IsURL(s) {
				return cli.Usagef("%s is not on this host; use cp", s)
			}
		}
		if _, err := remoteURL(dst); err != nil {
			return err
		}
		return r.copyAll(src, dst, &o)
	}
	c := t.command("put FILE... URL", "Copy files of this host to a server", cobra.MinimumNArgs(2), do)
	c.Long = c.Short + "." + copyLong
	o.add(c)
	return c
}

func (t *tool) get() *cobra.Command {
	var o copyFlags
	do := func(r *run, args []string) error {
		src, dst := args, "."
		if last := args[len(args)-1]; len(args) > 1 && !client.IsURL(last) {
			src, dst = args[:len(args)-1], last
		}
		for _, s := range src {
			if _, err := remoteURL(s); err != nil {
				return err
			}
		}
		return r.copyAll(src, dst, &o)
	}
	c := t.command("get URL... [FILE]", "Copy files of a server to this host", cobra.MinimumNArgs(1), do)
	c.Long = c.Short + "; without FILE into the working directory." + copyLong
	o.add(c)
	return c
}

func (t *tool) copy() *cobra.Command {
	var o copyFlags
	c := t.command("cp SOURCE... TARGET", "Copy files between servers, or between a server and this host",
		cobra.MinimumNArgs(2), func(r *run, args []string) error {
			return r.copyAll(args[:len(args)-1], args[len(args)-1], &o)
		})
	c.Long = c.Short + "." + copyLong
	o.add(c)
	return c
}

// place is an argument of a copy: its side, and the object there.
type place struct {
	arg  string
	url  client.URL
	side side
	o    *object // what is there; nil if nothing is
	into *object // the directory for a new name, if o is nil
	name string
}

func (p *place) remote() bool { _, ok := p.side.(*remote); return ok }

// find looks up an argument. If missing is allowed, a missing object is no error.
func (r *run) find(arg string, follow, missing bool) (*place, error) {
	if client.IsURL(arg) {
		return r.findRemote(arg, follow, missing)
	}
	p := &place{arg: arg, side: local{}}
	abs, err := filepath.Abs(arg)
	if err != nil {
		return nil, err
	}
	if _, err := os.Lstat(abs); err != nil && strings.Contains(arg, "://") {
		_, err = remoteURL(arg) // its error shows the form of a URL
		return nil, err
	}
	p.name = filepath.Base(abs)
	p.o, err = localObject(arg, follow)
	if missing && errors.Is(err, fs.ErrNotExist) {
		p.o = nil
		p.into, err = localObject(filepath.Dir(abs), true)
		if err == nil && !p.into.dir() {
			err = errors.New("not a directory")
		}
	}
	if err != nil {
		return nil, named(arg, err)
	}
	return p, nil
}

func (r *run) findRemote(arg string, follow, missing bool) (*place, error) {
	u, err := remoteURL(arg)
	if err != nil {
		return nil, err
	}
	c := r.dialer.Client(u)
	p := &place{arg: arg, url: u, side: &remote{c}, name: path.Base(u.Path)}
	n, err := c.Follow(r.ctx, u.Path, follow)
	if err == nil {
		p.o = newObject(u.String(), n)
		return p, nil
	}
	if missing && gone(err) {
		if n, _, err = c.FollowParent(r.ctx, u.Path); err == nil {
			up := u
			up.Path = path.Dir(u.Path)
			p.into = newObject(strings.TrimSuffix(up.String(), "/"), n)
			if !p.into.dir() {
				err = errors.New("not a directory")
			}
		}
	}
	if err != nil {
		return nil, named(u.String(), err)
	}
	return p, nil
}

// summary is what a copy did.
type summary struct {
	Files   int64   `json:"files"`
	Bytes   int64   `json:"bytes"`
	Failed  int     `json:"failed"`
	Seconds float64 `json:"seconds"`
	// Calls and Here are the seconds in calls to servers, and in files of this host, summed over
	// everything that was under way at once.
	Calls float64 `json:"call_seconds"`
	Here  float64 `json:"file_seconds"`
}

// copyAll copies every source to the target.
func (r *run) copyAll(sources []string, target string, o *copyFlags) error {
	begin := time.Now()
	dst, err := r.find(target, true, true)
	if err != nil {
		return err
	}
	if len(sources) > 1 && (dst.o == nil || !dst.o.dir()) {
		return cli.Usagef("%s is not a directory, so only one source can be copied there", target)
	}
	if !r.g.Quiet {
		r.status = newMeter(r.g.Err)
	}
	var sum summary
	var here, there time.Duration
	for i, s := range sources {
		k, err := r.copyOne(s, dst, o, i == len(sources)-1)
		if err != nil {
			var usage *cli.UsageError
			if r.ctx.Err() != nil || errors.As(err, &usage) {
				return err
			}
			r.fail(err)
		}
		if k != nil {
			sum.Files += k.files.Load()
			sum.Bytes += k.bytes.Load()
			here += time.Duration(k.spent.here.Load())
			there += k.spent.there()
		}
	}
	r.status.clear()
	r.status = nil
	if err := r.ctx.Err(); err != nil {
		return err
	}
	sum.Failed, sum.Seconds = r.failed, time.Since(begin).Seconds()
	sum.Calls, sum.Here = there.Seconds(), here.Seconds()
	if r.g.Quiet {
		return nil
	}
	if r.g.Output != cli.FormatTable {
		return r.g.Print(&sum, nil)
	}
	return buffered(r.g.Err, func(w io.Writer) {
		fmt.Fprintf(w, "%d copied, %s in %.2f s (%s/s)", sum.Files, amount(uint64(sum.Bytes)), sum.Seconds,
			amount(uint64(float64(sum.Bytes)/max(sum.Seconds, 1e-9))))
		if s := shares(here, there); s != "" {
			fmt.Fprintf(w, "; %s", s)
		}
		fmt.Fprintln(w)
	})
}

// copyOne copies one source. last says that there is none after it.
func (r *run) copyOne(arg string, dst *place, o *copyFlags, last bool) (*copier, error) {
	src, err := r.find(arg, !o.recursive, false)
	if err != nil {
		return nil, err
	}
	if !src.remote() && !dst.remote() {
		return nil, cli.Usagef("%s and %s are both on this host; use cp(1)", arg, dst.arg)
	}
	k := newCopier(r, src.side, dst.side, o.jobs)
	k.recursive, k.verify, k.owner, k.resume, k.last = o.recursive, o.verify, o.owner, o.resume, last
	if o.recursive && src.o.dir() && !o.fsync {
		k.later.side, _ = dst.side.(lateSyncer)
	}
	k.sameSide = src.remote() && dst.remote() && src.url.Host == dst.url.Host
	tree := strings.TrimSuffix(src.url.Path, "/") + "/"
	if k.sameSide && src.o.dir() && strings.HasPrefix(dst.url.Path+"/", tree) {
		return nil, named(arg, errors.New("a directory cannot be copied into itself"))
	}
	into, name := dst.into, dst.name
	switch {
	case dst.o == nil:
	case dst.o.dir() && src.name != "/":
		into, name = dst.o, src.name
	case dst.o.dir():
		return k, k.contents(src.o, dst.o)
	default:
		if into, err = r.parentOf(dst); err != nil {
			return nil, err
		}
	}
	k.run(src.o, into, name)
	return k, nil
}

// entryOf is an entry of a directory.
type entryOf struct {
	name string
	o    *object
}

// contents copies the entries of a root, which has no name of its own.
func (k *copier) contents(from, into *object) error {
	if !k.recursive {
		return named(from.shown, errors.New("is a directory (use -r)"))
	}
	var all []entryOf
	if err := k.src.list(k.r.ctx, from, func(name string, o *object) error {
		all = append(all, entryOf{name, o})
		return nil
	}); err != nil {
		return named(from.shown, err)
	}
	for _, s := range all {
		k.walk(s.o, into, s.name)
	}
	k.complete(into)
	return nil
}

// parentOf is the parent of an existing target that is not a directory.
func (r *run) parentOf(p *place) (*object, error) {
	if !p.remote() {
		return localObject(filepath.Dir(filepath.Clean(p.arg)), true)
	}
	n, _, err := r.dialer.Client(p.url).FollowParent(r.ctx, p.url.Path)
	if err != nil {
		return nil, named(p.arg, err)
	}
	up := p.url
	up.Path = path.Dir(up.Path)
	return newObject(strings.TrimSuffix(up.String(), "/"), n), nil
}
