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

// Kinds of records, in front of a client's name.
const (
	ofOwner = "c/" // a client of version 4: its owner string
	ofHost  = "h/" // a host with locks of version 3
)

// recordKey is the key of a client, which is a kind and a name.
func recordKey(epoch uint64, client string) string {
	kind, name := client[:len(ofOwner)], client[len(ofOwner):]
	return fmt.Sprintf("%s%016x/%s", kind, epoch, hex.EncodeToString([]byte(name)))
}

// sessionKey is the key of a session of a process at the MDS.
func sessionKey(boot, session string) string { return "s/" + boot + "/" + session }

// add writes records of an epoch. It is called with records held.
func (c *Cluster) add(epoch uint64, clients []string) error {
	for part := range slices.Chunk(clients, batch) {
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
func (c *Cluster) recorded(node string, from uint64) (owners, hosts []string, err error) {
	for kind, out := range map[string]*[]string{ofOwner: &owners, ofHost: &hosts} {
		list, err := c.Store.Pairs(nodeObject(node), kind)
		if err != nil {
			return nil, nil, err
		}
		all := make(map[string]bool)
		for key := range list {
			epoch, name, _ := strings.Cut(key[len(kind):], "/")
			n, err := strconv.ParseUint(epoch, 16, 64)
			client, e := hex.DecodeString(name)
			if err == nil && e == nil && n >= from {
				all[string(client)] = true
			}
		}
		*out = slices.Sorted(maps.Keys(all))
	}
	return owners, hosts, nil
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
		if c.known, c.hosts, err = c.recorded(c.Node, from); err != nil {
			return err
		}
	}
	var void []string
	for _, kind := range []string{ofOwner, ofHost} {
		list, err := c.Store.Pairs(nodeObject(c.Node), kind)
		if err != nil {
			return err
		}
		for key := range list {
			if key < recordKey(from, kind) {
				void = append(void, key)
			}
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

// Hosts are Owners of version 3.
func (c *Cluster) Hosts() []string { return c.hosts }

// Add implements state.Journal.
func (c *Cluster) Add(owner string) error { return c.record([]string{ofOwner + owner}, nil) }

// Remove implements state.Journal.
func (c *Cluster) Remove(owners ...string) error {
	var gone []string
	for _, o := range owners {
		gone = append(gone, ofOwner+o)
	}
	return c.record(nil, gone)
}

// SetHosts replaces the list of hosts with locks of version 3.
func (c *Cluster) SetHosts(list []string) error {
	var come, gone []string
	c.records.Lock()
	for _, h := range list {
		if !c.owners[ofHost+h] {
			come = append(come, ofHost+h)
		}
	}
	for o := range c.owners {
		if h, is := strings.CutPrefix(o, ofHost); is && !slices.Contains(list, h) {
			gone = append(gone, o)
		}
	}
	c.records.Unlock()
	return c.record(come, gone)
}

// record adds and removes clients. After an error nobody is removed.
func (c *Cluster) record(come, gone []string) error {
	c.records.Lock()
	defer c.records.Unlock()
	epoch := c.epoch()
	if err := c.add(epoch, come); err != nil {
		return err
	}
	for _, o := range come {
		c.owners[o] = true
	}
	var keys []string
	for _, o := range gone {
		keys = append(keys, recordKey(epoch, o))
	}
	if err := c.remove(keys); err != nil {
		return err
	}
	for _, o := range gone {
		delete(c.owners, o)
	}
	return nil
}

// LockState is the state number of the status monitor for clients that reclaim in this epoch. It is
// larger than any before on any node, and odd.
func (c *Cluster) LockState() int32 { return int32(2*c.epoch() + 1) }

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
		Set: rados.Pairs{sessionKey(c.boot, name): []byte(filesystem)},
	})
}
