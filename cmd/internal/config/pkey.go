package config

import (
	"fmt"
	"strconv"
	"strings"
)

// DefaultPKey is the default partition, with full membership.
const DefaultPKey = "0xffff"

// ParsePKey reads a partition key: 16 bits; the highest one says full member, as 0x8001 or in
// decimal.
func ParsePKey(s string) (uint16, error) {
	n, err := strconv.ParseUint(strings.TrimSpace(s), 0, 16)
	if err != nil || n&0x7fff == 0 {
		return 0, fmt.Errorf("%q is not a partition key: 0x8001 is full membership in partition 1, 0x0001 limited", s)
	}
	return uint16(n), nil
}

// PKeyString is a partition key in the spelling of the lists.
func PKeyString(k uint16) string { return fmt.Sprintf("%#04x", k) }

// normalizePKeys brings partition keys into one spelling each.
func normalizePKeys(keys []string) error {
	seen := make(map[uint16]bool)
	for i, s := range keys {
		k, err := ParsePKey(s)
		if err != nil {
			return err
		}
		if seen[k&0x7fff] {
			return fmt.Errorf("partition %#x is listed twice", k&0x7fff)
		}
		seen[k&0x7fff] = true
		keys[i] = PKeyString(k)
	}
	return nil
}
