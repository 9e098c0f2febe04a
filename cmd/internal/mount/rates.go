package mount

import (
	"fmt"
	"io"
	"time"

	"github.com/rstored/rstored/cmd/internal/live"
	"github.com/rstored/rstored/nfs/fusefs"
)

// Rates are the rates of a mount per second, averaged over an interval.
type Rates struct {
	Dir     string  `json:"dir"`
	State   string  `json:"state"`
	Read    float64 `json:"read_bytes"`
	Written float64 `json:"written_bytes"`
	Calls   float64 `json:"calls"` // of the kernel
	// Mean is the time of a call in seconds.
	Mean float64 `json:"mean_seconds"`
}

// ratesOf returns the rates of the mounts that are in both lists. A process that was restarted
// meanwhile has no rates yet.
func ratesOf(before, after []Mount, took time.Duration) []Rates {
	list := []Rates{}
	for i := range after {
		b := &after[i]
		r := Rates{Dir: b.Dir, State: b.State}
		for j := range before {
			if a := &before[j]; a.Dir == b.Dir && a.PID == b.PID && a.FS != nil && b.FS != nil {
				calls, spent := operations(b.FS)
				earlier, spentEarlier := operations(a.FS)
				r.Read = float64(b.FS.BytesRead-a.FS.BytesRead) / took.Seconds()
				r.Written = float64(b.FS.BytesWritten-a.FS.BytesWritten) / took.Seconds()
				r.Calls = float64(calls-earlier) / took.Seconds()
				if calls > earlier {
					r.Mean = (spent - spentEarlier).Seconds() / float64(calls-earlier)
				}
			}
		}
		list = append(list, r)
	}
	return list
}

// Samples returns the counts of this host's mounts, for 'rstorectl top'.
func Samples() ([]live.Mount, error) {
	list, err := listMounts(nil)
	out := make([]live.Mount, len(list))
	for i := range list {
		m := &list[i]
		s := live.Mount{Directory: m.Dir, Source: m.Source, State: m.State, PID: m.PID}
		if m.FS != nil {
			calls, took := operations(m.FS)
			s.Calls, s.TookNS, s.Read, s.Written = calls, uint64(took), m.FS.BytesRead, m.FS.BytesWritten
			for _, o := range m.FS.Ops {
				s.Failed += o.Failed
			}
		}
		out[i] = s
	}
	return out, err
}

// operations sums up the operations of a mount.
func operations(s *fusefs.Stats) (calls uint64, took time.Duration) {
	for _, o := range s.Ops {
		calls += o.Calls
		took += o.Time
	}
	return calls, took
}

func printRates(w io.Writer, list []Rates) {
	const mega = 1e6
	fmt.Fprintln(w, "DIRECTORY\tSTATE\tREAD MB/s\tWRITTEN MB/s\tCALLS/s\tMEAN")
	for _, r := range list {
		mean := time.Duration(r.Mean * float64(time.Second)).Round(time.Microsecond)
		fmt.Fprintf(w, "%s\t%s\t%.1f\t%.1f\t%.0f\t%v\n", r.Dir, r.State, r.Read/mega, r.Written/mega, r.Calls, mean)
	}
}
