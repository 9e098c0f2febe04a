//go:build !amd64

package wire

import "testing"

func crcImplementations(testing.TB) []string { return []string{"go"} }
