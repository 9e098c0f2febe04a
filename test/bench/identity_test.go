package bench

import (
	"context"
	"os"
	"strconv"
	"testing"

	"github.com/rstored/rstored/blockstore"
	"github.com/rstored/rstored/blockstore/posixfs"
	"github.com/rstored/rstored/nfs/client"
	"github.com/rstored/rstored/rpcrdma/rpc"
)

// BenchmarkOwnThreads is what it costs to take the identities of callers on threads that do nothing
// else, as programs do that have devices of the kernel: calls of a user to two servers, in turns,
// one with and one without. of-shared is the time of the first in parts of the second's.
func BenchmarkOwnThreads(b *testing.B) {
	if os.Getuid() != 0 {
		b.Skip("only root takes on identities")
	}
	ctx := context.Background()
	type side struct {
		c    *client.Client
		root client.Handle
		file client.Handle
	}
	var sides [2]*side // shared, own
	for i := range sides {
		dir := b.TempDir()
		if err := os.Chmod(dir, 0o777); err != nil {
			b.Fatal(err)
		}
		fs, err := posixfs.Open(dir, posixfs.Options{NoUmask: true, OwnThreads: i == 1})
		if err != nil {
			b.Fatal(err)
		}
		b.Cleanup(func() { _ = fs.Close() })
		c := client.New(client.Config{
			Version: client.Version3, Peer: "server", Dial: serve(b, fs)["rdma"],
			Cred: &rpc.Cred{Flavor: rpc.AuthSys, UID: 1000, GID: 1000},
		})
		b.Cleanup(func() { _ = c.Close() })
		s := &side{c: c}
		s.file, s.root = file(b, c, "file", make([]byte, 64<<10))
		sides[i] = s
	}
	mode := uint32(0o640)
	for _, op := range []struct {
		name string
		do   func(s *side, name string) error
	}{
		{"CREATE+REMOVE", func(s *side, name string) error {
			if _, err := s.c.Create(ctx, s.root, name, blockstore.Guarded, &blockstore.SetAttr{Mode: &mode},
				[8]byte{}); err != nil {
				return err
			}
			return s.c.Remove(ctx, s.root, name)
		}},
		{"SETATTR", func(s *side, _ string) error {
			return s.c.SetAttr(ctx, s.file, &blockstore.SetAttr{Mode: &mode}, nil)
		}},
		{"READ", func(s *side, _ string) error { // which takes on nobody's identity
			_, _, err := s.c.Read(ctx, s.file, make([]byte, 4096), 0)
			return err
		}},
	} {
		for _, callers := range []int{1, 8} {
			b.Run(op.name+"/"+strconv.Itoa(callers)+"-callers", func(b *testing.B) {
				inTurns(b, "shared", "own", 200, callers, func(side, caller int) error {
					return op.do(sides[side], "new"+strconv.Itoa(caller))
				})
			})
		}
	}
}
