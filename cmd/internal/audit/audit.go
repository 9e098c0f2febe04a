package audit

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"golang.org/x/sys/unix"

	"github.com/rstored/rstored/cmd/internal/config"
)

// Packet loops report events of clients, so a goroutine writes them. A client can cause any number
// of events, so the rate of writing has a bound.
const (
	queued = 1024
	burst  = 256
	perSec = 64
)

// Log is the audit log. Its methods may be called from any goroutine. It counts the events that it
// drops because there are too many, and reports their number in the next line that it writes.
type Log struct {
	out    *zap.Logger // nil: off
	file   *file       // nil: the log for people
	queue  chan entry
	ended  chan struct{}
	closed atomic.Bool
	now    func() time.Time

	mu      sync.Mutex
	counts  map[string]uint64
	tokens  float64
	filled  time.Time
	missing uint64 // since the last line
	dropped atomic.Uint64
}

type entry struct {
	event  string
	at     time.Time
	fields []zap.Field
	flush  chan struct{} // closed when everything before it is written
}

// Check reports whether Open can open the audit log that the setting names. It creates nothing.
func Check(setting string) error {
	path, err := config.ParseAudit(setting)
	if err != nil || path == "" {
		return err
	}
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND, 0)
	if err == nil {
		return f.Close()
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	dir := filepath.Dir(path)
	if st, err := os.Stat(dir); errors.Is(err, fs.ErrNotExist) {
		dir = filepath.Dir(dir) // Open creates one directory
	} else if err == nil && !st.IsDir() {
		return fmt.Errorf("%s is not a directory", dir)
	}
	if err := unix.Faccessat(unix.AT_FDCWD, dir, unix.W_OK|unix.X_OK, unix.AT_EACCESS); err != nil {
		return fmt.Errorf("%s cannot be created: directory %s: %w", path, dir, err)
	}
	return nil
}

// Open opens the audit log that the setting names (see config.ParseAudit). It creates the file, and
// the last directory of its path. Its logger must write at any level.
func Open(setting string, log *zap.Logger) (*Log, error) {
	path, err := config.ParseAudit(setting)
	if err != nil {
		return nil, err
	}
	l := &Log{
		counts: make(map[string]uint64), queue: make(chan entry, queued), ended: make(chan struct{}), now: time.Now,
		tokens: burst, filled: time.Now(),
	}
	switch {
	case path != "":
		if err := os.Mkdir(filepath.Dir(path), 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
			return nil, fmt.Errorf("audit log: %w", err)
		}
		if l.file, err = openFile(path); err != nil {
			return nil, fmt.Errorf("audit log: %w", err)
		}
		enc := zap.NewProductionEncoderConfig()
		enc.TimeKey, enc.LevelKey, enc.MessageKey = "time", zapcore.OmitKey, "event"
		enc.NameKey = zapcore.OmitKey
		enc.EncodeTime = zapcore.RFC3339NanoTimeEncoder
		l.out = zap.New(zapcore.NewCore(zapcore.NewJSONEncoder(enc), l.file, zapcore.InfoLevel))
	case setting == config.AuditLog:
		l.out = log.Named("audit")
	}
	go l.write()
	return l, nil
}

// Record writes an action of an administrator. It returns when the line is written.
func (l *Log) Record(event string, fields ...zap.Field) {
	if l == nil || l.out == nil {
		return
	}
	l.count(event)
	l.put(entry{event: event, at: l.now(), fields: fields})
}

// Event queues an event of a client. It does not wait. It drops the event if the queue is full or
// the rate is exceeded.
func (l *Log) Event(event string, fields ...zap.Field) {
	if l == nil || l.out == nil {
		return
	}
	l.count(event)
	now := l.now()
	l.mu.Lock()
	l.tokens = min(l.tokens+now.Sub(l.filled).Seconds()*perSec, burst)
	l.filled = now
	ok := l.tokens >= 1
	if ok {
		l.tokens--
		if l.missing > 0 {
			fields = append(fields, zap.Uint64("missing_before", l.missing))
		}
	}
	l.mu.Unlock()
	if ok && !l.closed.Load() {
		select {
		case l.queue <- entry{event: event, at: now, fields: fields}:
			l.mu.Lock()
			l.missing = 0
			l.mu.Unlock()
			return
		default:
		}
	}
	l.dropped.Add(1)
	l.mu.Lock()
	l.missing++
	l.mu.Unlock()
}

