//go:build !amd64

package gss

import "crypto/sha1" //nolint:gosec // of the enctypes of RFC 3962, which today's kernels have

const hasSHA = false

func hashBlocks(*[sha1.Size]byte, *byte, int) {}
