// Command plots draws what the simulator says about congestion: goodput against the loss rate, the
// round trip and the number of connections, beside going back N with a window that stays as large
// as it may be. docs/transport.md shows the pictures. It also draws the model of
// docs/performance.md. make plots makes them again.
package main

import (
	"flag"
	"fmt"
	"log"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"sync"

	"github.com/wcharczuk/go-chart/v2"
	"github.com/wcharczuk/go-chart/v2/drawing"

	"github.com/rstored/rstored/rdma"
	"github.com/rstored/rstored/rdma/sim"
	"github.com/rstored/rstored/test/plots/flows"
)

const (
	us       = rdma.Microsecond
	ms       = rdma.Millisecond
	rate     = 1250e6 // of the port, bytes per second
	rateHost = 3125e6
)

// base is what all experiments have in common.
func base() flows.Config {
	return flows.Config{
		Net: sim.Config{Seed: 1, Bandwidth: rateHost, Delay: 10 * us}, Flows: 1, Op: rdma.OpWrite,
		Message: 256 << 10, Depth: 8, Stagger: 200 * us, Port: sim.Port{Rate: rate, Queue: 1 << 20},
	}
}

// line is one curve: what it is called, and what it changes.
type line struct {
	name  string
	color drawing.Color
	dash  bool
	set   func(*flows.Config)
}

// figure is a picture: a configuration for each x.
type figure struct {
	file, title, axis string
	log               bool
	x                 []float64
	at                func(c *flows.Config, x float64)
	lines             []line
	ticks             []chart.Tick
}

var (
	blue  = drawing.Color{R: 31, G: 119, B: 180, A: 255}
	green = drawing.Color{R: 44, G: 160, B: 44, A: 255}
	red   = drawing.Color{R: 214, G: 39, B: 40, A: 255}
)

// pairs are an operation with and without control, for each of two.
func pairs(more ...line) []line {
	return append([]line{
		{"WRITE", blue, false, func(*flows.Config) {}},
		{"READ", green, false, func(c *flows.Config) { c.Op = rdma.OpRead }},
		{"WRITE, fixed window", blue, true, func(c *flows.Config) { c.Fixed = true }},
		{"READ, fixed window", green, true, func(c *flows.Config) { c.Op, c.Fixed = rdma.OpRead, true }},
	}, more...)
}

func loss(file string, delay rdma.Time, title string) figure {
	return figure{
		file: file, title: title, axis: "packets lost", log: true, // a queue that takes the largest window
		x:     []float64{1e-5, 3e-5, 1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 2e-2, 5e-2, 1e-1},
		at:    func(c *flows.Config, x float64) { c.Net.Loss, c.Net.Delay, c.Port.Queue = x, delay, 2<<20 },
		lines: pairs(),
		ticks: []chart.Tick{
			{Value: -5, Label: "0.001 %"},
			{Value: -4, Label: "0.01 %"},
			{Value: -3, Label: "0.1 %"},
			{Value: -2, Label: "1 %"},
			{Value: -1, Label: "10 %"},
		},
	}
}

var figures = []figure{
	loss("loss-20us.svg", 10*us, "Goodput of one connection against loss, round trip 20 us"),
	loss("loss-200us.svg", 100*us, "Goodput of one connection against loss, round trip 200 us"),
	{
		file: "rtt.svg", title: "Goodput of one connection against the round trip, queue of 256 KiB, no random loss",
		axis: "round trip", log: true,
		x: []float64{1e-5, 2e-5, 5e-5, 1e-4, 2e-4, 5e-4, 1e-3, 2e-3, 5e-3},
		at: func(c *flows.Config, x float64) {
			c.Port.Queue, c.Net.Delay = 256<<10, rdma.Time(x/2*float64(rdma.Second))
		},
		lines: pairs(),
		ticks: []chart.Tick{
			{Value: -5, Label: "10 us"},
			{Value: -4, Label: "100 us"},
			{Value: -3, Label: "1 ms"},
			{Value: math.Log10(5e-3), Label: "5 ms"},
		},
	},
	{
		file: "connections.svg", title: "Goodput of all connections through one port, queue of 1 MiB", axis: "connections",
		log:   true,
		x:     []float64{1, 2, 4, 8, 16, 32, 64, 100},
		at:    func(c *flows.Config, x float64) { c.Flows = int(x) },
		lines: pairs(line{"WRITE, port marks from 64 KiB", red, false, func(c *flows.Config) { c.Port.Mark = 64 << 10 }}),
		ticks: []chart.Tick{
			{Value: 0, Label: "1"},
			{Value: math.Log10(4), Label: "4"},
			{Value: math.Log10(16), Label: "16"},
			{Value: 2, Label: "100"},
		},
	},
}

func main() {
	dir := flag.String("o", "docs/plots", "where the pictures go")
	took := flag.Int("ms", 500, "virtual milliseconds of each experiment")
	flag.Parse()
	if err := run(*dir, rdma.Time(*took)*ms); err != nil {
		log.Fatal(err)
	}
}

