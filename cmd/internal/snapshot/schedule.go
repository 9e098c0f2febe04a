package snapshot

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// Schedule says how many snapshots are kept: the last one of each of so many hours, days, weeks and
// months that have one, all in UTC. Others that a schedule has made are removed. Those with names
// that people have given stay.
type Schedule struct {
	Hourly  int `json:"hourly,omitempty"`
	Daily   int `json:"daily,omitempty"`
	Weekly  int `json:"weekly,omitempty"`
	Monthly int `json:"monthly,omitempty"`
}

// Empty reports whether nothing is scheduled.
func (s Schedule) Empty() bool { return s == Schedule{} }

// String is the schedule for people.
func (s Schedule) String() string {
	var parts []string
	for _, p := range s.periods() {
		if p.keep > 0 {
			parts = append(parts, fmt.Sprintf("%s %d", p.name, p.keep))
		}
	}
	if len(parts) == 0 {
		return "none"
	}
	return strings.Join(parts, ", ")
}

// period is a part of a schedule. Two times are in one period if of says the same of both.
type period struct {
	name string
	keep int
	of   func(time.Time) string
}

// periods are from short to long.
func (s Schedule) periods() []period {
	layout := func(l string) func(time.Time) string {
		return func(t time.Time) string { return t.UTC().Format(l) }
	}
	week := func(t time.Time) string {
		y, w := t.UTC().ISOWeek()
		return fmt.Sprint(y, "-", w)
	}
	return []period{
		{"hourly", s.Hourly, layout("2006-01-02T15")},
		{"daily", s.Daily, layout("2006-01-02")},
		{"weekly", s.Weekly, week},
		{"monthly", s.Monthly, layout("2006-01")},
	}
}

// Validate checks the numbers.
func (s Schedule) Validate() error {
	const most = 1000
	for _, p := range s.periods() {
		if p.keep < 0 || p.keep > most {
			return fmt.Errorf("%s: %d is not within 0 to %d", p.name, p.keep, most)
		}
	}
	return nil
}

// Scheduled snapshots have the time in their names: autoPrefix and then stamp.
const (
	autoPrefix = "auto-"
	stamp      = "2006-01-02T15-04-05Z"
)

// Stamp is a time as a name of a snapshot.
func Stamp(t time.Time) string { return t.UTC().Format(stamp) }

// scheduled are the snapshots that a schedule has made, with the times in their names.
func scheduled(list []Snapshot) (out []Snapshot) {
	for _, s := range list {
		if rest, ok := strings.CutPrefix(s.Name, autoPrefix); ok {
			if t, err := time.Parse(stamp, rest); err == nil {
				out = append(out, Snapshot{Name: s.Name, Made: t})
			}
		}
	}
	return out
}

// due reports whether the shortest period in the schedule has no snapshot yet at that time.
func (s Schedule) due(list []Snapshot, now time.Time) bool {
	for _, p := range s.periods() {
		if p.keep == 0 {
			continue
		}
		for _, x := range scheduled(list) {
			if p.of(x.Made) == p.of(now) {
				return false
			}
		}
		return true
	}
	return false
}

// expired returns the names of the snapshots that the schedule does not keep. The list begins with
// the oldest.
func (s Schedule) expired(list []Snapshot) (out []string) {
	list = scheduled(list)
	keep := make(map[string]bool)
	for _, p := range s.periods() {
		last, n := "", 0
		for i := len(list) - 1; i >= 0 && n < p.keep; i-- {
			if at := p.of(list[i].Made); at != last {
				last, keep[list[i].Name] = at, true
				n++
			}
		}
	}
	for _, x := range list {
		if !keep[x.Name] {
			out = append(out, x.Name)
		}
	}
	return out
}

// scheduleName is the file of the schedule, beside the snapshots: it moves with the data.
const scheduleName = ".schedule"

// Schedule reads the schedule. There may be none.
func (v *Volume) Schedule() (s Schedule, err error) {
	name := filepath.Join(v.at(), scheduleName)
	b, err := os.ReadFile(name)
	if errors.Is(err, os.ErrNotExist) {
		return s, nil
	}
	if err != nil {
		return s, err
	}
	if err = json.Unmarshal(b, &s); err == nil {
		err = s.Validate()
	}
	if err != nil {
		err = fmt.Errorf("%s: %w", name, err)
	}
	return s, err
}

// SetSchedule writes the schedule. An empty one ends it, and removes nothing.
func (v *Volume) SetSchedule(s Schedule) error {
	if err := s.Validate(); err != nil {
		return err
	}
	name := filepath.Join(v.at(), scheduleName)
	if s.Empty() {
		if err := os.Remove(name); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
		return nil
	}
	b, err := json.Marshal(s)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(v.at(), 0o755); err != nil {
		return err
	}
	part := name + ".part"
	if err := os.WriteFile(part, append(b, '\n'), 0o644); err != nil {
		return err
	}
	return os.Rename(part, name)
}

// Run makes the snapshot that is due, removes those that the schedule does not keep, and mounts
// what is not mounted. It returns the names of what it made and removed, also with an error.
func (v *Volume) Run(now time.Time) (made, removed []string, err error) {
	s, err := v.Schedule()
	if err != nil {
		return nil, nil, err
	}
	errs := []error{v.Mount()}
	list, err := v.List()
	if err != nil || s.Empty() {
		return nil, nil, errors.Join(append(errs, err)...)
	}
	if s.due(list, now) {
		name := autoPrefix + Stamp(now)
		if err := v.Create(name); err != nil {
			// Without a new one none of the old ones is removed.
			return nil, nil, errors.Join(append(errs, err)...)
		}
		made = []string{name}
		list = append(list, Snapshot{Name: name, Made: now})
	}
	for _, name := range s.expired(list) {
		if err := v.Remove(name); err != nil {
			errs = append(errs, err)
			continue
		}
		removed = append(removed, name)
	}
	return made, removed, errors.Join(errs...)
}
