package telemetry

import (
	"slices"
	"sync"

	"go.uber.org/zap/zapcore"
)

// ringMax bounds the log lines that are kept in memory, in bytes, and lineMax one of them.
const (
	ringMax = 1 << 20
	lineMax = 16 << 10
)

// ring keeps the last lines of a log as JSON, for a support bundle where nothing else keeps the
// log.
type ring struct {
	mu    sync.Mutex
	lines [][]byte
	first int // the oldest, once lines are dropped
	size  int
}

func (r *ring) add(line []byte) {
	if len(line) > lineMax {
		line = append(line[:lineMax:lineMax], '\n')
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.lines = append(r.lines, slices.Clone(line))
	for r.size += len(line); r.size > ringMax; r.first++ {
		r.size -= len(r.lines[r.first])
		r.lines[r.first] = nil
	}
	if r.first > len(r.lines)/2 {
		r.lines, r.first = slices.Clone(r.lines[r.first:]), 0
	}
}

// bytes are the lines, the oldest first.
func (r *ring) bytes() []byte {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Concat(r.lines[r.first:]...)
}

// ringCore writes a logger's records into a ring.
type ringCore struct {
	zapcore.LevelEnabler
	enc  zapcore.Encoder
	ring *ring
}

// With implements zapcore.Core.
func (c *ringCore) With(fields []zapcore.Field) zapcore.Core {
	next := &ringCore{c.LevelEnabler, c.enc.Clone(), c.ring}
	for i := range fields {
		fields[i].AddTo(next.enc)
	}
	return next
}

// Check implements zapcore.Core.
func (c *ringCore) Check(e zapcore.Entry, ce *zapcore.CheckedEntry) *zapcore.CheckedEntry {
	if c.Enabled(e.Level) {
		return ce.AddCore(e, c)
	}
	return ce
}

// Write implements zapcore.Core.
func (c *ringCore) Write(e zapcore.Entry, fields []zapcore.Field) error {
	b, err := c.enc.EncodeEntry(e, fields)
	if err != nil {
		return err
	}
	c.ring.add(b.Bytes())
	b.Free()
	return nil
}

// Sync implements zapcore.Core.
func (c *ringCore) Sync() error { return nil }

// Recent are the last lines of the log, JSON objects, the oldest first; 1 MiB at most.
func (l *Log) Recent() []byte { return l.ring.bytes() }
