package main

import (
	"fmt"
	"math"
	"path/filepath"

	"github.com/wcharczuk/go-chart/v2"
)

// The model of docs/measuring.md: what was measured on one virtual machine, carried to faster
// networks. docs/performance.md has its numbers in a table, which TestModel holds against it.
const (
	framing = 82 // bytes of a packet on the line that are not payload

	readCost   = 0.29 / (1 << 30) // seconds of the server for each byte of a READ
	writeCost  = 0.28 / (1 << 30)
	tcpRead    = 0.40 / (1 << 30) // over TCP, whose segments the card makes
	packetCost = 0.3e-6           // seconds for each packet more than at path MTU 4096
	callCost   = 10e-6            // seconds of a call of 1 MiB where a card does the RDMA: the upper end of an estimate
)

// onePacket are the seconds that a packet adds to a WRITE if nobody merges packets, by path MTU.
var onePacket = map[int]float64{4096: 1.425e-6, 1024: 1.7e-6}

// packets are those that a line of bits a second carries.
func packets(bits float64, mtu int) float64 { return bits / 8 / float64(mtu+framing) }

// payload are bytes a second.
func payload(bits float64, mtu int) float64 { return packets(bits, mtu) * float64(mtu) }

// soft is the number of cores that a server needs for calls of 1 MiB in software.
func soft(bits float64, mtu int, cost float64) float64 {
	bytes := payload(bits, mtu)
	return bytes*cost + (packets(bits, mtu)-bytes/4096)*packetCost
}

// unmerged is soft for WRITEs whose packets arrive one by one.
func unmerged(bits float64, mtu int) float64 {
	return soft(bits, mtu, writeCost) + packets(bits, mtu)*onePacket[mtu]
}

// drawModel draws the cores of a server against the rate of the line, for path MTUs in software,
// for TCP, and for a card that does the RDMA.
func drawModel(dir string) error {
	c := frame("Cores of a server for calls of 1 MiB (estimate)", "Gb/s of the line")
	c.YAxis.Name, c.YAxis.Range, c.YAxis.Ticks = "cores", &chart.ContinuousRange{Min: -2, Max: 2}, nil
	for _, v := range []float64{0.01, 0.1, 1, 10, 100} {
		c.YAxis.Ticks = append(c.YAxis.Ticks, chart.Tick{Value: math.Log10(v), Label: fmt.Sprint(v)})
	}
	rates := []float64{10, 25, 50, 100, 200, 400}
	for _, g := range rates {
		c.XAxis.Ticks = append(c.XAxis.Ticks, chart.Tick{Value: math.Log10(g), Label: fmt.Sprint(g)})
	}
	for _, l := range []struct {
		line
		cores func(bits float64) float64
	}{
		{line{"WRITE 1024, not merged", red, true, nil}, func(b float64) float64 { return unmerged(b, 1024) }},
		{line{"WRITE 4096, not merged", blue, true, nil}, func(b float64) float64 { return unmerged(b, 4096) }},
		{line{"READ 1024", red, false, nil}, func(b float64) float64 {
			return soft(b, 1024, readCost)
		}},
		{line{"READ, TCP", green, true, nil}, func(b float64) float64 { return payload(b, 4096) * tcpRead }},
		{line{"READ 4096", blue, false, nil}, func(b float64) float64 {
			return soft(b, 4096, readCost)
		}},
		{line{"READ, card", green, false, nil}, func(b float64) float64 {
			return payload(b, 4096) / (1 << 20) * callCost
		}},
	} {
		s := chart.ContinuousSeries{
			Name: l.name, Style: chart.Style{StrokeColor: l.color, StrokeWidth: 2, DotColor: l.color, DotWidth: 2},
		}
		if l.dash {
			s.Style.StrokeDashArray = []float64{6, 4}
		}
		for _, g := range rates {
			s.XValues, s.YValues = append(s.XValues, math.Log10(g)), append(s.YValues, math.Log10(l.cores(g*1e9)))
		}
		c.Series = append(c.Series, s)
	}
	return save(&c, filepath.Join(dir, "cores.svg"))
}
