package main

import "testing"

func TestJain(t *testing.T) {
	for _, c := range []struct {
		name   string
		shares []float64
		want   float64
	}{
		{"alike", []float64{3, 3, 3, 3}, 1},
		{"one has all", []float64{0, 8, 0, 0}, 0.25},
		{"two to one", []float64{2, 1}, 0.9},
		{"nothing", []float64{0, 0}, 0},
		{"nobody", nil, 0},
	} {
		if got := jain(c.shares); got != c.want {
			t.Errorf("%s: %v, want %v", c.name, got, c.want)
		}
	}
}
