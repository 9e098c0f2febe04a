package top

import (
	"strings"

	"github.com/rivo/uniseg"
)

// format returns the heading and the rows of a table. A first column that does not fit is
// shortened.
func (m *Model) format(i int, list []line) []string {
	t := &tables[i]
	first, rest := t.columns[0].width, 0
	for _, l := range list {
		first = max(first, uniseg.StringWidth(l.cells[0].text))
	}
	for _, c := range t.columns[1:] {
		rest += c.width + 1
	}
	first = min(first, max(m.Width-rest, t.columns[0].width))
	var head strings.Builder
	for k, c := range t.columns {
		width := c.width
		if k == 0 {
			width = first
		} else {
			head.WriteByte(' ')
		}
		title := pad(c.title, width, c.words)
		if k == m.orders[i].by {
			title = m.mark(title)
		}
		head.WriteString(title)
	}
	out := []string{head.String()}
	for _, l := range list {
		var b strings.Builder
		for k, c := range t.columns {
			if k == 0 {
				b.WriteString(pad(shorten(l.cells[k].text, first), first, true))
				continue
			}
			b.WriteByte(' ')
			b.WriteString(pad(l.cells[k].text, c.width, c.words))
		}
		out = append(out, strings.TrimRight(b.String(), " "))
	}
	return out
}

func pad(s string, width int, left bool) string {
	blanks := strings.Repeat(" ", max(width-uniseg.StringWidth(s), 0))
	if left {
		return s + blanks
	}
	return blanks + s
}

// shorten cuts off the end of a name that is too wide.
func shorten(s string, width int) string {
	if uniseg.StringWidth(s) <= width {
		return s
	}
	return cut(s, max(width-1, 0)) + "~"
}

// cut returns the part of a line that fits. SGR sequences have no width, and stay.
func cut(s string, width int) string {
	var b strings.Builder
	n := 0
	state := -1
	for rest := s; rest != ""; {
		if strings.HasPrefix(rest, "\x1b[") {
			end := strings.IndexByte(rest, 'm') + 1
			if end == 0 {
				break
			}
			b.WriteString(rest[:end])
			rest, state = rest[end:], -1
			continue
		}
		var g string
		var w int
		g, rest, w, state = uniseg.FirstGraphemeClusterInString(rest, state)
		if n += w; n <= width {
			b.WriteString(g)
		}
	}
	return b.String()
}

func (m *Model) sgr(code, s string) string {
	if !m.Color {
		return s
	}
	return "\x1b[" + code + "m" + s + "\x1b[0m"
}

func (m *Model) bold(s string) string  { return m.sgr("1", s) }
func (m *Model) dim(s string) string   { return m.sgr("2", s) }
func (m *Model) mark(s string) string  { return m.sgr("7", s) }
func (m *Model) alarm(s string) string { return m.sgr("1;31", s) }
