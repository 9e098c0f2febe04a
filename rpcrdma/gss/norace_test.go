//go:build !race

package gss

const raceEnabled = false
