package top

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode"

	"github.com/rstored/rstored/cmd/internal/live"
)

// cell is a value of a table: the text that is shown, and in a column of numbers the number by
// which the rows are sorted.
type cell struct {
	text string
	num  float64
}

type column struct {
	title string
	width int  // the least width
	words bool // text, left-aligned, sorted from A on; else numbers, the largest first
}

// table is one of the lists of a View. Its first column gets the width that the others leave.
type table struct {
	name, title string
	columns     []column
	sort        int // the column by which it is sorted at first
	rows        func(v *live.View) []line
}

type line struct {
	cells []cell
	idle  bool
}

var rates = []column{
	{"PROTO", 5, true},
	{"OPS/S", 7, false},
	{"IN MB/S", 7, false},
	{"OUT MB/S", 8, false},
	{"MEAN", 7, false},
	{"P99", 7, false},
	{"DEPTH", 6, false},
	{"FAIL/S", 6, false},
}

func rateCells(r *live.Row) []cell {
	return []cell{
		{text: r.Transport},
		{amount(r.Ops), r.Ops},
		{megabytes(r.In), r.In},
		{megabytes(r.Out), r.Out},
		{micros(r.Mean), r.Mean},
		{micros(r.P99), r.P99},
		{small(r.Depth), r.Depth},
		{amount(r.Failed), r.Failed},
	}
}

func rows(list []live.Row, kind bool) []line {
	out := make([]line, len(list))
	for i := range list {
		r := &list[i]
		cells := []cell{{text: clean(r.Name)}}
		if kind {
			cells = append(cells, cell{text: r.Kind})
		}
		out[i] = line{append(cells, rateCells(r)...), r.Idle()}
	}
	return out
}

var tables = []table{
	{
		name: "clients", title: "Clients", sort: 2,
		columns: slices.Concat([]column{{"CLIENT", 15, true}}, rates),
		rows:    func(v *live.View) []line { return rows(v.Clients, false) },
	},
	{
		name: "exports", title: "Exports", sort: 3,
		columns: slices.Concat([]column{{"EXPORT", 12, true}, {"KIND", 5, true}}, rates),
		rows:    func(v *live.View) []line { return rows(v.Exports, true) },
	},
	{
		name: "operations", title: "Operations", sort: 2,
		columns: slices.Concat([]column{{"OPERATION", 15, true}}, rates),
		rows:    func(v *live.View) []line { return rows(v.Operations, false) },
	},
	{
		name: "qps", title: "Queue pairs", sort: 5,
		columns: []column{
			{"REMOTE", 15, true},
			{"QP", 8, true},
			{"STATE", 5, true},
			{"QUEUE", 5, false},
			{"IN MB/S", 7, false},
			{"OUT MB/S", 8, false},
			{"PKT/S", 6, false},
			{"RETX/S", 6, false},
			{"RNR/S", 5, false},
			{"RTT", 6, false},
		},
		rows: func(v *live.View) []line {
			out := make([]line, len(v.QPs))
			for i := range v.QPs {
				q := &v.QPs[i]
				remote := q.Remote
				if remote == "" {
					remote = "- (" + q.Type + ")"
				}
				packets := q.PacketsIn + q.PacketsOut
				out[i] = line{[]cell{
					{text: clean(remote)},
					{text: q.QPN},
					{text: q.State},
					{fmt.Sprint(q.SendQueued), float64(q.SendQueued)},
					{megabytes(q.In), q.In},
					{megabytes(q.Out), q.Out},
					{amount(packets), packets},
					{amount(q.Retransmits), q.Retransmits},
					{amount(q.RNRs), q.RNRs},
					{micros(q.RTT), q.RTT},
				}, q.Idle()}
			}
			return out
		},
	},
	{
		name: "mounts", title: "Mounts", sort: 2,
		columns: []column{
			{"DIRECTORY", 15, true},
			{"STATE", 7, true},
			{"OPS/S", 7, false},
			{"READ MB/S", 9, false},
			{"WRITE MB/S", 10, false},
			{"MEAN", 7, false},
			{"DEPTH", 6, false},
			{"FAIL/S", 6, false},
		},
		rows: func(v *live.View) []line {
			out := make([]line, len(v.Mounts))
			for i := range v.Mounts {
				r := &v.Mounts[i]
				out[i] = line{[]cell{
					{text: clean(r.Directory)},
					{text: r.State},
					{amount(r.Ops), r.Ops},
					{megabytes(r.Read), r.Read},
					{megabytes(r.Written), r.Written},
					{micros(r.Mean), r.Mean},
					{small(r.Depth), r.Depth},
					{amount(r.Failed), r.Failed},
				}, r.Idle()}
			}
			return out
		},
	},
}

