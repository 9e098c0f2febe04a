package daemon

import (
	"errors"
	"fmt"
	"slices"

	"go.uber.org/zap"

	"github.com/rstored/rstored/cmd/internal/config"
	"github.com/rstored/rstored/cmd/internal/control"
	"github.com/rstored/rstored/rdma/roce"
)

// desiredPKeys merges the configured partition keys with those changed at run time. The
// first is that of connections that ask for none.
func desiredPKeys(configured, added, removed []string) []control.PKey {
	var out []control.PKey
	for _, k := range configured {
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
		if k, _ := config.ParsePKey(out[i].PKey); k&0x8000 != 0 {
			out[i].Membership = "full"
		}
	}
	return out
}

// partition is what a key names, without its membership.
func partition(s string) uint16 {
	k, _ := config.ParsePKey(s) // only keys that were parsed before come here
	return k & 0x7fff
}

// pkeys is the table for the devices.
func (d *Daemon) pkeys() []uint16 {
	var out []uint16
	for _, p := range d.PKeys() {
		k, _ := config.ParsePKey(p.PKey)
		out = append(out, k)
	}
	return out
}

// PKeys implements control.Backend.
func (d *Daemon) PKeys() []control.PKey {
	added, removed := d.state.PKeys()
	return desiredPKeys(d.cfg.Load().PKeys, added, removed)
}

// applyPKeys brings the devices in line with what is desired.
func (d *Daemon) applyPKeys() error {
	table := d.pkeys()
	var errs []error
	for _, v := range d.softDevices() { // the kernel's have the tables that their subnet manager wrote
		if !slices.Equal(v.soft.PKeys(), table) {
			d.log.Info("partitions changed", zap.Stringer("device", v.addr), zap.Int("partitions", len(table)))
			errs = append(errs, v.soft.SetPKeys(table))
		}
	}
	return errors.Join(errs...)
}

// AddPKey implements control.Backend.
func (d *Daemon) AddPKey(key string) error {
	k, err := config.ParsePKey(key)
	if err != nil {
		return err
	}
	key = config.PKeyString(k)
	if err := d.mayChange(); err != nil {
		return err
	}
	defer d.mu.Unlock()
	now := d.PKeys()
	if slices.ContainsFunc(now, func(o control.PKey) bool { return partition(o.PKey) == partition(key) }) {
		return fmt.Errorf("partition %#x: %w; remove its key first", k&0x7fff, control.ErrConflict)
	}
	if len(now) >= roce.PKeysMax {
		return fmt.Errorf("a device is in %d partitions at most", roce.PKeysMax)
	}
	if err := d.state.PutPKey(key, slices.Contains(d.cfg.Load().PKeys, key)); err != nil {
		return err
	}
	return d.applyPKeys()
}

// RemovePKey implements control.Backend.
func (d *Daemon) RemovePKey(key string) error {
	k, err := config.ParsePKey(key)
	if err != nil {
		return err
	}
	key = config.PKeyString(k)
	if err := d.mayChange(); err != nil {
		return err
	}
	defer d.mu.Unlock()
	now := d.PKeys()
	if !slices.ContainsFunc(now, func(o control.PKey) bool { return o.PKey == key }) {
		return fmt.Errorf("partition key %s: %w", key, control.ErrNotFound)
	}
	if len(now) == 1 {
		return errors.New("the last partition key cannot be removed: add another first")
	}
	if err := d.state.RemovePKey(key, slices.Contains(d.cfg.Load().PKeys, key)); err != nil {
		return err
	}
	return d.applyPKeys()
}
