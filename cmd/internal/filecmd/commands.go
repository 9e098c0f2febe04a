package filecmd

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/rstored/rstored/cmd/internal/certs"
	"github.com/rstored/rstored/cmd/internal/cli"
	"github.com/rstored/rstored/cmd/internal/config"
	"github.com/rstored/rstored/nfs/client"
	"github.com/rstored/rstored/nfs/dial"
	"github.com/rstored/rstored/rdma/provider"
	"github.com/rstored/rstored/rpcrdma/tcp"
)

// Commands returns the commands. They write results to g.Out. Progress and failures of single files
// go to g.Err.
func Commands(g *cli.Globals) []*cobra.Command {
	t := &tool{g: g}
	return []*cobra.Command{
		t.list(), t.cat(), t.stat(), t.df(), t.quota(), t.mkdir(), t.remove(), t.move(),
		t.put(), t.get(), t.copy(), t.bridge(),
	}
}

// tool carries the globals into the commands.
type tool struct{ g *cli.Globals }

// errSome ends a command that has printed its failures. Its message is empty for a single failure.
type errSome struct{ failed int }

func (e *errSome) Error() string {
	if e.failed == 1 {
		return ""
	}
	return fmt.Sprintf("%d objects failed", e.failed)
}

// run is one invocation of a command.
type run struct {
	*tool
	ctx    context.Context
	dialer *dial.Dialer

	mu     sync.Mutex
	failed int
	status *meter // on the terminal, or nil
}

// command makes a cobra command around do, with the flags for connecting.
func (t *tool) command(use, short string, args cobra.PositionalArgs, do func(*run, []string) error) *cobra.Command {
	d := new(dial.Dialer)
	c := &cobra.Command{
		Use: use, Short: short, Args: cli.Args(args),
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx, stop := signal.NotifyContext(cmd.Context(), os.Interrupt, syscall.SIGTERM)
			defer stop()
			defer func() { _ = d.Close() }()
			r := &run{tool: t, ctx: ctx, dialer: d}
			err := do(r, args)
			if err == nil && r.failed > 0 {
				err = &errSome{r.failed}
			}
			if ctx.Err() != nil && errors.Is(err, context.Canceled) {
				return errors.New("interrupted")
			}
			return err
		},
	}
	connectFlags(c.Flags(), d)
	tlsFlags(c.Flags(), d)
	kerberosFlags(c.Flags(), d)
	return c
}

// tlsFlags adds the flags of TLS. The files are read when the first connection needs them.
func tlsFlags(f *pflag.FlagSet, d *dial.Dialer) {
	var files certs.Files
	f.Func("xprtsec", "what connections over TCP must have: none, `tls` or mtls, which wants --tls-cert and --tls-key "+
		"(default: what the URL says by ?xprtsec=)", func(s string) (err error) {
		d.Security, err = client.ParseSecurity(s)
		return err
	})
	f.StringVar(&files.CA, "tls-ca", "",
		"`FILE` of the authorities that the server's certificate must come from (default: those of the system)")
	f.StringVar(&files.Cert, "tls-cert", "", "`FILE` of a certificate of this client")
	f.StringVar(&files.Key, "tls-key", "", "`FILE` of its private key")
	load := sync.OnceValues(func() (*certs.Store, error) { return certs.Load(files, nil) })
	d.TLS = func(server string) (*tls.Config, error) {
		store, err := load()
		if err != nil {
			return nil, err
		}
		return store.Client(server, tcp.ALPN), nil
	}
}

// connectFlags adds the flags that all commands which connect have.
func connectFlags(f *pflag.FlagSet, d *dial.Dialer) {
	f.Uint16Var(&d.MountPort, "mount-port", 0,
		"TCP `PORT` of the MOUNT service (default: the server's NFS port, or what its portmap says)")
	f.TextVar(&d.Source, "source", netip.Addr{},
		"local `ADDRESS` for RDMA (default: as routing says; a free loopback address for a server on this host)")
	d.Provider = cmp.Or(d.Provider, provider.Auto)
	f.Var(&d.Provider, "provider", "provider of the RDMA device: soft, the stack in user space; verbs, the kernel; "+
		"or auto, the kernel where one of its devices has the address. ?provider= of a URL goes first")
	f.Func("pkey", "partition `KEY` to connect in over RDMA (default: 0xffff)", func(s string) (err error) {
		d.PKey, err = config.ParsePKey(s)
		return err
	})
	f.Uint8Var(&d.DSCP, "dscp", 0, "`DSCP` of RDMA packets, 1 to 63 (default: none in user space, a setting of the "+
		"host on devices of the kernel). ?dscp= of a URL goes first")
	f.Func("nfs-version", "`VERSION` of NFS: 3, 4.1 or 4.2 (default: the highest that the server speaks)",
		func(s string) (err error) {
			d.Version, err = client.ParseVersion(s)
			return err
		})
	f.DurationVar(&d.GiveUp, "give-up", 2*time.Minute, "how long to wait for a server that has gone away")
}

