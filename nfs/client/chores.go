package client

import "sync"

// chores runs functions in the background, in the order in which they were added.
type chores struct {
	most int // functions at once

	mu      sync.Mutex
	queue   []func()
	running int
}

// add adds a function. It reports false, and adds nothing, if as many as limit wait already; 0 is no
// limit.
func (c *chores) add(limit int, f func()) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if limit > 0 && len(c.queue) >= limit {
		return false
	}
	c.queue = append(c.queue, f)
	if c.running < c.most {
		c.running++
		go c.run()
	}
	return true
}

func (c *chores) run() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for len(c.queue) > 0 {
		f := c.queue[0]
		c.queue = c.queue[1:]
		c.mu.Unlock()
		f()
		c.mu.Lock()
	}
	c.running--
}
