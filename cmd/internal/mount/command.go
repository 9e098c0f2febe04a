package mount

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/rstored/rstored/cmd/internal/cli"
	"github.com/rstored/rstored/cmd/internal/telemetry"
	"github.com/rstored/rstored/nfs/client"
	"github.com/rstored/rstored/nfs/dial"
	"github.com/rstored/rstored/nfs/fusefs"
)

// Commands returns the commands.
func Commands(g *cli.Globals) []*cobra.Command {
	return []*cobra.Command{mountCommand(g), umountCommand(), mountsCommand(g)}
}

// HelperArgs translates the arguments that mount(8) gives to the program mount.rstored, which are
// DEVICE DIR [-sfnv] [-N NAMESPACE] [-t TYPE] [-o OPTIONS], into those of the command mount.
func HelperArgs(args []string) []string {
	out := []string{"mount"}
	for i := 0; i < len(args); i++ {
		switch a := args[i]; {
		case a == "-o" && i+1 < len(args):
			i++
			out = append(out, "-o", args[i])
		case (a == "-t" || a == "-N") && i+1 < len(args):
			i++
		case len(a) > 1 && a[0] == '-' && a[1] != '-' && strings.Trim(a[1:], "sfnv") == "":
			if strings.Contains(a, "f") {
				out = append(out, "--fake")
			}
		default:
			out = append(out, a)
		}
	}
	return out
}

// run is one mount.
type run struct {
	g                       *cli.Globals
	device, dir             string
	list                    string // comma-separated options
	readOnly, sync          bool
	foreground, fake, debug bool
	log                     string
	ready                   int // descriptor that gets a byte when the directory is mounted; 0: none
}

func mountCommand(g *cli.Globals) *cobra.Command {
	r := &run{g: g}
	c := &cobra.Command{
		Use: "mount URL DIR", Short: "Mount a directory of an NFS server by FUSE, over RDMA or TCP",
		Args: cli.Args(cobra.ExactArgs(2)),
		RunE: func(cmd *cobra.Command, args []string) error {
			r.device, r.dir = args[0], args[1]
			r.g.Output = cli.FormatTable
			return r.mount(cmd.Context())
		},
	}
	c.Long = "Mount a directory of an NFS server by FUSE, over RDMA or TCP. It needs neither an NFS client nor RDMA " +
		"drivers in the kernel, and as an ordinary user fusermount3. URL is nfs+rdma://server/path, " +
		"nfs+tcp://server/path, or server:/path with the option proto=rdma or tcp. The command returns when the " +
		"directory is mounted; a process in the background serves it until umount. As root the mount is for all users, " +
		"with their own identities; else for the user alone (allow_other needs user_allow_other in /etc/fuse.conf)."
	c.Example = "rstorectl mount nfs+rdma://server/data /mnt\n" +
		"rstorectl mount server:/data /mnt -o proto=rdma,vers=4.2,soft,timeo=100"
	f := c.Flags()
	f.StringVar(&r.list, "options", "", "`OPTIONS` of the mount, separated by commas; also -o. See docs/mount.md")
	// -o has the meaning of mount(8), and not that of the other commands.
	f.StringVarP(&r.list, "output", "o", "", "")
	f.Lookup("output").Hidden = true
	f.BoolVarP(&r.readOnly, "read-only", "r", false, "the same as -o ro")
	f.BoolVar(&r.sync, "sync", false, "the same as -o sync: write(2) returns when the data is on the server's disk")
	f.BoolVar(&r.foreground, "foreground", false, "stay in the foreground, and unmount at the first signal")
	f.BoolVar(&r.debug, "debug", false, "log every request of the kernel")
	f.StringVar(&r.log, "log", "", "`FILE` for the log of a mount in the background (default: beside its socket)")
	f.BoolVar(&r.fake, "fake", false, "check the options, and mount nothing")
	f.IntVar(&r.ready, "ready-fd", 0, "")
	f.Lookup("ready-fd").Hidden = true
	return c
}

func (r *run) say(format string, a ...any) {
	if !r.g.Quiet && r.foreground {
		fmt.Fprintf(r.g.Err, "rstorectl: "+format+"\n", a...)
	}
}

// mount executes the command line.
func (r *run) mount(ctx context.Context) error {
	d := new(dial.Dialer)
	o := newOptions(d, os.Geteuid() == 0)
	if err := o.parse(r.list); err != nil {
		return &cli.UsageError{Msg: err.Error()}
	}
	o.fs.ReadOnly = o.fs.ReadOnly || r.readOnly
	o.fs.Sync = o.fs.Sync || r.sync
	o.finish()
	u, err := o.device(r.device)
	if err != nil {
		return &cli.UsageError{Msg: err.Error()}
	}
	if r.dir, err = filepath.Abs(r.dir); err != nil {
		return err
	}
	if r.fake {
		return nil
	}
	if err := clearDead(r.dir); err != nil {
		return err
	}
	if err := checkTarget(r.dir); err != nil {
		return err
	}
	if r.dir, err = filepath.EvalSymlinks(r.dir); err != nil {
		return err
	}
	if !r.foreground && r.ready == 0 {
		return r.background(o.bg)
	}
	defer func() { _ = d.Close() }()
	return r.serve(ctx, o, u)
}

