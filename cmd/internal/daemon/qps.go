package daemon

import (
	"github.com/rstored/rstored/cmd/internal/config"
	"github.com/rstored/rstored/cmd/internal/control"
	"github.com/rstored/rstored/rdma"
	"github.com/rstored/rstored/rdma/provider"
	"github.com/rstored/rstored/rdma/roce"
)

// QPs implements control.Backend.
func (d *Daemon) QPs() []control.QP {
	list := []control.QP{}
	for _, v := range d.deviceList() {
		if v.soft == nil {
			list = append(list, kernelQPs(v)...)
			continue
		}
		for _, q := range v.soft.QPs() {
			c := control.QP{
				QPN: q.QPN, Type: q.Type.String(), State: q.State.String(), Device: v.name(), Loop: q.Loop, Local: q.Local.String(),
				RemoteQPN: q.RemoteQPN, Active: q.Active, AgeUS: int64(q.Age / rdma.Microsecond), PathMTU: int(q.PathMTU),
				PKey:    config.PKeyString(q.PKey),
				NextPSN: uint32(q.NextPSN), AckedPSN: uint32(q.AckedPSN), ExpectedPSN: uint32(q.ExpectedPSN),
				RTTUS:     int64(q.RTT / rdma.Microsecond),
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

// kernelQPs are the queue pairs of a device of the kernel, which tells less of them.
func kernelQPs(v *device) []control.QP {
	informant, ok := v.kernel.(provider.Informant)
	if !ok {
		return nil
	}
	qps := informant.QPs()
	list := make([]control.QP, 0, len(qps))
	for _, q := range qps {
		c := control.QP{
			QPN: q.QPN, Type: q.Type.String(), State: q.State.String(), Device: v.name(), Loop: q.Loop, Local: q.Local.String(),
			RemoteQPN: q.RemoteQPN, Active: q.Active, AgeUS: int64(q.Age / rdma.Microsecond), PathMTU: int(q.PathMTU),
			PKey:      config.PKeyString(q.PKey),
			SendDepth: q.SendDepth, SendQueued: q.SendQueued, RecvDepth: q.RecvDepth, RecvQueued: q.RecvQueued,
			ReadsStarted: q.ReadsStarted, ReadsServed: q.ReadsServed, Counters: q.Counters,
		}
		if c.Counters == nil {
			c.Counters = map[string]uint64{}
		}
		if q.Remote.IsValid() {
			c.Remote = q.Remote.String()
		}
		list = append(list, c)
	}
	return list
}
