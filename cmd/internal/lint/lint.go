// Package lint holds the laws of the tree as tests: which package may import
// which, what a pure package may not touch, what sources may not say, and that
// what the documentation shows exists. It has no code of its own.
package lint
