package doctor

import (
	"fmt"
	"io"
)

// Level is how bad a finding is.
type Level string

// Levels.
const (
	OK   Level = "OK"
	Warn Level = "WARN" // it may work, but not for everybody or not well
	Fail Level = "FAIL"
)

// Finding is one thing that was looked at.
type Finding struct {
	Level Level  `json:"level"`
	Check string `json:"check"` // which check, for scripts
	What  string `json:"what"`
	Do    string `json:"do,omitempty"` // what to type, or to change
	// Fix has the steps of Do that a Fixer can carry out, in order.
	Fix []Step `json:"fix,omitempty"`
}

// Report collects findings in the order in which they were made.
type Report []Finding

func (r *Report) add(l Level, check, do, format string, a ...any) {
	*r = append(*r, Finding{Level: l, Check: check, What: fmt.Sprintf(format, a...), Do: do})
}

func (r *Report) ok(check, format string, a ...any) { r.add(OK, check, "", format, a...) }

// Failed reports whether one of the findings is a failure.
func (r Report) Failed() bool {
	for _, f := range r {
		if f.Level == Fail {
			return true
		}
	}
	return false
}

// Print writes one line for each finding.
func (r Report) Print(w io.Writer) {
	for _, f := range r {
		fmt.Fprintf(w, "%-4s  %s", f.Level, f.What)
		if f.Do != "" {
			fmt.Fprintf(w, "  -> %s", f.Do)
		}
		fmt.Fprintln(w)
	}
}
