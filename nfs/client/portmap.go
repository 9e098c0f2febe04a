package client

import (
	"context"
	"fmt"

	"github.com/rstored/rstored/nfs/portmap"
	"github.com/rstored/rstored/rpcrdma/rpc"
	"github.com/rstored/rstored/rpcrdma/xdr"
)

// Port returns the port of a program. It calls the port mapper at the other end of pm
// (PMAPPROC_GETPORT, RFC 1833 section 3.2). proto is portmap.ProtoTCP or portmap.ProtoUDP.
func Port(ctx context.Context, pm rpc.Client, prog, vers, proto uint32) (uint16, error) {
	var port uint32
	err := pm.Call(ctx, &rpc.Request{
		Prog: portmap.Program, Vers: portmap.Version2, Proc: portmap.ProcGetAddr,
		Args: func(e *xdr.Encoder) {
			e.Uint32(prog)
			e.Uint32(vers)
			e.Uint32(proto)
			e.Uint32(0)
		},
		Res: func(d *xdr.Decoder) error {
			port = d.Uint32()
			return d.Err()
		},
	})
	switch {
	case err != nil:
		return 0, fmt.Errorf("asking portmap for program %d: %w", prog, err)
	case port == 0 || port > 1<<16-1:
		return 0, fmt.Errorf("portmap knows no port of program %d version %d by IP protocol %d", prog, vers, proto)
	}
	return uint16(port), nil
}
