package plan

import (
	"fmt"
	"os"

	"github.com/rstored/rstored/cmd/internal/config"
	"github.com/rstored/rstored/cmd/internal/control"
	"github.com/rstored/rstored/cmd/internal/desired"
	"github.com/rstored/rstored/cmd/internal/exports"
	"github.com/rstored/rstored/cmd/internal/measure"
	"github.com/rstored/rstored/nfs"
	"github.com/rstored/rstored/nfs/hosts"
	"github.com/rstored/rstored/nfs/lock"
	"github.com/rstored/rstored/nfs/state"
)

// locksMax is how many locks are looked at.
const locksMax = 10_000

// Running is what is served, and who uses it.
type Running struct {
	State    desired.State
	Exports  *exports.Set
	Table    *nfs.Table
	Hosts    *hosts.Hosts
	Recorder *measure.Recorder // records which client has used which export
	NFS4     *state.Server
	Locks    *lock.Table
	Clients  []control.Client
	XprtSec  []string // of rules that do not say it
}

// Plan says what would change if next were served, and which clients that would disrupt.
func (r *Running) Plan(next *desired.State) control.Plan {
	p := control.Plan{
		State: r.State.Digest(), Changes: desired.Diff(&r.State, next),
		Disruptions: []control.Disruption{}, Problems: []string{}, Warnings: Exposures(next.Exports),
	}
	for i := range next.Exports {
		e := &next.Exports[i]
		if now := r.Exports.Same(&e.Export); now != nil {
			if e.Async && !now.Async {
				p.Warnings = append(p.Warnings, fmt.Sprintf("export %s: writes would be acknowledged before they "+
					"are on disk", e.Pseudo))
			}
			continue
		}
		if e.Type == config.TypePosix {
			if st, err := os.Stat(e.Path); err != nil {
				p.Problems = append(p.Problems, fmt.Sprintf("export %s: %v", e.Pseudo, err))
			} else if !st.IsDir() {
				p.Problems = append(p.Problems, fmt.Sprintf("export %s: open %s: is not a directory", e.Pseudo, e.Path))
			}
		}
	}
	if len(p.Changes) > 0 {
		p.Disruptions = r.disruptions(next)
	}
	return p
}

// Exposures describes what exports let every host do, and what they let clients of other exports
// do. It leaves out what is mounted below an export, which has the same rules.
func Exposures(list []control.Export) (out []string) {
	for i := range list {
		if !list[i].Derived() {
			out = append(out, list[i].Exposure()...)
		}
	}
	return append(out, desired.Bypassed(list, desired.HostMounts())...)
}
