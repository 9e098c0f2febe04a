package top

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/rivo/uniseg"

	"github.com/rstored/rstored/cmd/internal/live"
)

// Limits of the interval.
const (
	MinInterval = 100 * time.Millisecond
	MaxInterval = time.Minute
)

// Model is the contents of the screen, changed by keys. One goroutine calls its methods.
type Model struct {
	// Width and Height are in characters. Color: the terminal understands SGR.
	Width, Height int
	Color         bool
	Interval      time.Duration
	// Paused: new views are not shown.
	Paused bool

	view   *live.View
	fault  string // why there is no newer view
	table  int
	orders []order
	scroll []int
	idle   bool // rows without activity are shown, too
	help   bool
	typing bool // the filter is being typed
	filter string
}

type order struct {
	by      int
	reverse bool
}

// NewModel makes a Model that shows a table by name, sorted by a column. Empty names are the
// defaults.
func NewModel(name, sortBy string) (*Model, error) {
	m := &Model{Width: 80, Height: 24, Interval: time.Second, orders: make([]order,
		len(tables)), scroll: make([]int, len(tables))}
	for i := range tables {
		m.orders[i].by = tables[i].sort
	}
	if name != "" {
		if m.table = slices.Index(TableNames(), name); m.table < 0 {
			return nil, fmt.Errorf("there is no table %q: they are %s", name, strings.Join(TableNames(), ", "))
		}
	}
	if sortBy == "" {
		return m, nil
	}
	known := false
	for i := range tables {
		if by := tables[i].column(sortBy); by >= 0 {
			m.orders[i].by = by
			known = known || name == "" || i == m.table
		}
	}
	if !known {
		return nil, fmt.Errorf("there is no column %q", sortBy)
	}
	return m, nil
}

// Show shows a view, unless the screen is paused.
func (m *Model) Show(v *live.View) {
	m.fault = ""
	if !m.Paused {
		m.view = v
	}
}

// Fail shows that there is no newer view.
func (m *Model) Fail(err error) { m.fault = err.Error() }

// Key handles a key (see keys). It reports whether to leave the screen.
func (m *Model) Key(k string) (quit bool) {
	if m.typing {
		return m.typed(k)
	}
	o, t := &m.orders[m.table], &tables[m.table]
	switch k {
	case "q", "Q", "ctrl-c":
		return true
	case "esc":
		m.help, m.filter = false, ""
	case "?", "h":
		m.help = !m.help
	case "1", "2", "3", "4", "5":
		m.table = int(k[0] - '1')
	case "tab":
		m.table = (m.table + 1) % len(tables)
	case "shift-tab":
		m.table = (m.table + len(tables) - 1) % len(tables)
	case "right", ">":
		o.by, o.reverse = (o.by+1)%len(t.columns), false
	case "left", "<":
		o.by, o.reverse = (o.by+len(t.columns)-1)%len(t.columns), false
	case "r":
		o.reverse = !o.reverse
	case "z":
		m.idle = !m.idle
	case "p", " ":
		m.Paused = !m.Paused
	case "/":
		m.typing, m.filter = true, ""
	case "+":
		m.Interval = min(m.Interval*2, MaxInterval)
	case "-":
		m.Interval = max(m.Interval/2, MinInterval)
	case "down", "j":
		m.scroll[m.table]++
	case "up", "k":
		m.scroll[m.table]--
	case "page-down":
		m.scroll[m.table] += m.Height / 2
	case "page-up":
		m.scroll[m.table] -= m.Height / 2
	case "home", "g":
		m.scroll[m.table] = 0
	case "end", "G":
		m.scroll[m.table] = 1 << 30 // Lines reduces it to the last row
	}
	return false
}

// maxFilter bounds the filter in bytes.
const maxFilter = 64

func (m *Model) typed(k string) (quit bool) {
	switch k {
	case "ctrl-c":
		return true
	case "enter":
		m.typing = false
	case "esc":
		m.typing, m.filter = false, ""
	case "backspace":
		if r := []rune(m.filter); len(r) > 0 {
			m.filter = string(r[:len(r)-1])
		}
	default:
		if uniseg.StringWidth(k) == 1 && clean(k) == k && len(m.filter) < maxFilter {
			m.filter += k
		}
	}
	return false
}

var helpText = []string{
	"",
	"  1 2 3 4 5, Tab       clients, exports, operations, queue pairs, mounts",
	"  Left Right < >       sort by another column",
	"  r                    sort the other way round",
	"  Up Down PgUp PgDn    scroll; Home and End",
	"  /                    show rows that contain a word; Esc shows all",
	"  z                    show rows in which nothing happens, too",
	"  p, Space             pause",
	"  + -                  look less or more often",
	"  Ctrl-Z               suspend",
	"  q                    quit",
	"",
	"  IN is what the server receives, OUT what it sends, in MB a second. MEAN and",
	"  P99 are from the arrival of a call to its reply; P99 is estimated within",
	"  powers of two. DEPTH is how many calls were in progress on average. Mounts are",
	"  those of this host by 'rstorectl mount', with the calls of their programs.",
}

