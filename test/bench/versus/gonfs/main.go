// Command gonfs is a server of github.com/willscott/go-nfs, for a comparison.
//
//	gonfs ADDR DIRECTORY
package main

import (
	"fmt"
	"net"
	"os"

	"github.com/go-git/go-billy/v5/osfs"
	gonfs "github.com/willscott/go-nfs"
	"github.com/willscott/go-nfs/helpers"
)

func main() {
	if len(os.Args) != 3 {
		fmt.Fprintln(os.Stderr, "usage: gonfs ADDR DIRECTORY")
		os.Exit(2)
	}
	if err := serve(os.Args[1], os.Args[2]); err != nil {
		fmt.Fprintln(os.Stderr, "gonfs:", err)
		os.Exit(1)
	}
}

// serve exports a directory as it does in the example of the library, with room in its
// cache for the handles of a benchmark.
func serve(addr, dir string) error {
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return err
	}
	fs := osfs.New(dir, osfs.WithBoundOS())
	return gonfs.Serve(l, helpers.NewCachingHandler(helpers.NewNullAuthHandler(fs), 4096))
}
