package bench

import (
	"context"
	"net/netip"
	"strconv"
	"testing"

	"github.com/rstored/rstored/blockstore/memfs"
	"github.com/rstored/rstored/nfs"
	"github.com/rstored/rstored/nfs/client"
	"github.com/rstored/rstored/nfs/nfs3"
	"github.com/rstored/rstored/rdma"
	"github.com/rstored/rstored/rdma/roce"
	"github.com/rstored/rstored/rpcrdma"
	"github.com/rstored/rstored/rpcrdma/rpc"
)

// kernelLike is a device that is served as one of the kernel is: replies wait for receives.
type kernelLike struct{ *roce.Device }

func (d kernelLike) Limits() rdma.Limits { return rdma.LimitsOf(d.Device) }

// BenchmarkHeldReplies is what it costs that replies on devices of the kernel wait until the client
// would find receives for all its credits: READs from two servers on the stack in user space, in
// turns, one of which does so. of-free is the time of that one in parts of the other's.
func BenchmarkHeldReplies(b *testing.B) {
	ctx := context.Background()
	type side struct {
		c    *client.Client
		file client.Handle
	}
	var sides [2]*side // free, held
	for i := range sides {
		dev, err := roce.Open(roce.Config{})
		if err != nil {
			b.Fatal(err)
		}
		near, err := roce.Open(roce.Config{})
		if err != nil {
			b.Fatal(err)
		}
		var serves rdma.Device = dev
		if i == 1 {
			serves = kernelLike{dev}
		}
		table := nfs.NewTable(nil)
		if err := table.Add(&nfs.Export{
			ID: 1, Pseudo: "/", FS: memfs.New(memfs.Options{RootMode: 0o777}),
			Clients: []nfs.ClientRule{{CIDR: netip.MustParsePrefix("127.0.0.0/8"), Squash: nfs.NoRootSquash}},
		}); err != nil {
			b.Fatal(err)
		}
		srv := rpc.NewServer(rpc.ServerConfig{Programs: nfs3.Programs(nfs.Config{
			Exports: table,
			Codec:   nfs.NewCodec([]byte("the secret of the handles")),
		})})
		l, err := rpcrdma.Serve(serves, 20049, srv, rpcrdma.Config{})
		if err != nil {
			b.Fatal(err)
		}
		b.Cleanup(func() {
			_ = near.Close()
			_ = l.Close()
			srv.Close()
			_ = dev.Close()
		})
		c := client.New(client.Config{
			Version: client.Version3, Peer: "server", Cred: &rpc.Cred{Flavor: rpc.AuthSys},
			Dial: func(ctx context.Context) (rpc.Client, error) {
				return rpcrdma.Dial(ctx, near, netip.AddrPortFrom(dev.Addr(), 20049), rpcrdma.ClientConfig{})
			},
		})
		b.Cleanup(func() { _ = c.Close() })
		s := &side{c: c}
		s.file, _ = file(b, c, "file", make([]byte, 4<<20))
		sides[i] = s
	}
	for _, size := range []int{512, 4 << 10, 64 << 10, 1 << 20} {
		for _, flight := range []int{1, 16, 64} {
			b.Run(strconv.Itoa(size)+"-bytes/"+strconv.Itoa(flight)+"-in-flight", func(b *testing.B) {
				bufs := make([][]byte, flight)
				for i := range bufs {
					bufs[i] = make([]byte, size)
				}
				b.ReportAllocs()
				inTurns(b, "free", "held", 1000, flight, func(side, caller int) error {
					_, _, err := sides[side].c.Read(ctx, sides[side].file, bufs[caller], 0)
					return err
				})
			})
		}
	}
}
