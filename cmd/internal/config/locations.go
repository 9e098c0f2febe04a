package config

import (
	"errors"
	"fmt"
	"net/netip"
	"path"
	"strings"

	"github.com/rstored/rstored/nfs"
)

// locationsMax bounds the locations of an export, and the servers of each.
const locationsMax = 64

// Locations returns the other places of the export's data. moved says that the data is there and
// not here.
func (e *Export) Locations() (list []nfs.Location, moved bool, err error) {
	switch {
	case e.Refer != "" && e.Replicas != "":
		return nil, false, errors.New("refer and replicas exclude each other: the data is elsewhere, or here too")
	case e.Refer != "":
		list, err = ParseLocations(e.Refer)
		return list, err == nil, err
	case e.Replicas != "":
		list, err = ParseLocations(e.Replicas)
	}
	return list, false, err
}

// ParseLocations reads locations as exports(5) has them:
//
//	PATH@HOST[+HOST]...[:PATH@HOST[+HOST]...]...
//
// A host is a name or an address, one of IPv6 in brackets. Clients connect to the port that is
// usual for NFS.
func ParseLocations(s string) ([]nfs.Location, error) {
	var list []nfs.Location
	for _, part := range splitLocations(s) {
		where, hosts, found := strings.Cut(part, "@")
		if !found || !path.IsAbs(where) {
			return nil, fmt.Errorf("location %q is not PATH@HOST, with a PATH that begins with /", part)
		}
		l := nfs.Location{Path: path.Clean(where)}
		for h := range strings.SplitSeq(hosts, "+") {
			name, err := serverName(h)
			if err != nil {
				return nil, fmt.Errorf("location %q: %w", part, err)
			}
			l.Servers = append(l.Servers, name)
		}
		if list = append(list, l); len(list) > locationsMax || len(l.Servers) > locationsMax {
			return nil, fmt.Errorf("more than %d locations, or hosts in one", locationsMax)
		}
	}
	return list, nil
}

// splitLocations splits at colons that are not within brackets.
func splitLocations(s string) (parts []string) {
	depth, from := 0, 0
	for i, c := range s {
		switch c {
		case '[':
			depth++
		case ']':
			depth--
		case ':':
			if depth == 0 {
				parts, from = append(parts, s[from:i]), i+1
			}
		}
	}
	return append(parts, s[from:])
}

// serverName checks a host, and takes an address out of its brackets.
func serverName(h string) (string, error) {
	if in, ok := strings.CutPrefix(h, "["); ok {
		in, ok = strings.CutSuffix(in, "]")
		if a, err := netip.ParseAddr(in); !ok || err != nil || !a.Is6() {
			return "", fmt.Errorf("%q is no IPv6 address in brackets", h)
		}
		return in, nil
	}
	const hostMax = 255
	if h == "" || len(h) > hostMax || strings.ContainsAny(h, "/@[]: \t\n\x00") {
		return "", fmt.Errorf("%q is neither a host name nor an address", h)
	}
	return h, nil
}
