// Package telemetry is the daemon's logging and its conversation with systemd.
package telemetry

import (
	"log/slog"
	"os"
	"sync/atomic"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/exp/zapslog"
	"go.uber.org/zap/zapcore"
	"golang.org/x/sys/unix"

	"github.com/rstored/rstored/cmd/internal/config"
)

// Log is the daemon's logger. Level changes take effect at once everywhere.
type Log struct {
	*zap.Logger
	Level zap.AtomicLevel
	// Always writes to the same place, whatever the level.
	Always *zap.Logger

	ring       *ring
	sampled    zapcore.Core // for libraries
	suppressed atomic.Uint64
}

// Of lines with the same message from libraries, the log has the first sampleFirst in each sampleTick and
// every sampleThen-th after that: some messages are about packets, which strangers can send by the thousand.
const (
	sampleTick  = 10 * time.Second
	sampleFirst = 100
	sampleThen  = 1000
)

// Suppressed is the number of lines that were left out.
func (l *Log) Suppressed() uint64 { return l.suppressed.Load() }

// NewLog makes a logger that writes to standard error.
func NewLog(level, format string) (*Log, error) {
	lv, err := zap.ParseAtomicLevel(level)
	if err != nil {
		return nil, err
	}
	enc := zap.NewProductionEncoderConfig()
	enc.TimeKey = "time"
	enc.EncodeTime = zapcore.RFC3339NanoTimeEncoder
	enc.EncodeDuration = zapcore.StringDurationEncoder
	if os.Getenv("JOURNAL_STREAM") != "" {
		enc.TimeKey = zapcore.OmitKey // the journal stamps every line itself
	}
	var encoder zapcore.Encoder
	if format == config.LogConsole || format == config.LogAuto && isTerminal(os.Stderr) {
		enc.EncodeTime = zapcore.TimeEncoderOfLayout("15:04:05.000")
		enc.EncodeLevel = zapcore.CapitalLevelEncoder
		enc.ConsoleSeparator = " "
		encoder = zapcore.NewConsoleEncoder(enc)
	} else {
		encoder = zapcore.NewJSONEncoder(enc)
	}
	enc.TimeKey, enc.EncodeTime, enc.EncodeLevel = "time", zapcore.RFC3339NanoTimeEncoder, zapcore.LowercaseLevelEncoder
	l := &Log{Level: lv, ring: new(ring)}
	out := zapcore.Lock(os.Stderr)
	logger := func(encoder zapcore.Encoder, level zapcore.LevelEnabler) *zap.Logger {
		return zap.New(zapcore.NewTee(zapcore.NewCore(encoder, out, level), &ringCore{level, zapcore.NewJSONEncoder(enc), l.ring}))
	}
	l.Logger, l.Always = logger(encoder, lv), logger(encoder.Clone(), zapcore.InfoLevel)
	l.sampled = zapcore.NewSamplerWithOptions(l.Core(), sampleTick, sampleFirst, sampleThen, zapcore.SamplerHook(func(_ zapcore.Entry, d zapcore.SamplingDecision) {
		if d&zapcore.LogDropped != 0 {
			l.suppressed.Add(1)
		}
	}))
	return l, nil
}

// Slog is the logger for libraries that take log/slog, under the name given.
func (l *Log) Slog(name string) *slog.Logger {
	return slog.New(zapslog.NewHandler(l.sampled, zapslog.WithName(name), zapslog.AddStacktraceAt(slog.LevelError+1)))
}

func isTerminal(f *os.File) bool {
	_, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
	return err == nil
}
