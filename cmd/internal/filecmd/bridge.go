package filecmd

import (
	"fmt"
	"net"

	"github.com/spf13/cobra"

	"github.com/rstored/rstored/cmd/internal/bridge"
	"github.com/rstored/rstored/nfs/nfs3"
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
			far := r.dialer.Client(u).RPC()
			// A server that is not there is better said now than to the first client.
			if err := far.Call(r.ctx, &rpc.Request{Prog: nfs3.Program, Vers: nfs3.Version, Proc: nfs3.ProcNull}); err != nil {
				return named(u.String(), err)
			}
			b := bridge.New(bridge.Config{Far: far})
			defer b.Close()
			l, err := net.Listen("tcp", listen)
			if err != nil {
				return err
			}
			b.Serve(l)
			a := l.Addr().(*net.TCPAddr)
			r.say("%s is reached at %v; for example:\n  mount -t nfs -o vers=3,proto=tcp,port=%d,mountproto=tcp,mountport=%d,nolock %v:%s /mnt",
				u.Host, a, a.Port, a.Port, a.IP, u.Path)
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
	f := c.Flags()
	f.StringVar(&listen, "listen", "127.0.0.1:2049", "`ADDRESS` to take TCP connections at; everybody who reaches it is passed on as who he says he is")
	f.StringVar(&pm, "portmap", "", "also answer portmap queries at this `ADDRESS`, usually 127.0.0.1:111")
	return c
}
