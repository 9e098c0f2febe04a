package devices

import (
	"errors"
	"fmt"
	"slices"

	"go.uber.org/zap"

	"github.com/rstored/rstored/cmd/internal/config"
	"github.com/rstored/rstored/cmd/internal/control"
	"github.com/rstored/rstored/rdma/roce"
)

// fullMember is the bit of a P_Key that says that the membership is full.
const fullMember = 0x8000

// partition returns the partition that a P_Key names, without the membership.
func partition(s string) uint16 {
	k, _ := config.ParsePKey(s) // it was parsed before
	return k &^ fullMember
}

// PKeys lists the P_Keys of the configuration, changed by those that were added and removed at run
// time. A connection that asks for none gets the first.
func (s *Set) PKeys() []control.PKey {
	added, removed := s.State.PKeys()
	var out []control.PKey
	for _, k := range s.Settings().PKeys {
		if !slices.Contains(removed, k) {
			out = append(out, control.PKey{PKey: k, Origin: control.OriginConfig})
		}
	}
	for _, k := range added {
		if !slices.ContainsFunc(out, func(o control.PKey) bool { return partition(o.PKey) == partition(k) }) {
			out = append(out, control.PKey{PKey: k, Origin: control.OriginRuntime})
		}
	}
	if len(out) == 0 {
		out = append(out, control.PKey{PKey: config.DefaultPKey, Origin: control.OriginConfig})
	}
	for i := range out {
		out[i].Membership = "limited"
		if k, _ := config.ParsePKey(out[i].PKey); k&fullMember != 0 {
			out[i].Membership = "full"
		}
	}
	return out
}

// pkeyTable returns PKeys as numbers.
func (s *Set) pkeyTable() (out []uint16) {
	for _, p := range s.PKeys() {
		k, _ := config.ParsePKey(p.PKey)
		out = append(out, k)
	}
	return out
}

// ApplyPKeys writes the P_Key tables of the devices in user space. The subnet manager writes those
// of the kernel's devices. Connections in a partition that a device leaves are closed.
func (s *Set) ApplyPKeys() error {
	table := s.pkeyTable()
	var errs []error
	for _, v := range s.soft() {
		if !slices.Equal(v.Soft.PKeys(), table) {
			s.Log.Info("partitions changed", zap.Stringer("device", v.Choice.Addr), zap.Int("partitions", len(table)))
			errs = append(errs, v.Soft.SetPKeys(table))
		}
	}
	return errors.Join(errs...)
}

// AddPKey adds a P_Key at run time, and remembers it. Changes of P_Keys must not run at the same
// time.
func (s *Set) AddPKey(key string) error {
	return s.changePKey(key, s.State.PutPKey, func(now []control.PKey, key string) error {
		if slices.ContainsFunc(now, func(o control.PKey) bool { return partition(o.PKey) == partition(key) }) {
			return fmt.Errorf("partition %#x: %w; remove its key first", partition(key), control.ErrConflict)
		}
		if len(now) >= roce.PKeysMax {
			return fmt.Errorf("a device is in %d partitions at most", roce.PKeysMax)
		}
		return nil
	})
}

// RemovePKey removes a P_Key at run time, and remembers that.
func (s *Set) RemovePKey(key string) error {
	return s.changePKey(key, s.State.RemovePKey, func(now []control.PKey, key string) error {
		if !slices.ContainsFunc(now, func(o control.PKey) bool { return o.PKey == key }) {
			return fmt.Errorf("partition key %s: %w", key, control.ErrNotFound)
		}
		if len(now) == 1 {
			return errors.New("the last partition key cannot be removed: add another first")
		}
		return nil
	})
}

// changePKey saves and applies a change that check allows.
func (s *Set) changePKey(
	key string, save func(key string, configured bool) error, check func(now []control.PKey, key string) error,
) error {
	k, err := config.ParsePKey(key)
	if err != nil {
		return err
	}
	key = config.PKeyString(k)
	if err := check(s.PKeys(), key); err != nil {
		return err
	}
	if err := save(key, slices.Contains(s.Settings().PKeys, key)); err != nil {
		return err
	}
	return s.ApplyPKeys()
}
