package devices

import (
	"context"
	"errors"
	"time"

	"go.uber.org/zap"

	"github.com/rstored/rstored/cmd/internal/config"
	"github.com/rstored/rstored/cmd/internal/control"
	"github.com/rstored/rstored/cmd/internal/counters"
	"github.com/rstored/rstored/cmd/internal/ops"
	"github.com/rstored/rstored/rdma"
	"github.com/rstored/rstored/rdma/provider"
	"github.com/rstored/rstored/rdma/roce"
	"github.com/rstored/rstored/rdma/verbs"
)

// Providers lists the RDMA providers that the program has. One that cannot be used has an error.
func (o *Opener) Providers() []control.Provider {
	list := []control.Provider{{Name: string(provider.Soft)}}
	switch err := o.Host.Available(); {
	case errors.Is(err, verbs.ErrNotBuilt):
	case err != nil:
		list = append(list, control.Provider{Name: string(provider.Verbs), Error: err.Error()})
	default:
		list = append(list, control.Provider{Name: string(provider.Verbs)})
	}
	return list
}

// LogProviders logs why a provider that the program has cannot be used.
func (s *Set) LogProviders() {
	for _, p := range s.Providers() {
		if p.Error != "" {
			s.Log.Warn("RDMA devices of the kernel cannot be used, and RDMA is in software: are libibverbs and "+
				"librdmacm installed?", zap.String("provider", p.Name), zap.String("reason", p.Error))
		}
	}
}

// Status lists the devices for the control interface.
func (s *Set) Status() []control.Device {
	out := []control.Device{}
	for _, v := range s.List() {
		c := control.Device{
			Name: v.Name(), Address: v.Choice.Addr.String(), Provider: string(v.Choice.Kind), Sockets: len(v.Loops()),
		}
		if v.Soft != nil {
			c.InterfaceMTU, c.PathMTU = v.Soft.InterfaceMTU(), int(v.Soft.MTU())
		} else {
			c.Kernel = v.Kernel.Name()
			if informant, ok := v.Kernel.(provider.Informant); ok {
				i := informant.Info()
				c.Port, c.Speaks, c.Firmware, c.PathMTU = i.Port, string(i.Transport), i.Firmware, int(i.PathMTU)
			}
		}
		out = append(out, c)
	}
	return out
}

// Stats reads the counters of every device. It adds those that count errors to faults.
func (s *Set) Stats(faults map[string]uint64) map[string]map[string]uint64 {
	out := make(map[string]map[string]uint64)
	for _, v := range s.List() {
		all, wrong := v.counters()
		counters.Add(faults, wrong)
		out[v.Name()] = all
	}
	return out
}

// counters returns all counters of a device, and those of them that count errors.
func (v *Device) counters() (all, faults map[string]uint64) {
	all = make(map[string]uint64)
	if v.Soft != nil {
		st := v.Soft.Stats()
		st.Each(func(name string, n uint64) { all[name] = n })
		return all, counters.DeviceFaults(&st)
	}
	informant, ok := v.Kernel.(provider.Informant)
	if !ok {
		return all, nil
	}
	st := informant.Stats()
	st.Each(func(name string, n uint64) {
		if name != "QPs" && name != "Regions" { // which devices of both kinds have
			name = ops.KernelCounter + name
		}
		all[name] = n
	})
	for status, n := range st.Failed {
		if n > 0 {
			all[ops.KernelFailed+rdma.Status(status).String()] = n
		}
	}
	return all, counters.KernelFaults(&st)
}

// Ping waits until every packet loop has answered, or ctx ends.
func (s *Set) Ping(ctx context.Context) (out []ops.Loop) {
	for _, v := range s.List() {
		for i, l := range v.Loops() {
			out = append(out, ping(ctx, v.Name(), i, l))
		}
	}
	return out
}

// ping submits a function to a loop and waits until it has run.
func ping(ctx context.Context, device string, i int, l rdma.Loop) ops.Loop {
	began, answered := time.Now(), make(chan struct{})
	out := ops.Loop{Device: device, Loop: i}
	if l.Submit(func() { close(answered) }) {
		select {
		case <-answered:
			out.OK = true
		case <-ctx.Done():
		}
	}
	out.Took = time.Since(began)
	return out
}

// QPs lists the queue pairs of all devices.
func (s *Set) QPs() []control.QP {
	list := []control.QP{}
	for _, v := range s.List() {
		if v.Soft != nil {
			for _, q := range v.Soft.QPs() {
				list = append(list, softQP(v, &q))
			}
		} else if informant, ok := v.Kernel.(provider.Informant); ok {
			for _, q := range informant.QPs() {
				list = append(list, kernelQP(v, &q))
			}
		}
	}
	return list
}

func softQP(v *Device, q *roce.QPInfo) control.QP {
	// Both kinds of devices fill in the fields of verbs.QPInfo.
	c := kernelQP(v, &verbs.QPInfo{
		QPN: q.QPN, Type: q.Type, State: q.State, Loop: q.Loop, Age: q.Age, Active: q.Active,
		Local: q.Local, Remote: q.Remote, RemoteQPN: q.RemoteQPN, PathMTU: q.PathMTU, PKey: q.PKey,
		SendDepth: q.SendDepth, SendQueued: q.SendQueued, RecvDepth: q.RecvDepth, RecvQueued: q.RecvQueued,
		ReadsStarted: q.ReadsStarted, ReadsServed: q.ReadsServed, Counters: roce.HWCounters(&q.Counters),
	})
	c.NextPSN, c.AckedPSN, c.ExpectedPSN = uint32(q.NextPSN), uint32(q.AckedPSN), uint32(q.ExpectedPSN)
	c.NoICRC = q.NoICRC
	c.RTTUS = int64(q.RTT / rdma.Microsecond)
	c.AckTimeout, c.RetryCount, c.RNRRetryCount = q.AckTimeout, q.RetryCount, q.RNRRetryCount
	return c
}

func kernelQP(v *Device, q *verbs.QPInfo) control.QP {
	c := control.QP{
		QPN: q.QPN, Type: q.Type.String(), State: q.State.String(), Device: v.Name(), Loop: q.Loop, Local: q.Local.String(),
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
	return c
}
