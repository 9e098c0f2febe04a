package wire

import "testing"

// crcImplementations yields the names of the implementations. During each step crcOf uses that one.
func crcImplementations(t testing.TB) func(func(int, string) bool) {
	avx, avx512 := hasAVX, hasAVX512
	t.Cleanup(func() { hasAVX, hasAVX512 = avx, avx512 })
	return func(yield func(int, string) bool) {
		defer func() { hasAVX, hasAVX512 = avx, avx512 }()
		for i, c := range []struct {
			name        string
			avx, avx512 bool
		}{{"go", false, false}, {"avx", true, false}, {"avx512", true, true}} {
			if c.avx && !avx || c.avx512 && !avx512 {
				t.Logf("this processor cannot do %s", c.name)
				continue
			}
			hasAVX, hasAVX512 = c.avx, c.avx512
			if !yield(i, c.name) {
				return
			}
		}
	}
}

// TestCRCTable compares the computed constants with those of Intel's paper.
func TestCRCTable(t *testing.T) {
	for _, c := range []struct {
		row, column int
		want        uint64
	}{
		{2, 0, 0x154442bd4},
		{2, 1, 0x1c6e41596}, // 512
		{4, 0, 0x1751997d0},
		{4, 1, 0x0ccaa009e}, // 128
		{5, 0, 0x163cd6124},
		{6, 0, 0x1db710641},
		{6, 1, 0x1f7011641},
	} {
		if got := crcTable[c.row][c.column]; got != c.want {
			t.Errorf("row %d, column %d is %#x, want %#x", c.row, c.column, got, c.want)
		}
	}
}
