package config

import (
	"fmt"
	"slices"
	"strings"
)

// Versions of NFS, as nfs_versions spells them.
const (
	Version3  = "3"
	Version40 = "4.0"
	Version41 = "4.1"
	Version42 = "4.2"
)

var nfsVersions = []string{Version3, Version40, Version41, Version42}

// normalizeVersions normalizes the spelling of versions. A YAML file without quotation marks has
// 4.0 as the number 4.
func normalizeVersions(list []string) ([]string, error) {
	var out []string
	for _, v := range list {
		v = strings.TrimPrefix(strings.TrimSpace(v), "v")
		switch v {
		case "4":
			v = Version40
		case "3.0":
			v = Version3
		}
		if !slices.Contains(nfsVersions, v) {
			return nil, fmt.Errorf("%q is not one of %s", v, strings.Join(nfsVersions, ", "))
		}
		if !slices.Contains(out, v) {
			out = append(out, v)
		}
	}
	if len(out) == 0 {
		return nil, fmt.Errorf("the list is empty; name some of %s", strings.Join(nfsVersions, ", "))
	}
	slices.Sort(out)
	return out, nil
}

// Minors are the minor versions of version 4 in a normalized list.
func (c *Config) Minors() (out []uint32) {
	for i, v := range nfsVersions[1:] {
		if slices.Contains(c.NFSVersions, v) {
			out = append(out, uint32(i))
		}
	}
	return out
}

// Ways to identify users and groups in version 4.
const (
	IDNumeric = "numeric" // by number
	IDNames   = "names"   // user@domain
)

// IDMap configures names of users and groups in version 4.
type IDMap struct {
	// Domain is what names end with; empty means that of the host.
	Domain string `mapstructure:"domain" yaml:"domain"`
	Method string `mapstructure:"method" yaml:"method"`
}

const maxDomain = 253

func (m *IDMap) validate() error {
	switch {
	case m.Method != IDNumeric && m.Method != IDNames:
		return fmt.Errorf("method %q is neither %s nor %s", m.Method, IDNumeric, IDNames)
	case len(m.Domain) > maxDomain, strings.ContainsAny(m.Domain, "@ \t\n\x00/:"):
		return fmt.Errorf("%q is not a domain name", m.Domain)
	}
	return nil
}

// Values of ha_promote.
const (
	PromoteAuto    = "auto"    // a standby takes a free lease by itself
	PromoteAddress = "address" // by itself, while its host has an address of rdma_listen or tcp_listen
	PromoteManual  = "manual"  // it waits for 'rstorectl ha promote', or to be handed over to
)

// Values of showmount.
const (
	ShowOwn = "own" // exports that the client may mount, and its own mounts
	ShowAll = "all" // all exports with all their clients, and the mounts of everybody
)

// Values of utf8.
const (
	UTF8Any    = "any"    // bytes
	UTF8Strict = "strict" // UTF-8 alone
)

const minNFS4Memory = 1 << 20

// NFS4MemoryBytes returns the limits for the state of clients of version 4, in bytes: of all hosts
// and of one.
func (c *Config) NFS4MemoryBytes() (all, client int64) {
	a, _ := ParseRate(c.NFS4Memory) // Validate has seen them
	b, _ := ParseRate(c.NFS4ClientMemory)
	return int64(a), int64(b)
}

func (c *Config) validateNFS4Memory() error {
	const atLeast = 16
	all, err := ParseRate(c.NFS4Memory)
	if err != nil || all < atLeast*minNFS4Memory || all > maxMemory {
		return fmt.Errorf("nfs4_memory: %q is not a number of bytes from 16M to 1T", c.NFS4Memory)
	}
	if client, err := ParseRate(c.NFS4ClientMemory); err != nil || client < minNFS4Memory || client > all {
		return fmt.Errorf("nfs4_client_memory: %q is not a number of bytes from 1M to nfs4_memory", c.NFS4ClientMemory)
	}
	return nil
}

// Bounds of mapped_memory: one window of a store, and as many as a process can have
// (posixfs.MappedMax).
const (
	minMapped = 4 << 20
	maxMapped = 64 << 30
)

func parseMapped(s string) (n uint64, ok bool) {
	if s == "0" {
		return 0, true
	}
	n, err := ParseRate(s)
	return n, err == nil && n > 0 && n <= maxMapped
}

func (c *Config) validateMapped() error {
	if n, ok := parseMapped(c.MappedMemory); !ok || n != 0 && n < minMapped {
		return fmt.Errorf("mapped_memory: %q is neither 0 nor a number of bytes from 4M to 64G", c.MappedMemory)
	}
	return nil
}

// MappedBytes is MappedMemory in bytes.
func (c *Config) MappedBytes() int64 {
	n, _ := parseMapped(c.MappedMemory) // Validate has seen it
	return int64(n)
}