// TableNames are the names of the tables.
func TableNames() []string {
	out := make([]string, len(tables))
	for i := range tables {
		out[i] = tables[i].name
	}
	return out
}

// order sorts lines by a column, and lines with equal values by their words.
func (t *table) order(list []line, by int, reverse bool) {
	slices.SortStableFunc(list, func(a, b line) int {
		c := cmp.Compare(b.cells[by].num, a.cells[by].num)
		if t.columns[by].words {
			c = strings.Compare(a.cells[by].text, b.cells[by].text)
		}
		if reverse {
			c = -c
		}
		for i := 0; c == 0 && i < len(t.columns) && t.columns[i].words; i++ {
			c = strings.Compare(a.cells[i].text, b.cells[i].text)
		}
		return c
	})
}

// column is the number of the column with a title, written as in the table or shorter; -1 is none.
func (t *table) column(title string) int {
	return slices.IndexFunc(t.columns, func(c column) bool {
		name, _, _ := strings.Cut(c.title, " ")
		return strings.EqualFold(c.title, title) || strings.EqualFold(strings.TrimSuffix(name, "/S"), title)
	})
}

// amount is a number in at most six characters.
func amount(x float64) string {
	switch {
	case x == 0:
		return "0"
	case x < 9.95:
		return fmt.Sprintf("%.1f", x)
	case x < 9999.5:
		return fmt.Sprintf("%.0f", x)
	case x < 999_950:
		return fmt.Sprintf("%.1fk", x/1e3)
	}
	return fmt.Sprintf("%.2fM", x/1e6)
}

// megabytes are millions of bytes.
func megabytes(x float64) string {
	switch x /= 1e6; {
	case x == 0:
		return "0"
	case x < 99.995:
		return fmt.Sprintf("%.2f", x)
	case x < 999.95:
		return fmt.Sprintf("%.1f", x)
	}
	return fmt.Sprintf("%.0f", x)
}

// micros returns the text of a time in microseconds. 0 means that there is no time.
func micros(us float64) string {
	switch {
	case us == 0:
		return "-"
	case us < 9.95:
		return fmt.Sprintf("%.1fus", us)
	case us < 999.5:
		return fmt.Sprintf("%.0fus", us)
	case us < 99_950:
		return fmt.Sprintf("%.1fms", us/1e3)
	case us < 999_500:
		return fmt.Sprintf("%.0fms", us/1e3)
	}
	return fmt.Sprintf("%.1fs", us/1e6)
}

func small(x float64) string {
	switch {
	case x == 0:
		return "0"
	case x < 99.995:
		return fmt.Sprintf("%.2f", x)
	}
	return fmt.Sprintf("%.0f", x)
}

// Size is an amount of memory in words, from bytes.
func Size(n uint64) string {
	switch {
	case n < 1<<10:
		return fmt.Sprintf("%d B", n)
	case n < 1<<20:
		return fmt.Sprintf("%.1f KiB", float64(n)/(1<<10))
	case n < 1<<30:
		return fmt.Sprintf("%.1f MiB", float64(n)/(1<<20))
	}
	return fmt.Sprintf("%.1f GiB", float64(n)/(1<<30))
}

// span is a time that the server has been up.
func span(seconds float64) string {
	d := time.Duration(seconds) * time.Second
	if days := d / (24 * time.Hour); days > 0 {
		return fmt.Sprintf("%dd%02dh", days, (d % (24 * time.Hour) / time.Hour))
	}
	return d.String()
}

// clean replaces characters that are not printable: names come from clients, and must not control
// the terminal.
func clean(s string) string {
	return strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) || r == unicode.ReplacementChar {
			return '?'
		}
		return r
	}, strings.ToValidUTF8(s, "?"))
}
