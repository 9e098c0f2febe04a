package main

import (
	"bytes"
	"encoding/json"
	"encoding/xml"
	"io"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/rstored/rstored/test/bench/compare"
)

// measured is a run of a part with two rounds, in which everything is twice and four times X.
func measured(p *part) *partRun {
	r := &partRun{Rounds: 2, Seconds: 0.5, Host: compare.Host{Cores: 2, Versions: map[string]string{"rstored": "v1"}}}
	for _, x := range p.points {
		g := grown{point: x}
		for _, f := range []float64{2, 4} {
			v := f * float64(x.X)
			g.Readings = append(g.Readings, reading{
				Sample: compare.Sample{Rate: v * 1e9, Ops: v, P50: v, P99: v, PerOp: v, PerGiB: v}, Packet: (v + 30) * 1e-6,
				ByPeer: v, Jain: 1, Memory: v, Idle: v, Busy: v,
			})
		}
		r.Points = append(r.Points, g)
	}
	return r
}

// TestParts: parts and their points are there once, and each part can be asked for.
func TestParts(t *testing.T) {
	names := make(map[string]bool)
	for _, p := range parts() {
		if names[p.name] {
			t.Errorf("%s is there twice", p.name)
		}
		names[p.name] = true
		seen := make(map[point]bool)
		for _, x := range p.points {
			if seen[x] {
				t.Errorf("%s: %+v is there twice", p.name, x)
			}
			seen[x] = true
		}
		ps, err := wantedParts(regexp.MustCompile("^" + p.name + "$"))
		if err != nil || len(ps) != 1 || ps[0].name != p.name {
			t.Errorf("%s: %d parts, %v", p.name, len(ps), err)
		}
	}
	if _, err := wantedParts(regexp.MustCompile("nothing")); err == nil {
		t.Error("there is a part called nothing")
	}
}

// TestScalingReport: what was measured is in all forms of the results.
func TestScalingReport(t *testing.T) {
	s := make(scaling)
	ps := parts()
	for i := range ps {
		s[ps[i].name] = measured(&ps[i])
	}
	s["clients"].Points[1] = grown{point: s["clients"].Points[1].point, Err: "refused\nagain"}
	var md, js, text, svg bytes.Buffer
	for _, err := range []error{s.markdown(&md), compare.JSON(&js, s), s.Plot(&svg)} {
		if err != nil {
			t.Fatal(err)
		}
	}
	s.Text(&text)
	for _, want := range []string{
		"| WRITE | 2 | 16 | 48 | 48 | 48 |", "| SEND of one packet | 64 | 192 | 192 | 222 |",
		"| READ 4 KiB | 1 | 10 | not measured: refused | - |",
		"- READ: 30 us + n × 3000 ns", "Medians of 2 rounds of 0.5 s. 2 cores", "rstored v1",
	} {
		if !strings.Contains(md.String(), want) {
			t.Errorf("%q is missing in\n%s", want, md.String())
		}
	}
	if !strings.Contains(text.String(), "not measured: refused") {
		t.Errorf("the text is\n%s", text.String())
	}
	if err := s.Failed(); err == nil || !strings.Contains(err.Error(), "refused") {
		t.Errorf("the run passes: %v", err)
	}
	back := make(scaling)
	if err := json.Unmarshal(js.Bytes(), &back); err != nil ||
		back["blocks"].Points[3].Readings[1] != s["blocks"].Points[3].Readings[1] {
		t.Errorf("%+v, %v", back["blocks"], err)
	}
	for d := xml.NewDecoder(bytes.NewReader(svg.Bytes())); ; {
		if _, err := d.Token(); err == io.EOF {
			break
		} else if err != nil {
			t.Fatal(err)
		}
	}
	for _, p := range ps {
		for _, c := range p.columns {
			if want := p.title + ": " + c.axis; c.axis != "" && !strings.Contains(svg.String(), want) {
				t.Errorf("there is no panel %q", want)
			}
		}
	}
}

// TestMerge: parts that were not measured again stay as they are.
func TestMerge(t *testing.T) {
	file := filepath.Join(t.TempDir(), "scaling.json")
	s := scaling{"blocks": &partRun{Rounds: 1}}
	if err := s.merge(file); err != nil || len(s) != 1 {
		t.Fatalf("%v, %v", s, err)
	}
	if err := os.WriteFile(file, []byte(`{"blocks":{"rounds":7},"clients":{"rounds":8},"gone":{"rounds":9}}`),
		0o600); err != nil {
		t.Fatal(err)
	}
	if err := s.merge(file); err != nil || len(s) != 2 || s["blocks"].Rounds != 1 || s["clients"].Rounds != 8 {
		t.Errorf("%v, %v", s, err)
	}
	if err := os.WriteFile(file, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := s.merge(file); err == nil {
		t.Error("nonsense was read")
	}
}

func TestFit(t *testing.T) {
	packet := func(r *reading) float64 { return r.Packet }
	r := &partRun{}
	for x, y := range map[int]float64{1: 5, 10: 23, 100: 203} {
		r.Points = append(r.Points, grown{point: point{Op: "a", X: x}, Readings: []reading{{Packet: y}}})
	}
	r.Points = append(r.Points, grown{point: point{Op: "b", X: 1}, Readings: []reading{{Packet: 9}}},
		grown{point: point{Op: "a", X: 50}, Err: "refused"})
	if a, b, ok := r.fit("a", packet); !ok || math.Abs(a-3) > 1e-6 || math.Abs(b-2) > 1e-6 {
		t.Errorf("%v + %v x, %v", a, b, ok)
	}
	if _, _, ok := r.fit("b", packet); ok {
		t.Error("a line goes through one point")
	}
}

// TestEntries: a directory has as many files, and is made once.
func TestEntries(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "d")
	for _, n := range []int{12, 99} {
		if err := entries(dir, n); err != nil {
			t.Fatal(err)
		}
		found, err := os.ReadDir(dir)
		if err != nil || len(found) != 12 || found[11].Name() != "name-000011" || !found[0].Type().IsRegular() {
			t.Fatalf("%v, %v", found, err)
		}
	}
}

func TestSteps(t *testing.T) {
	for _, c := range []struct {
		low, high float64
		log       bool
		n         int
	}{{0, 5, false, 6}, {0, 0.9, false, 10}, {0, 30, false, 8}, {1, 1000, true, 4}, {0.1, 1, true, 2}} {
		if got := steps(c.low, c.high, c.log); len(got) != c.n {
			t.Errorf("%v to %v: %v", c.low, c.high, got)
		}
	}
}

func TestAmount(t *testing.T) {
	for n, want := range map[int]string{
		10: "10", 1000: "1000", 512: "512", 4096: "4 Ki", 8 << 20: "8 Mi",
		1_000_000: "1000000",
	} {
		if got := amount(n); got != want {
			t.Errorf("%d is %q, want %q", n, got, want)
		}
	}
}
