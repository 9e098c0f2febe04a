package filecmd

import (
	"context"
	"errors"
	"fmt"
	"net"

	"github.com/spf13/cobra"

	"github.com/rstored/rstored/nfs/bridge"
	"github.com/rstored/rstored/nfs/client"
	"github.com/rstored/rstored/nfs/nfs3"
	"github.com/rstored/rstored/nfs/nfs4"
	"github.com/rstored/rstored/rpcrdma/rpc"
)

func (t *tool) bridge() *cobra.Command {
	var listen, pm string
	c := t.command("bridge URL", "Offer an NFS/RDMA server to clients on this host that speak TCP", cobra.ExactArgs(1),
		func(r *run, args []string) error {
			u, err := remoteURL(args[0])
			if err != nil {
				return err
			}
			dial := func(ctx context.Context, backward func([]byte, func([]byte))) (rpc.Client, error) {
				return r.dialer.Connect(ctx, u, backward)
			}
			// A missing server is reported now, not to the first client.
			if err := answers(r.ctx, dial); err != nil {
				return named(u.String(), err)
			}
			b := bridge.New(bridge.Config{Dial: dial, Version: r.dialer.Version})
			defer b.Close()
			l, err := net.Listen("tcp", listen)
			if err != nil {
				return err
			}
			b.Serve(l)
			a := l.Addr().(*net.TCPAddr)
			example := fmt.Sprintf("vers=4.2,proto=tcp,port=%d", a.Port)
			switch v := r.dialer.Version; v {
			case client.Version3:
				example = fmt.Sprintf("vers=3,proto=tcp,port=%d,mountproto=tcp,mountport=%d,nolock", a.Port, a.Port)
			case client.VersionAuto:
			default:
				example = fmt.Sprintf("vers=%v,proto=tcp,port=%d", v, a.Port)
			}
			r.say("%s is reached at %v; for example:\n  mount -t nfs -o %s %v:%s /mnt", u.Host, a, example, a.IP, u.Path)
			if pm != "" {
				l, err := net.Listen("tcp", pm)
				if err != nil {
					return fmt.Errorf("answering portmap queries: %w", err)
				}
				b.Serve(l)
				r.say("portmap queries are answered at %v", l.Addr())
			}
			<-r.ctx.Done()
			return nil
		})
	c.Long = "Offer an NFS/RDMA server to clients on this host that speak TCP: NFS versions 3, 4.0, 4.1 and 4.2, " +
		"or the one that --nfs-version names, and " +
		"MOUNT version 3. Each connection of a client has one to the server, " +
		"on which callbacks of versions 4.1 and 4.2 come. " +
		"For the server all clients " +
		"are this host. Version 4.0 has no delegations through the bridge, and version 3 no locks (mount with nolock)."
	f := c.Flags()
	f.StringVar(&listen, "listen", "127.0.0.1:2049",
		"`ADDRESS` to take TCP connections at; everybody who reaches it is passed on as who he says he is")
	f.StringVar(&pm, "portmap", "", "also answer portmap queries at this `ADDRESS`, usually 127.0.0.1:111")
	return c
}

// answers reports why a server does not answer calls of NFS.
func answers(ctx context.Context, dial func(context.Context, func([]byte, func([]byte))) (rpc.Client, error)) error {
	c, err := dial(ctx, nil)
	if err != nil {
		return err
	}
	defer func() { _ = c.Close() }()
	for _, vers := range []uint32{nfs3.Version, nfs4.Version} {
		err = c.Call(ctx, &rpc.Request{Prog: nfs3.Program, Vers: vers, Proc: nfs3.ProcNull})
		var refused *rpc.AcceptError
		if !errors.As(err, &refused) {
			return err
		}
	}
	return err
}
