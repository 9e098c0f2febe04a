package main

import (
	"math"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// TestModel: the table of docs/performance.md has the numbers of the model, rounded.
func TestModel(t *testing.T) {
	b, err := os.ReadFile("../../docs/performance.md")
	if err != nil {
		t.Fatal(err)
	}
	rates, mtus := []float64{25e9, 100e9, 100e9, 400e9, 400e9}, []int{4096, 4096, 1024, 4096, 1024}
	number := regexp.MustCompile(`[0-9.]+`)
	for row, of := range map[string][]func(bits float64, mtu int) float64{
		"packets/s, million": {
			func(b float64, m int) float64 { return packets(b, m) / 1e6 },
		},
		"payload, GB/s": {
			func(b float64, m int) float64 { return payload(b, m) / 1e9 },
		},
		"cores of the server for NFS READ of 1 MiB": {
			func(b float64, m int) float64 { return soft(b, m, readCost) },
		},
		"cores of the server for NFS WRITE of 1 MiB, merged, and received one by one": {
			func(b float64, m int) float64 { return soft(b, m, writeCost) }, unmerged,
		},
		"the same over TCP: READ of 1 MiB": {
			func(b float64, m int) float64 { return payload(b, m) * tcpRead },
		},
		"the same where a card does the RDMA, at most": {
			func(b float64, m int) float64 { return payload(b, m) / (1 << 20) * callCost },
		},
	} {
		_, line, ok := strings.Cut(string(b), "\n| "+row+" |")
		if !ok {
			t.Errorf("there is no row %q", row)
			continue
		}
		line, _, _ = strings.Cut(line, "\n")
		got := number.FindAllString(line, -1)
		if len(got) != len(rates)*len(of) {
			t.Errorf("%s: %q", row, got)
			continue
		}
		for i := range rates {
			for j, f := range of {
				want := f(rates[i], mtus[i])
				said, _ := strconv.ParseFloat(got[i*len(of)+j], 64)
				if math.Abs(said-want) > 0.04*want {
					t.Errorf("%s: %s, want %.3g", row, got[i*len(of)+j], want)
				}
			}
		}
	}
}
