package gss

import (
	"crypto/sha1" //nolint:gosec // of the enctypes of RFC 3962, which today's kernels have

	"golang.org/x/sys/cpu"
)

// hasSHA says that the processor has instructions for SHA-1. With them it has SSE4.1.
var hasSHA = cpu.X86.HasSSE41 && cpuid7()&(1<<29) != 0

// hashBlocks continues a digest with the n bytes at p, whole blocks of SHA-1 and at least one.
//
//go:noescape
func hashBlocks(digest *[sha1.Size]byte, p *byte, n int)

// cpuid7 is EBX of CPUID leaf 7, or 0 if the processor has no such leaf.
//
//go:noescape
func cpuid7() (ebx uint32)
