package service

import (
	"bytes"
	"os"
	"strconv"

	"github.com/rstored/rstored/cmd/internal/control"
)

// LimitMapped bounds the page cache that exports lend, in bytes.
func (s *Service) LimitMapped(bytes int64) { s.Files.LimitMapped(bytes) }

// ProcessMemory is the memory of the process.
func (s *Service) ProcessMemory() control.ProcessMemory {
	m := control.ProcessMemory{Mapped: s.Files.Mapped(), Limit: s.Settings().MappedBytes()}
	text, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return m // without /proc the kernel does not say
	}
	return accountMemory(m, text)
}

// accountMemory fills in what the kernel says (proc_pid_status(5)).
func accountMemory(m control.ProcessMemory, text []byte) control.ProcessMemory {
	var shared int64
	for line := range bytes.Lines(text) {
		key, value, _ := bytes.Cut(line, []byte(":"))
		n, err := strconv.ParseInt(string(bytes.TrimSuffix(bytes.TrimSpace(value), []byte(" kB"))), 10, 53)
		if err != nil {
			continue
		}
		const unit = 1 << 10
		switch string(key) {
		case "VmRSS":
			m.Resident = n * unit
		case "RssFile", "RssShmem": // files, and those of tmpfs
			shared += n * unit
		}
	}
	m.Lent = min(shared, m.Mapped)
	m.Own = m.Resident - m.Lent
	return m
}
