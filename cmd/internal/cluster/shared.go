package cluster

import (
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"

	"github.com/rstored/rstored/cmd/internal/config"
	"github.com/rstored/rstored/cmd/internal/rados"
)

const (
	exportsOf = "exports"
	nextOf    = "next"
)

// Secret is the key of file handles, which all nodes have.
func (c *Cluster) Secret() []byte { return c.secret }

// Number is the number of an export, which is the same on all nodes and never given to another one.
func (c *Cluster) Number(export string) (uint32, error) {
	key := "number/" + hex.EncodeToString([]byte(export))
	for {
		p, err := c.Store.Pairs(object, "n")
		if err != nil {
			return 0, err
		}
		if b := p[key]; len(b) > 0 {
			n, err := strconv.ParseUint(string(b), 10, 32)
			return uint32(n), err
		}
		next := uint64(1)
		if b := p[nextOf]; len(b) > 0 {
			if next, err = strconv.ParseUint(string(b), 10, 32); err != nil {
				return 0, err
			}
		}
		err = c.Store.Change(object, rados.Change{
			Is:  rados.Pairs{nextOf: p[nextOf], key: nil},
			Set: rados.Pairs{nextOf: strconv.AppendUint(nil, next+1, 10), key: strconv.AppendUint(nil, next, 10)},
		})
		if err == nil {
			return uint32(next), nil
		}
		if !errors.Is(err, rados.ErrChanged) {
			return 0, err
		}
	}
}

// exportsDoc is what was changed at run time, on any node.
type exportsDoc struct {
	Exports []config.Export `json:"exports"`
	Removed []string        `json:"removed"`
}

func readExports(p rados.Pairs) (d exportsDoc, err error) {
	if b := p[exportsOf]; len(b) > 0 {
		err = json.Unmarshal(b, &d)
	}
	for i := range d.Exports {
		err = errors.Join(err, d.Exports[i].Normalize())
	}
	if err != nil {
		err = fmt.Errorf("the exports of the cluster: %w", err)
	}
	return d, err
}

// follow tells this node of changes of the exports.
type follow struct {
	changed func() error // nil: not yet
	busy    bool         // changed runs
	taken   string       // the document that Exports has returned last
	applied string       // the one that Follow or changed has begun with last
}

// Follow calls changed when the exports are not those that Exports has returned before, and whenever
// another node changes them: again and again, until it returns nil.
func (c *Cluster) Follow(changed func() error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.follow.changed, c.follow.applied = changed, c.follow.taken
	c.applyExports()
}

// applyExports calls Follow's function if there is a change. It is called with mu held.
func (c *Cluster) applyExports() {
	f, now := &c.follow, string(c.raw[exportsOf])
	if f.changed == nil || f.busy || c.leaving || now == f.applied {
		return
	}
	f.busy = true
	go func() {
		err := f.changed()
		c.mu.Lock()
		defer c.mu.Unlock()
		if f.busy = false; err == nil {
			f.applied = now
		}
	}()
}

// Exports returns the exports that were added or changed at run time on any node, and the pseudo
// paths of those that were removed, as they were read last.
func (c *Cluster) Exports() (added []config.Export, removed []string) {
	c.mu.Lock()
	p := c.raw
	c.follow.taken = string(p[exportsOf])
	c.mu.Unlock()
	d, _ := readExports(p) // ChangeExports reports it
	return d.Exports, d.Removed
}

// ChangeExports changes them on all nodes.
func (c *Cluster) ChangeExports(change func(added *[]config.Export, removed *[]string)) error {
	for {
		p, err := c.Store.Pairs(object, exportsOf)
		if err != nil {
			return err
		}
		d, err := readExports(p)
		if err != nil {
			return err
		}
		change(&d.Exports, &d.Removed)
		b, err := json.Marshal(d)
		if err != nil {
			return err
		}
		err = c.Store.Change(object, rados.Change{
			Is: rados.Pairs{exportsOf: p[exportsOf]}, Set: rados.Pairs{exportsOf: b},
		})
		if err == nil {
			return c.once()
		}
		if !errors.Is(err, rados.ErrChanged) {
			return err
		}
	}
}
