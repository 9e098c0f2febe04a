//go:build race

package gss

// raceEnabled: a sync.Pool loses things on purpose, so that allocations cannot be counted.
const raceEnabled = true
