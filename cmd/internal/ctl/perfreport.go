package ctl

import (
	"fmt"
	"io"
	"net/netip"
	"strings"
	"time"

	"github.com/rstored/rstored/rdma"
	"github.com/rstored/rstored/rdma/perf"
	"github.com/rstored/rstored/rdma/provider"
	"github.com/rstored/rstored/rdma/roce"
)

// perfReport is a measurement in the machine formats. As in perftest, MiB are 2^20 bytes and Mpps
// are 10^6 messages per second.
type perfReport struct {
	Test          string       `json:"test"` // such as "write bw"
	Operation     string       `json:"operation"`
	Server        string       `json:"server"`
	Client        string       `json:"client"`
	Provider      string       `json:"provider"`                // of the client's device: soft or verbs
	Device        string       `json:"kernel_device,omitempty"` // with verbs
	PathMTU       int          `json:"path_mtu"`
	QPs           int          `json:"qps"`
	TxDepth       int          `json:"tx_depth"`
	Bidirectional bool         `json:"bidirectional"`
	Seconds       int          `json:"duration_s,omitempty"`
	Results       []perfResult `json:"results"`

	latency bool
}

// perfResult is a line of the table. It has either Bandwidth or Latency.
type perfResult struct {
	Bytes      int    `json:"bytes"`
	Iterations uint64 `json:"iterations"`
	*perfBandwidth
	*perfLatency
}

type perfBandwidth struct {
	Peak    float64        `json:"bw_peak_mib_s"` // 0 if it was not calculated
	Average float64        `json:"bw_average_mib_s"`
	Rate    float64        `json:"msg_rate_mpps"`
	Sent    perfDirection  `json:"client_posted"`
	Back    *perfDirection `json:"server_posted,omitempty"`
}

type perfDirection struct {
	Iterations uint64  `json:"iterations"`
	Bytes      uint64  `json:"bytes"`
	ElapsedUS  float64 `json:"elapsed_us"`
	Average    float64 `json:"bw_average_mib_s"`
}

// perfLatency is in microseconds. A test for a duration has only the average.
type perfLatency struct {
	Min     *float64 `json:"t_min_us,omitempty"`
	Max     *float64 `json:"t_max_us,omitempty"`
	Typical *float64 `json:"t_typical_us,omitempty"`
	Average float64  `json:"t_avg_us"`
	StdDev  *float64 `json:"t_stdev_us,omitempty"`
	P99     *float64 `json:"percentile_99_us,omitempty"`
	P999    *float64 `json:"percentile_99_9_us,omitempty"`
	PerSec  float64  `json:"transactions_per_second"`
}

func newPerfReport(
	f *perfFlags, o *perf.Options, c *provider.Choice, dev rdma.Device, server netip.AddrPort,
) *perfReport {
	r := &perfReport{
		Test: f.name + " " + f.kind, Operation: o.Op.String(), Server: server.String(), Client: dev.Addr().String(),
		Provider: c.Kind.String(), QPs: o.QPs, TxDepth: o.Depth, Bidirectional: o.Bidirectional,
		Seconds: int(o.Duration / time.Second), Results: []perfResult{}, latency: o.Latency,
	}
	switch d := dev.(type) {
	case *roce.Device:
		r.PathMTU = int(d.MTU())
	case provider.Kernel:
		r.Device = d.Name()
		if informant, ok := dev.(provider.Informant); ok {
			r.PathMTU = int(informant.Info().PathMTU)
		}
	}
	return r
}

const mib = 1 << 20

// add adds a result.
func (r *perfReport) add(x *perf.Result) *perfResult {
	p := perfResult{Bytes: x.Size, Iterations: x.Sent.Iterations}
	if r.latency {
		us := func(ns float64) *float64 { ns /= 1000; return &ns }
		l := &x.Latency
		p.perfLatency = &perfLatency{Average: l.Average / 1000, PerSec: x.Sent.Rate()}
		if r.Seconds == 0 {
			p.Min, p.Max, p.Typical, p.StdDev = us(l.Min), us(l.Max), us(l.Typical), us(l.StdDev)
			p.P99, p.P999 = us(l.P99), us(l.P999)
		}
	} else {
		b := &perfBandwidth{
			Peak: x.Sent.Peak / mib, Average: x.Sent.Bandwidth() / mib, Rate: x.Sent.Rate() / 1e6,
			Sent: newPerfDirection(&x.Sent),
		}
		if r.Bidirectional {
			back := newPerfDirection(&x.Back)
			b.Back = &back
			b.Average += back.Average
			b.Rate += x.Back.Rate() / 1e6
			// The server measures each queue pair by itself. Peaks of different times make no sum.
			if b.Peak += x.Back.Peak / mib; r.QPs > 1 {
				b.Peak = 0
			}
		}
		p.perfBandwidth = b
	}
	r.Results = append(r.Results, p)
	return &r.Results[len(r.Results)-1]
}

func newPerfDirection(d *perf.Direction) perfDirection {
	return perfDirection{
		Iterations: d.Iterations, Bytes: d.Bytes, ElapsedUS: float64(d.Elapsed) / 1000, Average: d.Bandwidth() / mib,
	}
}

// banner prints what is measured.
func (r *perfReport) banner(w io.Writer) {
	what := map[string]string{"bw": "BW", "lat": "Latency"}
	op, kind, _ := strings.Cut(r.Test, " ")
	title := strings.ToUpper(op[:1]) + op[1:]
	if op != "send" && op != "atomic" {
		title = "RDMA_" + title
	}
	if r.Bidirectional {
		title += " Bidirectional"
	}
	fmt.Fprintf(w, " %s %s Test\n", title, what[kind])
	fmt.Fprintf(w, " server %s, client %s\n path MTU %d, queue pairs %d, TX depth %d",
		r.Server, r.Client, r.PathMTU, r.QPs, r.TxDepth)
	if r.Seconds > 0 {
		fmt.Fprintf(w, ", %d s for each size", r.Seconds)
	}
	fmt.Fprintf(w, "\n%s\n", strings.Repeat("-", 87))
}

// header prints the heading of perftest's table. row prints a line of the table.
func (r *perfReport) header(w io.Writer) {
	switch {
	case !r.latency:
		fmt.Fprintln(w, " #bytes     #iterations    BW peak[MiB/sec]    BW average[MiB/sec]   MsgRate[Mpps]")
	case r.Seconds > 0:
		fmt.Fprintln(w, " #bytes        #iterations       t_avg[usec]    tps average")
	default:
		fmt.Fprintln(w, " #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]    t_stdev[usec]"+
			"   99% percentile[usec]   99.9% percentile[usec]")
	}
}

func (r *perfReport) row(w io.Writer, x *perfResult) {
	switch {
	case !r.latency:
		fmt.Fprintf(w, " %-7d    %-10d       %-7.2f            %-7.2f              %-7.6f\n",
			x.Bytes, x.Iterations, x.Peak, x.perfBandwidth.Average, x.Rate)
	case r.Seconds > 0:
		fmt.Fprintf(w, " %-7d       %-10d        %-7.2f        %-7.2f\n",
			x.Bytes, x.Iterations, x.perfLatency.Average, x.PerSec)
	default:
		fmt.Fprintf(w, " %-7d %-10d     %-7.2f        %-7.2f      %-7.2f  ",
			x.Bytes, x.Iterations, *x.Min, *x.Max, *x.Typical)
		fmt.Fprintf(w, "          %-7.2f        %-7.2f         %-7.2f                %-7.2f\n",
			x.perfLatency.Average, *x.StdDev, *x.P99, *x.P999)
	}
}
