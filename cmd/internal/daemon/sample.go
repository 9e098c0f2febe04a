package daemon

import (
	"context"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/rstored/rstored/cmd/internal/cli"
	"github.com/rstored/rstored/cmd/internal/control"
	"github.com/rstored/rstored/cmd/internal/live"
)

// Sample implements control.Backend.
func (d *Daemon) Sample() live.Sample {
	ctx, cancel := context.WithTimeout(context.Background(), pingTime)
	defer cancel()
	var stalled []string
	for _, l := range d.devices.Ping(ctx) {
		if !l.OK {
			stalled = append(stalled, fmt.Sprintf("packet loop %s/%d: no answer for %v", l.Device, l.Loop,
				l.Took.Round(time.Millisecond)))
		}
	}
	stats := d.stats(len(stalled) == 0)
	now := time.Now()
	s := live.Sample{
		Version: cli.ReadBuild().Version, State: control.StateRunning, Started: d.started, Taken: now,
		UptimeNS:    int64(now.Sub(d.started)),
		RDMAWritten: stats.RDMAWriteBytes, RDMARead: stats.RDMAReadBytes, TCP: stats.TCPBytes,
		Operations: []live.Point{}, Exports: []live.Point{}, Clients: []live.Point{}, QPs: []live.QP{},
	}
	s.Host, _ = os.Hostname() // without, none is shown
	for k, n := range stats.Errors {
		if !strings.HasPrefix(k, "nfs_status_") { // those are answers
			s.Errors += n
		}
	}
	for _, c := range stats.Devices {
		s.Retransmits += c["RC.TxRetransmits"]
		s.Server.Regions += c["Regions"]
	}
	for _, o := range d.Recorder.Operations() {
		s.Operations = append(s.Operations, live.NewPoint(o.Program+"."+o.Name, "", o.Transport.String(), &o.Sums))
	}
	for _, x := range d.Recorder.Exports() {
		s.Exports = append(s.Exports, live.NewPoint(x.Export, x.Kind.String(), x.Transport.String(), &x.Sums))
	}
	for _, c := range d.Recorder.Clients() {
		s.Clients = append(s.Clients, live.NewPoint(c.Client, "", c.Transport.String(), &c.Sums))
	}
	if s.Stalled = len(stalled); s.Stalled == 0 {
		for _, q := range d.QPs() {
			s.QPs = append(s.QPs, liveQP(&q))
		}
	}
	d.sampleServer(&s.Server)
	s.Server.Problems = append(s.Server.Problems, stalled...)
	if len(s.Server.Problems) > 0 {
		s.State = control.StateDegraded
	}
	if d.draining.Load() {
		s.State = control.StateDraining
	}
	return s
}

func liveQP(q *control.QP) live.QP {
	return live.QP{
		QPN: q.QPN, Type: q.Type, State: q.State, Device: q.Device, Remote: q.Remote, SendQueued: q.SendQueued,
		SendDepth: q.SendDepth, RTTUS: q.RTTUS,
		In: q.Counters["rcvd_bytes"], Out: q.Counters["sent_bytes"], PacketsIn: q.Counters["rcvd_pkts"],
		PacketsOut:  q.Counters["sent_pkts"],
		Retransmits: q.Counters["retransmits"], NAKs: q.Counters["packet_seq_err"], RNRs: q.Counters["rcvd_rnr_err"],
	}
}

// sampleServer fills in what the daemon has at the moment.
func (d *Daemon) sampleServer(s *live.Server) {
	for _, c := range d.Clients() {
		if c.RDMA == nil {
			s.TCPConnections++
			continue
		}
		s.RDMAConnections++
		s.Credits += c.RDMA.Credits
		s.CreditsInUse += c.RDMA.InUse
	}
	for _, c := range d.NFS4Clients() {
		if c.Confirmed && !c.Expired {
			s.Clients++
		}
		s.Opens += c.Opens
		s.Delegations += c.Delegations
	}
	for _, x := range d.NFS4Sessions() {
		s.Sessions++
		s.SlotsBusy += x.Busy
	}
	s.LocksHeld, s.LocksWaiting = d.LockTable.Count()
	g := d.Grace()
	s.Grace, s.GraceWaiting = g.On, len(g.Waiting)
	for _, until := range []*time.Time{g.NFS4Until, g.NLMUntil} {
		if until != nil && (s.GraceUntil == nil || until.After(*s.GraceUntil)) {
			s.GraceUntil = until
		}
	}
	s.Memory = uint64(d.ports.Memory().Bulk)
	load := d.RPC.Load()
	s.Workers, s.WorkersBusy, s.Queued = load.Workers, load.Busy, load.Queued
	s.Problems = d.problems()
}
