package compare

import (
	"io"
	"math"

	"github.com/wcharczuk/go-chart/v2"
	"github.com/wcharczuk/go-chart/v2/drawing"
)

// Plot draws each ratio as a share of what is wanted, so that 1 is reached for all
// of them: upside down where less is better.
func (r *Report) Plot(w io.Writer) error {
	reached, not := drawing.Color{R: 44, G: 160, B: 44, A: 255}, drawing.Color{R: 214, G: 39, B: 40, A: 255}
	var bars []chart.Value
	most := 1.
	draw := func(x *Result, label string) {
		share, ok := x.share()
		if !ok {
			return
		}
		c := not
		if x.Reached {
			c = reached
		}
		most = max(most, share)
		bars = append(bars, chart.Value{Label: label, Value: share, Style: chart.Style{FillColor: c, StrokeColor: c}})
	}
	for i := range r.Rows {
		x := &r.Rows[i]
		draw(x, x.Measure+", "+x.Against)
		if !r.DrawBeside {
			continue
		}
		for _, s := range x.Also {
			y := Result{Ratio: s.Ratio, Less: x.Less, Wanted: x.Wanted}
			y.Reached = y.within(y.Ratio)
			draw(&y, x.Measure+", "+x.Against+", "+r.Beside(s.By))
		}
	}
	if len(bars) == 0 {
		bars = []chart.Value{{Label: "nothing was compared"}}
	}
	return horizontal(w, "Ratios, as shares of what is wanted", bars, math.Ceil(most))
}

// share is the ratio in units of what is wanted.
func (x *Result) share() (float64, bool) {
	if x.Ratio <= 0 || x.Wanted <= 0 {
		return 0, false
	}
	if x.Less {
		return x.Wanted / x.Ratio, true
	}
	return x.Ratio / x.Wanted, true
}

// horizontal draws bars with their labels on the left, where there is room for them.
func horizontal(w io.Writer, title string, bars []chart.Value, most float64) error {
	const (
		width, left, top, step, thick = 1100, 560, 50, 20, 12
	)
	r, err := chart.SVG(width, top+step*len(bars)+40)
	if err != nil {
		return err
	}
	font, err := chart.GetDefaultFont()
	if err != nil {
		return err
	}
	r.SetFont(font)
	r.SetFontColor(drawing.ColorBlack)
	r.SetFontSize(11)
	r.Text(title, left, 20)
	r.SetFontSize(8)
	at := func(v float64) int { return left + int(v/most*(width-left-30)) }
	bottom := top + step*len(bars)
	for v := 0.; v <= most; v += max(1, math.Ceil(most/10)) {
		Line(r, at(v), top, at(v), bottom, drawing.Color{R: 220, G: 220, B: 220, A: 255})
		r.Text(Number(v), at(v)-3, bottom+14)
	}
	for i, b := range bars {
		y := top + i*step
		chart.Draw.Box(r, chart.Box{Left: left, Right: at(b.Value), Top: y + 4, Bottom: y + 4 + thick}, b.Style)
		r.SetFont(font)
		r.SetFontColor(drawing.ColorBlack)
		r.SetFontSize(8)
		r.Text(b.Label, 10, y+4+thick-2)
	}
	Line(r, at(1), top, at(1), bottom, drawing.ColorBlack)
	return r.Save(w)
}

// Line draws a line of one dot.
func Line(r chart.Renderer, x0, y0, x1, y1 int, c drawing.Color) {
	r.SetStrokeColor(c)
	r.SetStrokeWidth(1)
	r.MoveTo(x0, y0)
	r.LineTo(x1, y1)
	r.Stroke()
}
