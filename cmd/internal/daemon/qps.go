package daemon

import (
	"github.com/rstored/rstored/cmd/internal/config"
	"github.com/rstored/rstored/cmd/internal/control"
	"github.com/rstored/rstored/rdma"
	"github.com/rstored/rstored/rdma/roce"
)

// QPs implements control.Backend.
func (d *Daemon) QPs() []control.QP {
	list := []control.QP{}
	for _, v := range d.deviceList() {
		for _, q := range v.QPs() {
			c := control.QP{
				QPN: q.QPN, Type: q.Type.String(), State: q.State.String(), Device: v.addr.String(), Loop: q.Loop, Local: q.Local.String(),
				RemoteQPN: q.RemoteQPN, Active: q.Active, AgeUS: int64(q.Age / rdma.Microsecond), PathMTU: int(q.PathMTU), PKey: config.PKeyString(q.PKey),
				NextPSN: uint32(q.NextPSN), AckedPSN: uint32(q.AckedPSN), ExpectedPSN: uint32(q.ExpectedPSN), RTTUS: int64(q.RTT / rdma.Microsecond),
				SendDepth: q.SendDepth, SendQueued: q.SendQueued, RecvDepth: q.RecvDepth, RecvQueued: q.RecvQueued,
				ReadsStarted: q.ReadsStarted, ReadsServed: q.ReadsServed,
				AckTimeout: q.AckTimeout, RetryCount: q.RetryCount, RNRRetryCount: q.RNRRetryCount,
				Counters: roce.HWCounters(&q.Counters),
			}
			if q.Remote.IsValid() {
				c.Remote = q.Remote.String()
			}
			list = append(list, c)
		}
	}
	return list
}