func run(dir string, d rdma.Time) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	for i := range figures {
		if err := draw(&figures[i], dir, d); err != nil {
			return fmt.Errorf("%s: %w", figures[i].file, err)
		}
	}
	f, err := os.Create(filepath.Join(dir, "shares.svg"))
	if err != nil {
		return err
	}
	defer f.Close()
	if err := shares(f, d); err != nil {
		return err
	}
	if err := f.Close(); err != nil {
		return err
	}
	return drawModel(dir)
}

// measure returns the goodput of each x for each line, as a share of the port.
func measure(g *figure, d rdma.Time) [][]float64 {
	y := make([][]float64, len(g.lines))
	room := make(chan struct{}, runtime.NumCPU())
	var all sync.WaitGroup
	for i := range g.lines {
		y[i] = make([]float64, len(g.x))
		for j := range g.x {
			all.Go(func() {
				room <- struct{}{}
				defer func() { <-room }()
				c := base()
				g.at(&c, g.x[j])
				g.lines[i].set(&c)
				r := flows.Run(c, d/5, d)
				y[i][j] = r.Goodput() / rate
			})
		}
	}
	all.Wait()
	return y
}

func draw(g *figure, dir string, d rdma.Time) error {
	y := measure(g, d)
	x := g.x
	if g.log {
		x = make([]float64, len(g.x))
		for i := range x {
			x[i] = math.Log10(g.x[i])
		}
	}
	c := frame(g.title, g.axis)
	c.XAxis.Ticks = g.ticks
	for i, l := range g.lines {
		s := chart.ContinuousSeries{
			Name: l.name, XValues: x, YValues: y[i],
			Style: chart.Style{StrokeColor: l.color, StrokeWidth: 2, DotColor: l.color, DotWidth: 2},
		}
		if l.dash {
			s.Style.StrokeDashArray = []float64{6, 4}
		}
		c.Series = append(c.Series, s)
		fmt.Printf("%s\t%s", g.file, l.name)
		for j := range g.x {
			fmt.Printf("\t%g: %.3f", g.x[j], y[i][j])
		}
		fmt.Println()
	}
	return save(&c, filepath.Join(dir, g.file))
}

func frame(title, axis string) chart.Chart {
	c := chart.Chart{
		Title: title, TitleStyle: chart.Style{FontSize: 11}, Width: 860, Height: 420,
		Background: chart.Style{Padding: chart.Box{Top: 50, Left: 20, Right: 20, Bottom: 20}},
		XAxis:      chart.XAxis{Name: axis, Style: chart.Style{FontSize: 9}},
		YAxis: chart.YAxis{Name: "share of the port", Range: &chart.ContinuousRange{Min: 0, Max: 1}, Ticks: []chart.Tick{
			{Value: 0, Label: "0"},
			{Value: 0.2, Label: "0.2"},
			{Value: 0.4, Label: "0.4"},
			{Value: 0.6, Label: "0.6"},
			{Value: 0.8, Label: "0.8"},
			{Value: 1, Label: "1"},
		}},
	}
	return c
}

func save(c *chart.Chart, name string) error {
	c.Elements = []chart.Renderable{chart.LegendThin(c)}
	f, err := os.Create(name)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := c.Render(chart.SVG, f); err != nil {
		return err
	}
	return f.Close()
}

// shares draws what each of 100 connections gets of one port.
func shares(f *os.File, d rdma.Time) error {
	c := frame("What each of 100 connections gets of one port, against an even share", "connections, by what they get")
	c.YAxis.Name, c.YAxis.Range, c.YAxis.Ticks = "even shares", &chart.ContinuousRange{Min: 0, Max: 2}, []chart.Tick{
		{Value: 0, Label: "0"},
		{Value: 0.5, Label: "0.5"},
		{Value: 1, Label: "1"},
		{Value: 1.5, Label: "1.5"},
		{Value: 2, Label: "2"},
	}
	for _, l := range []line{
		{"WRITE, queue of 1 MiB", blue, false, func(*flows.Config) {}},
		{"WRITE, port marks from 64 KiB", red, false, func(c *flows.Config) { c.Port.Mark = 64 << 10 }},
		{"READ, queue of 1 MiB", green, false, func(c *flows.Config) { c.Op = rdma.OpRead }},
	} {
		cfg := base()
		cfg.Flows = 100
		l.set(&cfg)
		r := flows.Run(cfg, d/5, d)
		s := chart.ContinuousSeries{
			Name:  fmt.Sprintf("%s: fairness %.3f", l.name, r.Fairness()),
			Style: chart.Style{StrokeColor: l.color, StrokeWidth: 2},
		}
		s.XValues, s.YValues = spread(&r)
		c.Series = append(c.Series, s)
		fmt.Printf("shares.svg\t%s\tfairness %.3f\tgoodput %.3f\n", l.name, r.Fairness(), r.Goodput()/rate)
	}
	c.Elements = []chart.Renderable{chart.LegendThin(&c)}
	return c.Render(chart.SVG, f)
}
