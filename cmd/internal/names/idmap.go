package names

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"os/user"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/rstored/rstored/cmd/internal/config"
	"github.com/rstored/rstored/nfs/idmap"
)

// NewIDMap translates between users and names as the configuration says.
func NewIDMap(c *config.IDMap) *idmap.Map {
	domain := c.Domain
	if domain == "" {
		domain = hostDomain()
	}
	return idmap.New(idmap.Config{Domain: domain, Names: c.Method == config.IDNames, Source: hostUsers{}})
}

// noDomain is the domain for names when the host has none.
const noDomain = "localdomain"

// hostDomain is the DNS domain of the host, as far as it is known without a query.
func hostDomain() string {
	name, _ := os.Hostname()
	if _, domain, ok := strings.Cut(name, "."); ok && domain != "" {
		return domain
	}
	b, _ := os.ReadFile("/etc/resolv.conf")
	return resolvDomain(b)
}

// resolvDomain is the domain in a resolv.conf(5).
func resolvDomain(conf []byte) string {
	domain := noDomain
	for line := range bytes.Lines(conf) {
		f := strings.Fields(string(line))
		if len(f) >= 2 && (f[0] == "domain" || f[0] == "search") {
			if d := strings.TrimSuffix(f[1], "."); d != "" {
				domain = d // the last counts
			}
		}
	}
	return domain
}

// hostUsers is the user database of the host: its files, and by getent(1) what else
// nsswitch.conf(5) names.
type hostUsers struct{}

// getentLimit bounds one question, as a directory service may not answer.
const getentLimit = 5 * time.Second

// Name implements idmap.Source.
func (hostUsers) Name(id uint32, group bool) (string, error) {
	s := strconv.FormatUint(uint64(id), 10)
	if group {
		if g, err := user.LookupGroupId(s); err == nil {
			return g.Name, nil
		}
	} else if u, err := user.LookupId(s); err == nil {
		return u.Username, nil
	}
	name, _, err := getent(s, group)
	return name, err
}

// ID implements idmap.Source.
func (hostUsers) ID(name string, group bool) (uint32, error) {
	if _, ok := idmap.Number([]byte(name)); ok {
		return 0, idmap.ErrUnknown // getent would take it for a number
	}
	var s string
	if group {
		if g, err := user.LookupGroup(name); err == nil {
			s = g.Gid
		}
	} else if u, err := user.Lookup(name); err == nil {
		s = u.Uid
	}
	if s == "" {
		got, id, err := getent(name, group)
		if err != nil {
			return 0, err
		}
		if got != name {
			return 0, idmap.ErrUnknown
		}
		s = id
	}
	n, ok := idmap.Number([]byte(s))
	if !ok {
		return 0, idmap.ErrUnknown
	}
	return n, nil
}

// Groups implements idmap.Source.
func (h hostUsers) Groups(uid uint32) ([]uint32, error) {
	number := strconv.FormatUint(uint64(uid), 10)
	var name, gid string
	var listed []string // of the files
	if u, err := user.LookupId(number); err == nil {
		name, gid = u.Username, u.Gid
		listed, _ = u.GroupIds()
	} else {
		f, err := getentry("passwd", number)
		if err != nil {
			return nil, err
		}
		const fields = 4
		if len(f) < fields {
			return nil, idmap.ErrUnknown
		}
		name, gid = f[0], f[3]
	}
	// initgroups asks everything that nsswitch.conf(5) names.
	if out, err := getentRaw("initgroups", name); err == nil {
		if f := strings.Fields(out); len(f) > 1 {
			listed = append(listed, f[1:]...)
		}
	} else if !errors.Is(err, idmap.ErrUnknown) && listed == nil {
		return nil, err
	}
	var out []uint32
	for _, g := range append([]string{gid}, listed...) {
		if n, ok := idmap.Number([]byte(g)); ok && !slices.Contains(out, n) {
			out = append(out, n)
		}
	}
	return out, nil
}

// getent asks for a user or a group by name or number.
func getent(key string, group bool) (name, id string, err error) {
	table := "passwd"
	if group {
		table = "group"
	}
	f, err := getentry(table, key)
	if err != nil {
		return "", "", err
	}
	return f[0], f[2], nil
}

// getentry asks for an entry of users or groups.
func getentry(table, key string) ([]string, error) {
	out, err := getentRaw(table, key)
	if err != nil {
		return nil, err
	}
	f := strings.Split(strings.TrimSpace(out), ":")
	if len(f) < 3 || f[0] == "" {
		return nil, idmap.ErrUnknown
	}
	return f, nil
}

// getentRaw asks getent(1).
func getentRaw(table, key string) (string, error) {
	const notFound = 2
	if strings.HasPrefix(key, "-") || key == "" {
		return "", idmap.ErrUnknown
	}
	path, err := exec.LookPath("getent")
	if err != nil {
		return "", idmap.ErrUnknown
	}
	ctx, cancel := context.WithTimeout(context.Background(), getentLimit)
	defer cancel()
	out, err := exec.CommandContext(ctx, path, table, key).Output()
	var exit *exec.ExitError
	if errors.As(err, &exit) && exit.ExitCode() == notFound {
		return "", idmap.ErrUnknown
	}
	return string(out), err
}
