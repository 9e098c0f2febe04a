package client

import "fmt"

// Version is a version of NFS. The zero value leaves the choice to the client, which
// tries the highest first, as the kernel's mount does.
type Version uint8

// Versions that the client speaks.
const (
	VersionAuto Version = 0
	Version3    Version = 30
	Version41   Version = 41
	Version42   Version = 42
)

// ParseVersion reads a version as users write it: 3, 4.1 or 4.2. 4 is the highest version 4, and an
// empty string leaves the choice to the client.
func ParseVersion(s string) (Version, error) {
	switch s {
	case "", "auto":
		return VersionAuto, nil
	case "3":
		return Version3, nil
	case "4.1":
		return Version41, nil
	case "4", "4.2":
		return Version42, nil
	}
	return 0, fmt.Errorf("unknown NFS version %q: use 3, 4.1 or 4.2", s)
}

// String returns the version as ParseVersion reads it.
func (v Version) String() string {
	switch v {
	case VersionAuto:
		return "auto"
	case Version3:
		return "3"
	}
	return fmt.Sprintf("%d.%d", v/10, v%10)
}

// minor returns the minor version of version 4.
func (v Version) minor() uint32 { return uint32(v % 10) }