func (l *Log) count(event string) {
	l.mu.Lock()
	l.counts[event]++
	l.mu.Unlock()
}

func (l *Log) put(e entry) {
	if c := l.out.Check(zapcore.InfoLevel, e.event); c != nil {
		c.Time = e.at
		c.Write(e.fields...)
	}
}

func (l *Log) write() {
	defer close(l.ended)
	for e := range l.queue {
		if e.flush == nil {
			l.put(e)
			continue
		}
		close(e.flush)
		if l.closed.Load() {
			return
		}
	}
}

// Flush waits until everything that was recorded before is written.
func (l *Log) Flush() {
	if l == nil || l.closed.Load() {
		return
	}
	l.flush()
}

func (l *Log) flush() {
	done := make(chan struct{})
	select {
	case l.queue <- entry{flush: done}:
		select {
		case <-done:
		case <-l.ended:
		}
	case <-l.ended:
	}
}

// Reopen opens the file of the log again, after a program that rotates logs has renamed it.
func (l *Log) Reopen() error {
	if l == nil || l.file == nil {
		return nil
	}
	return l.file.reopen()
}

// Close ends the log. Later events are lost.
func (l *Log) Close() error {
	if l == nil || l.closed.Swap(true) {
		return nil
	}
	l.flush()
	if l.file != nil {
		return l.file.close()
	}
	return nil
}

// Counts are the numbers of events by name, dropped ones included.
func (l *Log) Counts() map[string]uint64 {
	out := make(map[string]uint64)
	if l == nil {
		return out
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	maps.Copy(out, l.counts)
	return out
}

// Dropped is the number of events that were dropped because there were too many.
func (l *Log) Dropped() uint64 {
	if l == nil {
		return 0
	}
	return l.dropped.Load()
}

// Slog returns the audit log for the public packages, which take a *slog.Logger. Each message
// becomes an event. Groups are ignored.
func (l *Log) Slog() *slog.Logger { return slog.New(handler{l: l}) }

type handler struct {
	l    *Log
	with []zap.Field
}

func (h handler) Enabled(context.Context, slog.Level) bool { return h.l != nil && h.l.out != nil }

func (h handler) Handle(_ context.Context, r slog.Record) error {
	fields := append(make([]zap.Field, 0, len(h.with)+r.NumAttrs()), h.with...)
	r.Attrs(func(a slog.Attr) bool {
		fields = append(fields, field(a))
		return true
	})
	h.l.Event(r.Message, fields...)
	return nil
}

func field(a slog.Attr) zap.Field { return zap.Any(a.Key, a.Value.Resolve().Any()) }

func (h handler) WithAttrs(attrs []slog.Attr) slog.Handler {
	h.with = append(make([]zap.Field, 0, len(h.with)+len(attrs)), h.with...)
	for _, a := range attrs {
		h.with = append(h.with, field(a))
	}
	return h
}

func (h handler) WithGroup(string) slog.Handler { return h }

// file is a file that can be opened again under its name.
type file struct {
	path string
	mu   sync.Mutex
	f    *os.File
}

func openFile(path string) (*file, error) {
	w := &file{path: path}
	return w, w.reopen()
}

func (w *file) reopen() error {
	f, err := os.OpenFile(w.path, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.f != nil {
		_ = w.f.Close()
	}
	w.f = f
	return nil
}

// Write implements zapcore.WriteSyncer.
func (w *file) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.f == nil {
		return 0, os.ErrClosed
	}
	return w.f.Write(p)
}

// Sync implements zapcore.WriteSyncer.
func (w *file) Sync() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.f == nil {
		return nil
	}
	return w.f.Sync()
}

func (w *file) close() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.f == nil {
		return nil
	}
	err := errors.Join(w.f.Sync(), w.f.Close())
	w.f = nil
	return err
}
