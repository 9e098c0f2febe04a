package control

import (
	"time"

	"github.com/rstored/rstored/cmd/internal/state"
)

// ChangeBackend is the part of a Backend that changes exports and ports by a file.
type ChangeBackend interface {
	// Plan returns what a file would change. It changes nothing.
	Plan(f File) (Plan, error)
	// Apply does everything that a plan says, or nothing.
	Apply(a Apply, by Peer) (Applied, error)
	// History lists the files that were applied, the latest first, without their texts.
	History() ([]state.Entry, error)
	// HistoryEntry returns an entry of the history, with its text. Number 0 is what was served
	// before the first file was applied.
	HistoryEntry(number int) (state.Entry, error)
	// Drift returns the differences between the running and the written state.
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
	// State is a digest of the running state for which the plan was made, File a digest of the text.
	// Both are SHA-256 in hexadecimal.
	State string `json:"state"`
	File  string `json:"file"`
	// Changes is empty if nothing would change.
	Changes []Change `json:"changes"`
	// Disruptions are the clients that the change would disrupt.
	Disruptions []Disruption `json:"disruptions"`
	// Problems prevent the file from being applied. Warnings do not.
	Problems []string `json:"problems"`
	Warnings []string `json:"warnings"`
	// Ignored are settings of the file that are not about exports and ports.
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
	// Options are the options of an export that differ. For an export that is added or removed they
	// are all options.
	Options []OptionChange `json:"options,omitempty"`
}

// OptionChange is a change of an option. Old or New is empty where the option does not exist.
type OptionChange struct {
	Option string `json:"option"`
	Old    string `json:"old,omitempty"`
	New    string `json:"new,omitempty"`
}

// Kinds of Disruption.
const (
	DisruptAccess  = "access"       // the client loses access
	DisruptWrite   = "write"        // it becomes read-only
	DisruptRoot    = "root"         // its root becomes another user
	DisruptUsers   = "users"        // all of its users become another user
	DisruptAnon    = "anonymous"    // squashed users become another user than before
	DisruptHandles = "handles"      // its file handles become stale
	DisruptState   = "state"        // its opens, locks, delegations end
	DisruptData    = "data"         // files are lost
	DisruptPort    = "port"         // its connection is closed
	DisruptUnknown = "unknown"      // the answer depends on its name, which is not known
	DisruptOthers  = "more-clients" // there are further clients, which were not checked
)

// Disruption is a client that a change would disrupt, and how.
type Disruption struct {
	Kind   string `json:"kind"`
	Export string `json:"export,omitempty"`
	Client string `json:"client,omitempty"` // address, or for DisruptState how it calls itself
	// Connected reports a connection now. Seen is the last use of the export, nil if there was none
	// since the daemon's start.
	Connected bool       `json:"connected"`
	Seen      *time.Time `json:"seen,omitempty"`
	// Text is the description for people.
	Text string `json:"text"`
}

// Apply is the request to apply a file.
type Apply struct {
	File
	// State is Plan.State. If the running state has another digest, nothing is changed. If it is
	// empty, any state is accepted.
	State string `json:"state"`
	// Disrupt allows changes that disrupt clients.
	Disrupt    bool   `json:"disrupt"`
	Comment    string `json:"comment,omitempty"`
	RollbackOf int    `json:"rollback_of,omitempty"`
}

// Applied is what was done.
type Applied struct {
	Number int  `json:"number"` // in the history; 0 if nothing had to be changed
	Plan   Plan `json:"plan"`
}

// Drift has the differences between the running and the written state.
type Drift struct {
	// Against names the written state: "the configuration (FILE)" or "the applied file N".
	Against []string `json:"against"`
	// Changes lead from the written to the running state. Unread: some of them are in a
	// configuration on disk that was not loaded yet. RunTime: some were made at run time.
	Changes []Change `json:"changes"`
	Unread  bool     `json:"unread"`
	RunTime bool     `json:"run_time"`
	// Shadowed are settings of the configuration that an applied file replaces. They are no drift.
	Shadowed []string `json:"shadowed"`
	// Problems prevent the written state from being read.
	Problems []string `json:"problems"`
}

// None reports whether there are neither changes nor problems.
func (d *Drift) None() bool { return len(d.Changes)+len(d.Problems) == 0 }
