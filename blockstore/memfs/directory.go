package memfs

import (
	"slices"
	"sort"
)

// Cookies of the two entries that are not stored; stored ones come after.
const (
	cookieDot    = 1
	cookieDotDot = 2
)

// entry is one name of a directory. A removed entry stays in the order as dead, until the order is
// compacted.
type entry struct {
	name   string
	id     uint64
	cookie uint64
	dead   bool
}

// directory has its entries by name, and in the order of their cookies. A cookie is used once,
// so that a listing continues at the right place whatever was added or removed meanwhile.
type directory struct {
	byName map[string]*entry
	order  []*entry
	dead   int
	next   uint64
}

func newDirectory() *directory {
	return &directory{byName: make(map[string]*entry), next: cookieDotDot + 1}
}

func (d *directory) add(name string, id uint64) {
	e := &entry{name: name, id: id, cookie: d.next}
	d.next++
	d.byName[name] = e
	d.order = append(d.order, e)
}

func (d *directory) remove(name string) {
	e := d.byName[name]
	delete(d.byName, name)
	e.dead = true
	d.dead++
	if d.dead <= 32 || d.dead*2 < len(d.order) {
		return
	}
	d.order, d.dead = slices.DeleteFunc(d.order, func(e *entry) bool { return e.dead }), 0
}

// after returns the index in order of the first entry beyond cookie.
func (d *directory) after(cookie uint64) int {
	return sort.Search(len(d.order), func(i int) bool { return d.order[i].cookie > cookie })
}
