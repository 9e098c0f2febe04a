package config

import (
	"fmt"
	"path/filepath"
	"strings"
)

// Where the audit log goes, beside "file PATH".
const (
	AuditLog = "log" // to the log, with the logger's name "audit", whatever the level
	AuditOff = "off"
)

// ParseAudit takes the setting apart: file is the path of "file PATH", and empty for AuditLog
// and AuditOff.
func ParseAudit(s string) (file string, err error) {
	if s == AuditLog || s == AuditOff {
		return "", nil
	}
	file, ok := strings.CutPrefix(s, "file ")
	if file = strings.TrimSpace(file); !ok || !filepath.IsAbs(file) {
		return "", fmt.Errorf("%q is none of %s, %s, 'file PATH' with an absolute path", s, AuditLog, AuditOff)
	}
	return file, nil
}
