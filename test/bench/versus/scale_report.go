package main

import (
	"fmt"
	"io"
	"math"
	"strings"
	"text/tabwriter"

	"github.com/wcharczuk/go-chart/v2"
	"github.com/wcharczuk/go-chart/v2/drawing"

	"github.com/rstored/rstored/test/bench/compare"
)

// table is that of a part: heads, and a line of cells for each point.
func (p *part) table(r *partRun) (heads []string, lines [][]string) {
	heads = []string{"operation", "shards", p.axis}
	sharded := p.points[0].Shards > 0
	if !sharded {
		heads = []string{"operation", p.axis}
	}
	for _, c := range p.columns {
		heads = append(heads, c.title)
	}
	for i := range r.Points {
		g := &r.Points[i]
		cells := []string{g.Op}
		if sharded {
			cells = append(cells, fmt.Sprint(g.Shards))
		}
		cells = append(cells, amount(g.X))
		for j, c := range p.columns {
			switch v := g.middle(c.of) * c.scale; {
			case g.Err == "" && v != 0:
				cells = append(cells, compare.Number(v))
			case g.Err != "" && j == 0:
				cells = append(cells, "not measured: "+compare.FirstLine([]byte(g.Err)))
			default:
				cells = append(cells, "-")
			}
		}
		lines = append(lines, cells)
	}
	return heads, lines
}

// amount is a number of things, with a unit where it is a power of two.
func amount(n int) string {
	switch {
	case n >= 1<<20 && n%(1<<20) == 0:
		return fmt.Sprintf("%d Mi", n>>20)
	case n >= 1<<10 && n%(1<<10) == 0:
		return fmt.Sprintf("%d Ki", n>>10)
	}
	return fmt.Sprint(n)
}

// fit is the line a + b*x of least squares through what an operation's points measured, with
// the relative error squared: small values count as much as large ones. There is none through
// fewer than two.
func (r *partRun) fit(op string, of func(*reading) float64) (a, b float64, ok bool) {
	var n, sw, sx, sy, sxx, sxy float64
	for i := range r.Points {
		g := &r.Points[i]
		y := g.middle(of)
		if g.Op != op || y <= 0 {
			continue
		}
		w, x := 1/(y*y), float64(g.X)
		n, sw, sx, sy, sxx, sxy = n+1, sw+w, sx+w*x, sy+w*y, sxx+w*x*x, sxy+w*x*y
	}
	d := sw*sxx - sx*sx
	if n < 2 || d <= 0 {
		return 0, 0, false
	}
	b = (sw*sxy - sx*sy) / d
	return (sy - b*sx) / sw, b, true
}

// fits are the lines of the text about the cost of packets.
func (p *part) fits(r *partRun) string {
	if p.name != "packets" {
		return ""
	}
	var b strings.Builder
	b.WriteString("As a line through these, the processor time of a packet of n bytes, of both ends together:\n\n")
	for _, op := range []string{opWrite, opRead, opWriteCut, opReadCut, opSend} {
		if fixed, each, ok := r.fit(op, func(x *reading) float64 { return x.Packet }); ok {
			fmt.Fprintf(&b, "- %s: %s us + n × %s ns\n", op, compare.Number(fixed*1e6), compare.Number(each*1e9))
		}
	}
	return b.String() + "\n"
}

// Text prints the tables for a terminal.
func (s scaling) Text(w io.Writer) {
	for _, p := range parts() {
		r := s[p.name]
		if r == nil {
			continue
		}
		fmt.Fprintf(w, "%s\n", p.title)
		t := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
		heads, lines := p.table(r)
		fmt.Fprintln(t, strings.Join(heads, "\t"))
		for _, l := range lines {
			fmt.Fprintln(t, strings.Join(l, "\t"))
		}
		_ = t.Flush()
		fmt.Fprintf(w, "%s\n", p.fits(r))
	}
}

// markdown writes the page of the tables.
func (s scaling) markdown(w io.Writer) error {
	var b strings.Builder
	b.WriteString("# How cost grows\n\nWritten by `make bench-scale`; " +
		"[performance.md](../performance.md#how-cost-grows) says what follows from it.\n" +
		"Client and server share the processors of one host.\n\n![what grows](scaling.svg)\n\n")
	for _, p := range parts() {
		r := s[p.name]
		if r == nil {
			continue
		}
		fmt.Fprintf(&b, "## %s\n\n%s\n\n", p.title, p.about)
		heads, lines := p.table(r)
		fmt.Fprintf(&b, "| %s |\n|%s\n", strings.Join(heads, " | "), strings.Repeat(" --- |", len(heads)))
		for _, l := range lines {
			fmt.Fprintf(&b, "| %s |\n", strings.Join(l, " | "))
		}
		h := &r.Host
		fmt.Fprintf(&b, "\n%sMedians of %d rounds of %g s. %d cores of %s, Linux %s, %s, load %s, rstored %s.\n\n", p.fits(r),
			r.Rounds, r.Seconds, h.Cores, h.Processor, h.Kernel, h.Go, h.Load, h.Versions["rstored"])
	}
	_, err := io.WriteString(w, strings.TrimRight(b.String(), "\n")+"\n")
	return err
}

// curve is a line of a panel: what was measured of one operation.
type curve struct {
	name string
	x, y []float64
}

