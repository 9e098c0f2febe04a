package control

import (
	"time"

	"github.com/rstored/rstored/cmd/internal/state"
)

// ChangeBackend is the part of a Backend that changes exports and ports as a whole, by a file.
type ChangeBackend interface {
	// Plan says what a file would change, and changes nothing.
	Plan(f File) (Plan, error)
	// Apply does what a plan says, or nothing.
	Apply(a Apply, by Peer) (Applied, error)
	// History lists the files that were applied, the latest first, without their texts.
	History() ([]state.Entry, error)
	// HistoryEntry is one of them; 0 is the one before the last.
	HistoryEntry(number int) (state.Entry, error)
	// Drift says in what the running state differs from what is written.
	Drift() Drift
}

// File is a file of exports and ports.
type File struct {
	Name   string `json:"name"`   // for messages, and for the history
	Syntax string `json:"syntax"` // config.SyntaxYAML or config.SyntaxTable
	Text   string `json:"text"`
}

// Plan is what a file would change in the running state.
type Plan struct {
	// State is a digest of the running state that the plan is about, File one of the text. Both
	// are SHA-256 in hexadecimal.
	State string `json:"state"`
	File  string `json:"file"`
	// Changes are none where nothing would change.
	Changes []Change `json:"changes"`
	// Hurts are those whom it would hurt.
	Hurts []Hurt `json:"hurts"`
	// Problems keep the file from being applied. Warnings do not.
	Problems []string `json:"problems"`
	Warnings []string `json:"warnings"`
	// Ignored are settings of the file that are none of exports and ports.
	Ignored []string `json:"ignored"`
}

// What happens to an export or a port.
const (
	ActionAdd    = "add"
	ActionRemove = "remove"
	ActionChange = "change"
)

// Change is what happens to one export or port.
type Change struct {
	Kind   string `json:"kind"` // "export" or "port"
	Name   string `json:"name"` // pseudo path, or transport and address
	Action string `json:"action"`
	// Options are those of an export that differ; of one that is added or removed, all.
	Options []OptionChange `json:"options,omitempty"`
}

// OptionChange is an option of an export. What is empty was not there, or will not be.
type OptionChange struct {
	Option string `json:"option"`
	Old    string `json:"old,omitempty"`
	New    string `json:"new,omitempty"`
}

// Kinds of Hurt.
const (
	HurtAccess  = "access"       // the client is let in no more
	HurtWrite   = "write"        // it may change nothing any more
	HurtRoot    = "root"         // its root becomes somebody else
	HurtUsers   = "users"        // all of its users do
	HurtAnon    = "anonymous"    // who was squashed becomes another one than before
	HurtHandles = "handles"      // what it has mounted gets stale
	HurtState   = "state"        // its opens, locks, delegations end
	HurtData    = "data"         // files are lost
	HurtPort    = "port"         // its connection is closed
	HurtUnknown = "unknown"      // its name has to be known for an answer, and is not
	HurtOthers  = "more-clients" // there are clients that could not be looked at
)

// Hurt is somebody whom a change would hurt, and how.
type Hurt struct {
	Kind   string `json:"kind"`
	Export string `json:"export,omitempty"`
	Client string `json:"client,omitempty"` // address, or for HurtState how it calls itself
	// Connected: it has a connection now. Seen is when it used the export last, nil if it has
	// not since the daemon's start.
	Connected bool       `json:"connected"`
	Seen      *time.Time `json:"seen,omitempty"`
	// Text says it in words.
	Text string `json:"text"`
}

// Apply asks for a file to be applied.
type Apply struct {
	File
	// State is that of the plan; anything else that runs by now is not changed. Empty: whatever
	// runs.
	State string `json:"state"`
	// Disrupt allows it to hurt somebody.
	Disrupt    bool   `json:"disrupt"`
	Comment    string `json:"comment,omitempty"`
	RollbackOf int    `json:"rollback_of,omitempty"`
}

// Applied is what was done.
type Applied struct {
	Number int  `json:"number"` // in the history; 0 if nothing had to be changed
	Plan   Plan `json:"plan"`
}

// Drift is what runs and is not written, or the other way round.
type Drift struct {
	// Against says what is written where: "the configuration (FILE)" or "the applied file N".
	Against []string `json:"against"`
	// Changes lead from what is written to what runs. Unread says that some of them are in a
	// configuration on disk that was not loaded yet, RunTime that some were made at run time.
	Changes []Change `json:"changes"`
	Unread  bool     `json:"unread"`
	RunTime bool     `json:"run_time"`
	// Shadowed are settings of the configuration that are not in force, as the applied file has
	// others. That is no drift.
	Shadowed []string `json:"shadowed"`
	// Problems keep what is written from being read.
	Problems []string `json:"problems"`
}

// None reports whether there is nothing to say.
func (d *Drift) None() bool { return len(d.Changes)+len(d.Problems) == 0 }
