//go:build race

package rpc

// raceEnabled: a sync.Pool loses things on purpose, so that allocations cannot be counted.
const raceEnabled = true
