// Package lint holds the laws of the tree as tests: which package may import which, what a pure
// package may not touch, what sources may not say, that each package says where to begin, and that
// what the documentation shows exists. It has no code of its own, and knows nothing of what the
// packages do.
//
// Begin reading at law_test.go, the table of the imports. The tests read files and may run in any
// order, at the same time.
//
//	go test ./cmd/internal/lint
package lint
