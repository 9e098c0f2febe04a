package ops

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/rstored/rstored/cmd/internal/control"
	"github.com/rstored/rstored/cmd/internal/live"
)

// ExportState is an export, and what is known of its file system; zeros are not known.
type ExportState struct {
	Name      string `json:"name"`
	Path      string `json:"path"`
	Error     string `json:"error,omitempty"` // why it is not served
	Size      uint64 `json:"size_bytes"`
	Available uint64 `json:"available_bytes"`
	Files     uint64 `json:"files"`
	FilesFree uint64 `json:"files_free"`
}

// Levels of remarks.
const (
	levelWarn = "warn" // it may become worse
	levelBad  = "bad"  // clients notice it
)

// Remark is a sentence about what is not well.
type Remark struct {
	Level string `json:"level"`
	Text  string `json:"text"`
}

// Thresholds of remarks.
const (
	usedWarn, usedBad = 0.90, 0.98 // of a file system
	p99Warn, p99Bad   = 100 * time.Millisecond, time.Second
	lossWarn, lossBad = 0.001, 0.02 // packets that are sent again, of those that are sent
	lossPackets       = 100         // a second; fewer tell nothing
	callsEnough       = 10          // in an interval
)

// remarks are what is not well, the worst first.
func remarks(v *live.View, volumes []ExportState, slow []control.SlowCall) []Remark {
	out := []Remark{}
	add := func(value, warn, bad float64, format string, a ...any) {
		level := levelWarn
		switch {
		case value >= bad:
			level = levelBad
		case value < warn:
			return
		}
		out = append(out, Remark{level, fmt.Sprintf(format, a...)})
	}
	for _, p := range v.Server.Problems {
		out = append(out, Remark{levelBad, p})
	}
	for _, e := range volumes {
		if slices.ContainsFunc(v.Server.Problems, func(p string) bool { return strings.HasPrefix(p, "export "+e.Name+":") }) {
			continue // it has said that the file system is full
		}
		if e.Size > 0 {
			used := 1 - float64(e.Available)/float64(e.Size)
			add(used, usedWarn, usedBad, "The file system of export %s is %d %% full.", e.Name, int(used*100))
		}
		if e.Files > 0 {
			used := 1 - float64(e.FilesFree)/float64(e.Files)
			add(used, usedWarn, usedBad, "The file system of export %s has used %d %% of its inodes.", e.Name, int(used*100))
		}
	}
	s := &v.Server
	if s.Queued > 0 && s.WorkersBusy >= s.Workers {
		out = append(out, Remark{levelWarn, fmt.Sprintf(
			"All %d workers wait for storage, and %d calls wait for a worker: the disks are the limit.", s.Workers, s.Queued)})
	}
	if v.Total.Calls >= callsEnough && !v.SinceStart {
		d := time.Duration(v.Total.P99 * float64(time.Microsecond))
		add(float64(d), float64(p99Warn), float64(p99Bad), "One call in a hundred takes longer than %v%s.",
			d.Round(time.Millisecond), why(slow))
	}
	var packets float64
	for i := range v.QPs {
		packets += v.QPs[i].PacketsOut
	}
	if packets >= lossPackets {
		add(v.Retransmits/packets, lossWarn, lossBad,
			"%.0f packets in a second are sent again: the network loses packets.", v.Retransmits)
	}
	if s.Grace {
		out = append(out, Remark{levelWarn, "Grace period: clients reclaim their state, and new opens and locks wait."})
	}
	slices.SortStableFunc(out, func(a, b Remark) int {
		if a.Level == b.Level {
			return 0
		}
		if a.Level == levelBad {
			return -1
		}
		return 1
	})
	return out
}

// why says where the time of slow calls goes, if most of it goes to one place.
func why(slow []control.SlowCall) string {
	var took int64
	parts := []struct {
		text string
		us   int64
	}{{": they wait for a worker", 0}, {": they wait for data or memory of RDMA", 0}, {": they wait for the disks", 0}}
	for _, c := range slow {
		took += c.TookUS
		parts[0].us += c.QueueUS
		parts[1].us += c.RDMAUS
		parts[2].us += c.StoreUS
	}
	for _, p := range parts {
		if took > 0 && p.us*2 > took {
			return p.text
		}
	}
	return ""
}
