package compare

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
)

// Runs are the last reports of each processor, by its name. What holds on one processor alone is
// not a result: the page has a column for each.
type Runs map[string]*Report

// readRuns reads the JSON that WriteRuns wrote. There are none without a file.
func readRuns(file string) (Runs, error) {
	runs := make(Runs)
	b, err := os.ReadFile(file)
	if errors.Is(err, os.ErrNotExist) {
		return runs, nil
	}
	if err != nil {
		return nil, err
	}
	if err := json.Unmarshal(b, &runs); err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	return runs, nil
}

// Recall takes what was measured before on this processor from a file of runs, if there is any:
// with the same rounds.
func (r *Report) Recall(file string) error {
	runs, err := readRuns(file)
	if err != nil {
		return err
	}
	old := runs[ProcessorName()]
	if old == nil {
		return nil
	}
	if old.Rounds != r.Rounds || old.Seconds != r.Seconds {
		return fmt.Errorf("%s has %d rounds of %g s", file, old.Rounds, old.Seconds)
	}
	r.Measured = old.Measured
	return nil
}

// WriteRuns prints the table of one run, and writes the files, in which it takes the place of the
// last run on the same processor. It fails if something of ours could not be measured.
func (f *Files) WriteRuns(r *Report, page func(Runs, io.Writer) error) error {
	runs, failed := make(Runs), r.Failed()
	if f.JSON != "" {
		var err error
		if runs, err = readRuns(f.JSON); err != nil {
			return err
		}
	}
	runs[r.Host.Processor] = r
	return errors.Join(failed, f.write(r, runs, func(w io.Writer) error { return page(runs, w) }))
}

// processors are the names of the processors in order.
func (rs Runs) processors() []string { return slices.Sorted(maps.Keys(rs)) }

// Again makes the rows of all runs from their samples, so that one that is older than the rows has
// the same ones.
func (rs Runs) Again(rows []Row) {
	for _, r := range rs {
		r.Rows = nil
		for i := range rows {
			r.Rows = append(r.Rows, rows[i].Result(r.Measured[rows[i].Experiment]))
		}
	}
}

// Page is what the page of a table says beside it.
type Page struct {
	Title     string
	By        string // the command that writes the page
	Explained string // the link to what explains it
	Picture   string // the file of the picture of the last run, none if it is empty
	More      string // what follows
	// Client and Beside are those of Report.
	Client, Beside func(Variant) string
}

// Markdown writes the page: the processors, and a table with a column for each. All runs have the
// same rows; see Again.
func (rs Runs) Markdown(w io.Writer, p *Page) error {
	var b strings.Builder
	fmt.Fprintf(&b, "# %s\n\nWritten by `%s`; [measuring.md](%s) says how it is measured\nand how to read it.\n",
		p.Title, p.By, p.Explained)
	names := rs.processors()
	heads := []string{"measure", "against", "to reach"}
	for _, name := range names {
		r := rs[name]
		r.Client, r.Beside = p.Client, p.Beside
		fmt.Fprintf(&b, "\n**%s**: %s. The disk is %s. Each number is the median of %d rounds of %g s.\n", name,
			r.where(), r.Host.Disk, r.Rounds, r.Seconds)
		heads = append(heads, name)
	}
	fmt.Fprintf(&b, "\nA cell has rstored's value, its peer's, and the median of the ratios of the rounds, with the "+
		"least and the largest.\nA ratio that reaches what is wanted is bold.\n\n| %s |\n|%s\n", strings.Join(heads, " | "),
		strings.Repeat(" --- |", len(heads)))
	if len(names) > 0 {
		for i := range rs[names[0]].Rows {
			first := &rs[names[0]].Rows[i]
			cells := []string{first.Measure, first.Against, first.wanted()}
			for _, name := range names {
				cells = append(cells, rs[name].cell(&rs[name].Rows[i]))
			}
			fmt.Fprintf(&b, "| %s |\n", strings.Join(cells, " | "))
		}
	}
	b.WriteByte('\n')
	for _, name := range names {
		fmt.Fprintf(&b, "- %s: %s.\n", name, rs[name].Tally())
	}
	if p.Picture != "" {
		fmt.Fprintf(&b, "\nThe last run:\n\n![ratios](%s)\n", p.Picture)
	}
	b.WriteString(p.More)
	_, err := io.WriteString(w, b.String())
	return err
}

// cell is a row of one processor in one cell.
func (r *Report) cell(x *Result) string {
	c := r.cells(x)
	ours, peer, ratio := c[2], c[3], c[4]
	bold := func(s string) string {
		if x.Reached && !x.told() {
			return "**" + s + "**"
		}
		return s
	}
	switch {
	case x.Missing != "":
		return ratio
	case x.Peer == nil:
		return bold(ours)
	}
	number, spread, _ := strings.Cut(ratio, " ")
	if c := r.Client(x.Peer.By); c != "" {
		peer += " (" + c + ")"
	}
	return fmt.Sprintf("%s; %s: %s %s", ours, peer, bold(number), spread)
}

// Tally counts the rows that were reached.
func (r *Report) Tally() string {
	var reached, missing, told int
	for i := range r.Rows {
		switch x := &r.Rows[i]; {
		case x.told():
			told++
		case x.Missing != "":
			missing++
		case x.Reached:
			reached++
		}
	}
	n := len(r.Rows) - told
	s := fmt.Sprintf("%d of %d rows reached, %d not reached", reached, n, n-reached-missing)
	if missing > 0 {
		s += fmt.Sprintf(", %d not measured", missing)
	}
	return s
}
