package service

import (
	"testing"

	"github.com/rstored/rstored/cmd/internal/control"
)

// TestAccountMemory: page cache is told from memory of the process, and is not more than is mapped.
func TestAccountMemory(t *testing.T) {
	const text = "Name:\trstored\nVmRSS:\t 4200000 kB\nRssAnon:\t  200000 kB\nRssFile:\t 3900000 kB\n" +
		"RssShmem:\t  100000 kB\nThreads:\t9\n"
	for _, c := range []struct{ mapped, lent, own int64 }{
		{4 << 30, 4_000_000 << 10, 200_000 << 10}, {1 << 30, 1 << 30, 4_200_000<<10 - 1<<30}, {0, 0, 4_200_000 << 10},
	} {
		m := accountMemory(control.ProcessMemory{Mapped: c.mapped}, []byte(text))
		if m.Resident != 4_200_000<<10 || m.Lent != c.lent || m.Own != c.own {
			t.Errorf("%d bytes mapped: %+v", c.mapped, m)
		}
	}
}
