package cluster

import (
	"encoding/hex"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/rstored/rstored/cmd/internal/rados"
)

// batch is the number of records in one change.
const batch = 512

func recordKey(epoch uint64, owner string) string {
	return fmt.Sprintf("c/%016x/%s", epoch, hex.EncodeToString([]byte(owner)))
}

// add writes records of an epoch. It is called with records held.
func (c *Cluster) add(epoch uint64, owners []string) error {
	for part := range slices.Chunk(owners, batch) {
		set := make(rados.Pairs)
		for _, o := range part {
			set[recordKey(epoch, o)] = []byte{1}
		}
		if err := c.Store.Change(nodeObject(c.Node), rados.Change{Set: set}); err != nil {
			return err
		}
	}
	return nil
}

// recorded returns the clients of a node with records from an epoch on.
func (c *Cluster) recorded(node string, from uint64) ([]string, error) {
	list, err := c.Store.Pairs(nodeObject(node), "c/")
	if err != nil {
		return nil, err
	}
	out := make(map[string]bool)
	for key := range list {
		epoch, name, _ := strings.Cut(key[len("c/"):], "/")
		n, err := strconv.ParseUint(epoch, 16, 64)
		owner, e := hex.DecodeString(name)
		if err == nil && e == nil && n >= from {
			out[string(owner)] = true
		}
	}
	return slices.Sorted(maps.Keys(out)), nil
}

// loadOwn finds the clients that an earlier process of this node had, and removes void records.
func (c *Cluster) loadOwn() error {
	c.mu.Lock()
	s := c.state
	c.mu.Unlock()
	from := s.Current
	if s.Recovery != 0 {
		from = s.Recovery
		var err error
		if c.known, err = c.recorded(c.Node, from); err != nil {
			return err
		}
	}
	list, err := c.Store.Pairs(nodeObject(c.Node), "c/")
	if err != nil {
		return err
	}
	var void []string
	for key := range list {
		if key < recordKey(from, "") {
			void = append(void, key)
		}
	}
	return c.remove(void)
}

// remove removes keys of this node's object.
func (c *Cluster) remove(keys []string) error {
	for part := range slices.Chunk(keys, batch) {
		if err := c.Store.Change(nodeObject(c.Node), rados.Change{Remove: part}); err != nil {
			return err
		}
	}
	return nil
}

// Owners returns the clients of this node that may reclaim, as Open has found them.
func (c *Cluster) Owners() []string { return c.known }

// Add implements state.Journal.
func (c *Cluster) Add(owner string) error {
	c.records.Lock()
	defer c.records.Unlock()
	if err := c.add(c.epoch(), []string{owner}); err != nil {
		return err
	}
	c.owners[owner] = true
	return nil
}

// Remove implements state.Journal.
func (c *Cluster) Remove(owners ...string) error {
	c.records.Lock()
	defer c.records.Unlock()
	var keys []string
	for _, o := range owners {
		keys = append(keys, recordKey(c.epoch(), o))
	}
	if err := c.Store.Change(nodeObject(c.Node), rados.Change{Remove: keys}); err != nil {
		return err
	}
	for _, o := range owners {
		delete(c.owners, o)
	}
	return nil
}

func (c *Cluster) epoch() uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.self.Epoch
}

// Session is the name of the session of a mount of this process at the MDS. It is recorded before
// the mount, so that other nodes can end it.
func (c *Cluster) Session(filesystem string, export uint32) (string, error) {
	name := "rstored-" + c.boot + "-" + strconv.FormatUint(uint64(export), 10)
	return name, c.Store.Change(nodeObject(c.Node), rados.Change{
		Set: rados.Pairs{"s/" + c.boot + "/" + name: []byte(filesystem)},
	})
}