// curves of a column of a part.
func (p *part) curves(r *partRun, c *column) (cs []curve) {
	at := make(map[string]int)
	for i := range r.Points {
		g := &r.Points[i]
		if g.Err != "" {
			continue
		}
		name := g.Op
		if g.Shards > 0 {
			name = fmt.Sprintf("%s, shards %d", g.Op, g.Shards)
		}
		j, ok := at[name]
		if !ok {
			j = len(cs)
			at[name] = j
			cs = append(cs, curve{name: name})
		}
		cs[j].x = append(cs[j].x, float64(g.X))
		cs[j].y = append(cs[j].y, g.middle(c.of)*c.scale)
	}
	return cs
}

// Sizes of a panel of the plot, and how many there are side by side.
const (
	panelWide, panelHigh = 560, 300
	panelsInRow          = 2
)

// Plot draws a panel for each column that has an axis.
func (s scaling) Plot(w io.Writer) error {
	type panel struct {
		p *part
		c *column
		r *partRun
	}
	var panels []panel
	ps := parts()
	for i := range ps {
		p := &ps[i]
		for j := range p.columns {
			if r := s[p.name]; r != nil && p.columns[j].axis != "" {
				panels = append(panels, panel{p, &p.columns[j], r})
			}
		}
	}
	r, err := chart.SVG(panelWide*panelsInRow, panelHigh*((len(panels)+panelsInRow-1)/panelsInRow))
	if err != nil {
		return err
	}
	font, err := chart.GetDefaultFont()
	if err != nil {
		return err
	}
	r.SetFont(font)
	for i, x := range panels {
		drawPanel(r, i%panelsInRow*panelWide, i/panelsInRow*panelHigh, x.p.title+": "+x.c.axis, x.p.axis, x.c.log,
			x.p.curves(x.r, x.c))
	}
	return r.Save(w)
}

var palette = []drawing.Color{
	{R: 31, G: 119, B: 180, A: 255},
	{R: 255, G: 127, B: 14, A: 255},
	{R: 44, G: 160, B: 44, A: 255},
	{R: 214, G: 39, B: 40, A: 255},
	{R: 148, G: 103, B: 189, A: 255},
	{R: 140, G: 86, B: 75, A: 255},
}

// drawPanel draws curves over a logarithmic axis, with the corner at left, top.
func drawPanel(r chart.Renderer, left, top int, title, axis string, logarithmic bool, cs []curve) {
	const (
		edge, above, below, right = 60, 40, 40, 190
	)
	x0, x1, y0, y1 := left+edge, left+panelWide-right, top+panelHigh-below, top+above
	scaled := func(v float64) float64 { return v }
	if logarithmic {
		scaled = math.Log10
	}
	least, most, low, high := math.Inf(1), math.Inf(-1), math.Inf(1), math.Inf(-1)
	for _, c := range cs {
		for i := range c.x {
			if logarithmic && c.y[i] <= 0 {
				continue
			}
			least, most = min(least, c.x[i]), max(most, c.x[i])
			low, high = min(low, c.y[i]), max(high, c.y[i])
		}
	}
	text := func(x, y int, size float64, s string) {
		r.SetFontColor(drawing.ColorBlack)
		r.SetFontSize(size)
		r.Text(s, x, y)
	}
	text(left+10, top+20, 10, title)
	if low > high || least >= most {
		return
	}
	if high = math.Max(high, 1e-9); logarithmic {
		low, high = math.Pow(10, math.Floor(math.Log10(low))), math.Pow(10, math.Ceil(math.Log10(high)*(1+1e-12)))
		if low >= high {
			high = low * 10
		}
	} else {
		low = 0
	}
	xAt := func(v float64) int {
		return x0 + int(float64(x1-x0)*(math.Log(v)-math.Log(least))/(math.Log(most)-math.Log(least)))
	}
	yAt := func(v float64) int {
		return y0 - int(float64(y0-y1)*(scaled(v)-scaled(low))/(scaled(high)-scaled(low)))
	}
	grey := drawing.Color{R: 220, G: 220, B: 220, A: 255}
	for _, v := range steps(low, high, logarithmic) {
		compare.Line(r, x0, yAt(v), x1, yAt(v), grey)
		text(left+8, yAt(v)+3, 8, compare.Number(v))
	}
	seen := make(map[float64]bool)
	for _, c := range cs {
		for _, v := range c.x {
			if !seen[v] {
				seen[v] = true
				compare.Line(r, xAt(v), y0, xAt(v), y0+4, drawing.ColorBlack)
				text(xAt(v)-6, y0+15, 7, amount(int(v)))
			}
		}
	}
	compare.Line(r, x0, y0, x1, y0, drawing.ColorBlack)
	text((x0+x1)/2-20, y0+30, 8, axis)
	for i, c := range cs {
		color := palette[i%len(palette)]
		for j := range c.x {
			if logarithmic && c.y[j] <= 0 {
				continue
			}
			if j > 0 && !(logarithmic && c.y[j-1] <= 0) {
				compare.Line(r, xAt(c.x[j-1]), yAt(c.y[j-1]), xAt(c.x[j]), yAt(c.y[j]), color)
			}
			r.SetFillColor(color)
			r.Circle(2, xAt(c.x[j]), yAt(c.y[j]))
			r.Fill()
		}
		y := y1 + 14*i
		compare.Line(r, x1+10, y, x1+24, y, color)
		text(x1+28, y+3, 8, c.name)
	}
}

// steps are where the lines of an axis are.
func steps(low, high float64, logarithmic bool) (vs []float64) {
	if logarithmic {
		for v := low; v <= high*1.0001; v *= 10 {
			vs = append(vs, v)
		}
		return vs
	}
	const about = 5
	step := math.Pow(10, math.Floor(math.Log10(high/about)))
	for high/step > 2*about {
		step *= 2
	}
	for v := 0.; v <= high; v += step {
		vs = append(vs, v)
	}
	return vs
}
