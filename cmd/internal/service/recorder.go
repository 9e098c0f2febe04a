package service

import (
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/rstored/rstored/cmd/internal/measure"
	"github.com/rstored/rstored/nfs"
	"github.com/rstored/rstored/nfs/nfs4"
	"github.com/rstored/rstored/rpcrdma/rpc"
)

// newRecorder makes the recorder that measures the calls of the file programs. It logs calls that
// fail because of the server's host.
func newRecorder(programs []rpc.Program, clients int, log *zap.Logger) *measure.Recorder {
	cfg := measure.Config{
		Programs: programs, Operations: nfs4.Operations, OperationName: nfs4.OperationName, Clients: clients,
		StatusName: func(n uint32) string { return nfs.Status(n).String() },
		Troubles:   []uint32{uint32(nfs.ErrIO), uint32(nfs.ErrNoSpc), uint32(nfs.ErrDQuot)},
		Tell: func(x measure.Trouble) {
			level, what := zapcore.ErrorLevel, "the file system of an export fails; the kernel's log says why"
			switch x.Status {
			case nfs.ErrNoSpc.String():
				level, what = zapcore.WarnLevel, "the file system of an export is full"
			case nfs.ErrDQuot.String():
				level, what = zapcore.WarnLevel, "a quota of an export is used up"
			}
			log.Log(level, what, zap.String("export", x.Export), zap.String("operation", x.Operation),
				zap.String("status", x.Status), zap.Stringer("client", x.Client.Addr()), zap.Any("calls", x.Calls))
		},
	}
	cfg.Compound.Prog, cfg.Compound.Vers, cfg.Compound.Proc = nfs4.Program, nfs4.Version, nfs4.ProcCompound
	return measure.NewRecorder(cfg)
}