// Lines returns the lines of the screen. None is wider than it.
func (m *Model) Lines() []string {
	var out []string
	if m.view == nil {
		out = append(out, m.bold("rstored"), "")
		if m.fault == "" {
			out = append(out, "waiting for the server")
		}
	} else {
		out = append(out, m.header()...)
	}
	if m.fault != "" {
		out = append(out, m.alarm("no answer: "+clean(m.fault)))
	}
	out = append(out, "", m.tabs())
	switch {
	case m.help:
		out = append(out, helpText...)
	case m.view != nil:
		out = append(out, m.body(max(m.Height-len(out)-2, 0))...)
	}
	out = out[:min(len(out), max(m.Height-1, 0))]
	for i := range out {
		out[i] = cut(out[i], m.Width)
	}
	return out
}

// header returns the lines about the server as a whole.
func (m *Model) header() []string {
	v := m.view
	s := &v.Server
	every := "every " + m.Interval.String()
	switch {
	case m.Paused:
		every = "paused"
	case v.SinceStart:
		every = "since the start"
	}
	name := "rstored"
	if v.Host != "" {
		name += " on " + clean(v.Host)
	}
	if v.State != "running" {
		name += " (" + clean(v.State) + ")"
	}
	if v.State == live.NoServer {
		return []string{m.bold(name) + fmt.Sprintf("  %s  %s", v.Taken.Format(time.TimeOnly), every)}
	}
	out := []string{
		m.bold(name) + fmt.Sprintf("  up %s  %s  %s", span(v.Uptime), v.Taken.Format(time.TimeOnly), every),
		fmt.Sprintf("calls %s/s  in %s MB/s  out %s MB/s  mean %s  p99 %s  failed %s/s",
			amount(v.Total.Ops), megabytes(v.Total.In), megabytes(v.Total.Out), micros(v.Total.Mean),
			micros(v.Total.P99), amount(v.Total.Failed)),
		fmt.Sprintf("in progress %s  waiting %d  workers %d/%d  credits %d/%d  memory %s",
			small(v.Total.Depth), s.Queued, s.WorkersBusy, s.Workers, s.CreditsInUse, s.Credits, Size(s.Memory)),
		fmt.Sprintf("rdma write %s MB/s  read %s MB/s  retransmits %s/s  errors %s/s",
			megabytes(v.RDMAWritten), megabytes(v.RDMARead), amount(v.Retransmits), amount(v.Errors)),
		fmt.Sprintf("connections %d rdma, %d tcp  nfs4 clients %d  sessions %d, %d busy  opens %d",
			s.RDMAConnections, s.TCPConnections, s.Clients, s.Sessions, s.SlotsBusy, s.Opens),
		fmt.Sprintf("delegations %d  locks %d, %d wait  grace %s", s.Delegations, s.LocksHeld, s.LocksWaiting, grace(s)),
	}
	const most = 3
	for i, p := range s.Problems {
		if i == most {
			out = append(out, m.alarm(fmt.Sprintf("and %d more problems", len(s.Problems)-most)))
			break
		}
		out = append(out, m.alarm("problem: "+clean(p)))
	}
	return out
}

func grace(s *live.Server) string {
	switch {
	case !s.Grace:
		return "over"
	case s.GraceUntil == nil:
		return "on"
	}
	return fmt.Sprintf("until %s, %d clients to come", s.GraceUntil.Format(time.TimeOnly), s.GraceWaiting)
}

// tabs is the line with the names of the tables.
func (m *Model) tabs() string {
	var b strings.Builder
	for i := range tables {
		name := fmt.Sprintf("%d %s", i+1, tables[i].title)
		if i == m.table {
			name = m.bold("[" + name + "]")
		} else {
			name = " " + name + " "
		}
		b.WriteString(name)
	}
	switch {
	case m.typing:
		b.WriteString("  /" + m.filter + "_")
	case m.filter != "":
		b.WriteString("  /" + m.filter)
	default:
		b.WriteString("  ? help  q quit")
	}
	return b.String()
}

// body is the table, with at most n rows.
func (m *Model) body(n int) []string {
	list, hidden := m.lines(m.table)
	top := min(max(m.scroll[m.table], 0), max(len(list)-n, 0))
	m.scroll[m.table] = top
	shown := list[top:min(top+n, len(list))]
	out := m.format(m.table, shown)
	var notes []string
	if rest := len(list) - len(shown); rest > 0 {
		notes = append(notes, fmt.Sprintf("%d to %d of %d", top+1, top+len(shown), len(list)))
	}
	if hidden > 0 {
		notes = append(notes, fmt.Sprintf("%d idle (z)", hidden))
	}
	if len(notes) > 0 {
		out = append(out, m.dim("  "+strings.Join(notes, ", ")))
	}
	return out
}

// lines returns the rows of a table in order, and the number of hidden idle rows.
func (m *Model) lines(i int) (list []line, hidden int) {
	t := &tables[i]
	for _, l := range t.rows(m.view) {
		switch {
		case m.filter != "" && !l.contains(m.filter, t):
		case l.idle && !m.idle:
			hidden++
		default:
			list = append(list, l)
		}
	}
	t.order(list, m.orders[i].by, m.orders[i].reverse)
	return list, hidden
}

func (l *line) contains(word string, t *table) bool {
	for i := range t.columns {
		if t.columns[i].words && strings.Contains(strings.ToLower(l.cells[i].text), strings.ToLower(word)) {
			return true
		}
	}
	return false
}
