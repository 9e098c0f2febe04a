//go:build race

package gss

// raceEnabled: with the race detector a sync.Pool drops values at random, so tests cannot count
// allocations.
const raceEnabled = true
