package main

import (
	"slices"

	"github.com/rstored/rstored/test/plots/flows"
)

// spread is the bytes of each flow as multiples of an even share, least first.
func spread(r *flows.Result) (x, y []float64) {
	sum := int64(0)
	for _, b := range r.Bytes {
		sum += b
	}
	bytes := slices.Clone(r.Bytes)
	slices.Sort(bytes)
	for i, b := range bytes {
		x = append(x, float64(i+1))
		y = append(y, float64(b)*float64(len(bytes))/float64(max(sum, 1)))
	}
	return x, y
}
