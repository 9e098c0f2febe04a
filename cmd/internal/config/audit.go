package config

import (
	"fmt"
	"path/filepath"
	"strings"
)

// Destinations of the audit log, besides "file PATH".
const (
	AuditLog = "log" // to the log, with the logger's name "audit", whatever the level
	AuditOff = "off"
)

// ParseAudit parses the setting. file is the path in "file PATH", and empty for AuditLog and
// AuditOff.
func ParseAudit(s string) (file string, err error) {
	if s == AuditLog || s == AuditOff {
		return "", nil
	}
	file, ok := strings.CutPrefix(s, "file ")
	if file = strings.TrimSpace(file); !ok || !filepath.IsAbs(file) {
		return "", fmt.Errorf("%q is not one of %s, %s, 'file PATH' with an absolute path", s, AuditLog, AuditOff)
	}
	return file, nil
}
