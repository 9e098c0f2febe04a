package config

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// Problem is a mistake in a configuration file.
type Problem struct {
	Line int    // counted from 1; 0 if the file has no such key
	Key  string // as in exports[0].clients; may be empty
	What string
}

// Problems are all mistakes that were found, in the order of their lines.
type Problems struct {
	File string // empty: not from a file
	List []Problem
}

// Error has one line for each mistake: file:line: key: what is wrong.
func (p *Problems) Error() string {
	var lines []string
	for _, x := range p.List {
		at := p.File
		switch {
		case x.Line > 0 && at != "":
			at = fmt.Sprintf("%s:%d", at, x.Line)
		case x.Line > 0:
			at = fmt.Sprintf("line %d", x.Line)
		}
		var parts []string
		for _, s := range []string{at, x.Key, x.What} {
			if s != "" {
				parts = append(parts, s)
			}
		}
		lines = append(lines, strings.Join(parts, ": "))
	}
	return strings.Join(lines, "\n")
}

// inFile names the file of the problems in an error.
func inFile(file string, err error) error {
	var p *Problems
	if !errors.As(err, &p) {
		return fmt.Errorf("%s: %w", file, err)
	}
	p.File = file
	return p
}

// byLine is an error with the problems in their order, or nil.
func byLine(list []Problem) error {
	if len(list) == 0 {
		return nil
	}
	slices.SortStableFunc(list, func(a, b Problem) int { return a.Line - b.Line })
	return &Problems{List: list}
}

// located finds the lines of the keys that the errors of Validate begin with.
func located(err error, lines map[string]int) error {
	if err == nil {
		return nil
	}
	all := []error{err}
	if j, ok := err.(interface{ Unwrap() []error }); ok {
		all = j.Unwrap()
	}
	var list []Problem
	for _, e := range all {
		// As in "exports[1]: clients[0]: ...": the longest part that the file has.
		x, key := Problem{What: e.Error()}, ""
		for part := range strings.SplitSeq(e.Error(), ": ") {
			part, _, _ = strings.Cut(part, ",")
			key = strings.TrimPrefix(key+"."+part, ".")
			n := lines[key]
			if n == 0 {
				break
			}
			x.Line = n
		}
		list = append(list, x)
	}
	return byLine(list)
}

var yamlLine = regexp.MustCompile(`^(?:yaml: )?line (\d+): (.*)$`)

// notYAML is the error of a file that is no YAML.
func notYAML(err error) error {
	what := strings.TrimPrefix(err.Error(), "yaml: ")
	line := 0
	if m := yamlLine.FindStringSubmatch(what); m != nil {
		line, _ = strconv.Atoi(m[1])
		what = m[2]
	}
	return &Problems{List: []Problem{{Line: line, What: "this is not YAML: " + what}}}
}

// meant is the name that an unknown one probably stands for, as a question, or empty.
func meant(name string, known []string) string {
	best, least := "", 1+max(1, len(name)/3)
	for _, k := range known {
		if d := distance(strings.ToLower(name), k); d < least {
			best, least = k, d
		}
	}
	if best == "" {
		return ""
	}
	return fmt.Sprintf("; did you mean %q?", best)
}

// distance is the number of characters that have to be added, left out, changed or swapped with
// their neighbour to make one text of another.
func distance(a, b string) int {
	before, row, next := make([]int, len(b)+1), make([]int, len(b)+1), make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range a {
		next[0] = i + 1
		for j := range b {
			cost := 1
			if a[i] == b[j] {
				cost = 0
			}
			next[j+1] = min(row[j+1]+1, next[j]+1, row[j]+cost)
			if i > 0 && j > 0 && a[i] == b[j-1] && a[i-1] == b[j] {
				next[j+1] = min(next[j+1], before[j-1]+1)
			}
		}
		before, row, next = row, next, before
	}
	return row[len(b)]
}