// checkTarget refuses a directory that cannot be mounted on, before any call to the server.
func checkTarget(dir string) error {
	if _, err := find(dir); err == nil {
		return fmt.Errorf("%s is busy or already mounted; 'rstorectl umount %s' unmounts it", dir, dir)
	}
	info, err := os.Stat(dir)
	switch {
	case err != nil:
		return err
	case !info.IsDir():
		return fmt.Errorf("%s is not a directory", dir)
	}
	if _, err := os.Stat("/dev/fuse"); err != nil {
		return errors.New("there is no /dev/fuse here: load the module (modprobe fuse), or start the container " +
			"with --device /dev/fuse")
	}
	return nil
}

// retryEvery is how long the option retry waits between two attempts.
const retryEvery = 2 * time.Second

// resolve finds the directory on the server.
func (r *run) resolve(ctx context.Context, o *options, u client.URL) (c *client.Client, n *client.Node, err error) {
	for end := time.Now().Add(o.retry); ; {
		c = o.dial.Client(u)
		if n, err = c.Follow(ctx, u.Path, true); err == nil {
			return c, n, nil
		}
		if answered(err) || time.Now().After(end) {
			return nil, nil, explain(u, err)
		}
		r.say("%s does not answer (%v); trying again", u.Host, err)
		select {
		case <-time.After(retryEvery):
		case <-ctx.Done():
			return nil, nil, ctx.Err()
		}
	}
}

// serve mounts the directory and serves it until it is unmounted.
func (r *run) serve(ctx context.Context, o *options, u client.URL) error {
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	connecting, stop := context.WithCancel(ctx)
	defer stop()
	connected := make(chan struct{})
	go func() {
		select {
		case <-signals:
			stop()
		case <-connected:
		}
	}()
	r.say("connecting to %s", u.Host)
	c, root, err := r.resolve(connecting, o, u)
	if connecting.Err() != nil {
		return errors.New("interrupted")
	}
	close(connected)
	if err != nil {
		return err
	}
	out, logFile, err := r.openLog()
	if err != nil {
		return err
	}
	level := slog.LevelInfo
	o.fs.Client, o.fs.Root, o.fs.Source, o.fs.Debug = c, root, u.String(), r.debug
	o.fs.Log = slog.New(slog.NewTextHandler(out, &slog.HandlerOptions{Level: level}))
	f, err := fusefs.Mount(r.dir, o.fs)
	if err != nil {
		return explainFUSE(err)
	}
	at, _ := find(r.dir)
	s, err := publish(f, c, Mount{
		Device: at.minor,
		Dir:    r.dir, Source: u.String(), Options: r.list, PID: os.Getpid(), Since: time.Now().Truncate(time.Second),
		Version: c.Version().String(), Transport: u.Transport.String(), Log: logFile,
	})
	if err != nil {
		o.fs.Log.Warn("the state of the mount cannot be seen", "error", err)
	}
	defer s.close()
	r.say("%s is mounted on %s with NFS version %v", u, r.dir, c.Version())
	if r.ready == 0 {
		err = telemetry.NewNotifier().Ready("mounted on " + r.dir)
	} else {
		err = detach(r.ready, out)
	}
	if err != nil {
		o.fs.Log.Warn("telling who started the mount", "error", err)
	}
	for {
		select {
		case <-f.Done():
			r.say("%s is unmounted", r.dir)
			if r.log == "" && logFile != "" {
				_ = os.Remove(logFile)
			}
			return nil
		case sig := <-signals:
			o.fs.Log.Info("unmounting", "signal", sig.String())
			if err := f.Unmount(); err != nil {
				o.fs.Log.Warn("the directory is in use; a second signal detaches it", "error", err)
				select {
				case <-f.Done():
				case <-signals:
					abort(at)
				}
			}
		}
	}
}

// openLog opens the log of a mount in the background, and returns its name.
func (r *run) openLog() (io.Writer, string, error) {
	if r.ready == 0 {
		return r.g.Err, "", nil
	}
	name := r.log
	if name == "" {
		dir, err := stateDir()
		if err != nil {
			return nil, "", err
		}
		name = filepath.Join(dir, fmt.Sprintf("%d.log", os.Getpid()))
	}
	f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o640)
	return f, name, err
}