// fail reports a failure with one object; the command continues and ends with ExitFailed.
func (r *run) fail(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.failed++
	r.status.clear()
	fmt.Fprintf(r.g.Err, "rstorectl: %v%s\n", err, hint(err, os.Geteuid()))
}

// each runs do for every argument. It reports failures and continues.
func (r *run) each(args []string, do func(client.URL) error) error {
	for _, a := range args {
		u, err := remoteURL(a)
		if err != nil {
			return err
		}
		if err := do(u); err != nil {
			if r.ctx.Err() != nil {
				return r.ctx.Err()
			}
			r.fail(named(u.String(), err))
		}
	}
	return nil
}

// nodeCommand makes a command that runs do for the object of each URL, and print at the end. print
// may be nil.
func (t *tool) nodeCommand(
	use, short string, follow bool, do func(*run, client.URL, *client.Client, *client.Node) error, print func() error,
) *cobra.Command {
	return t.command(use, short, cobra.MinimumNArgs(1), func(r *run, args []string) error {
		err := r.each(args, func(u client.URL) error {
			c := r.dialer.Client(u)
			n, err := c.Follow(r.ctx, u.Path, follow)
			if err != nil {
				return err
			}
			return do(r, u, c, n)
		})
		if err != nil || print == nil {
			return err
		}
		return print()
	})
}

// remoteURL parses an argument that has to be a URL.
func remoteURL(s string) (client.URL, error) {
	u, err := client.ParseURL(s)
	if err != nil {
		return u, &cli.UsageError{Msg: err.Error()}
	}
	return u, nil
}

// named adds the name of a file, as the user wrote it, to an error. It removes the name that the
// client or the os package has added.
func named(name string, err error) error {
	if pe, ok := errors.AsType[*fs.PathError](err); ok {
		err = pe.Err
	}
	if le, ok := errors.AsType[*os.LinkError](err); ok {
		err = le.Err
	}
	return &fileError{name, err}
}

// fileError is a failure with one file.
type fileError struct {
	name string
	err  error
}

func (e *fileError) Error() string { return e.name + ": " + e.err.Error() }
func (e *fileError) Unwrap() error { return e.err }

// say writes a confirmation, unless the user wants none.
func (r *run) say(format string, a ...any) {
	if !r.g.Quiet && r.g.Output == cli.FormatTable {
		fmt.Fprintf(r.g.Err, format+"\n", a...)
	}
}

func (t *tool) cat() *cobra.Command {
	return t.nodeCommand("cat URL...", "Write files to the standard output", true,
		func(r *run, _ client.URL, c *client.Client, n *client.Node) error {
			if err := regular(n); err != nil {
				return err
			}
			_, err := c.Stream(r.ctx, n.Handle, r.g.Out, 0)
			return err
		}, nil)
}

func (t *tool) move() *cobra.Command {
	return t.command("mv URL... URL", "Rename or move files on one server",
		cobra.MinimumNArgs(2), func(r *run, args []string) error {
			dst, err := remoteURL(args[len(args)-1])
			if err != nil {
				return err
			}
			c := r.dialer.Client(dst)
			into, err := c.Follow(r.ctx, dst.Path, true)
			switch {
			case err == nil && !isDir(into):
				into = nil
			case err != nil && !errors.Is(err, fs.ErrNotExist):
				return named(dst.String(), err)
			}
			if into == nil && len(args) > 2 {
				return cli.Usagef("%s is not a directory, so only one source can be moved there", dst)
			}
			return r.each(args[:len(args)-1], func(src client.URL) error {
				if src.Transport != dst.Transport || src.Host != dst.Host {
					return fmt.Errorf("cannot be moved to another server; use cp and rm")
				}
				dir, base, err := c.FollowParent(r.ctx, src.Path)
				if err != nil {
					return err
				}
				to, name := into, base
				if to == nil {
					if to, name, err = c.FollowParent(r.ctx, dst.Path); err != nil {
						return err
					}
				}
				return c.Rename(r.ctx, dir.Handle, base, to.Handle, name)
			})
		})
}
