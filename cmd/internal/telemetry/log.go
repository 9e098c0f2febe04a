package telemetry

import (
	"io"
	"log"
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

// Of lines with the same message from libraries, the log has the first sampleFirst in each
// sampleTick and every sampleThen-th after that: some messages are about packets, which strangers
// can send by the thousand.
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
	encoder := zapcore.NewJSONEncoder(enc)
	if format == config.LogConsole || format == config.LogAuto && isTerminal(os.Stderr) {
		encoder = consoleEncoder(enc)
	}
	enc.TimeKey = "time" // of the lines in memory
	l := &Log{Level: lv, ring: new(ring)}
	out := zapcore.Lock(os.Stderr)
	logger := func(encoder zapcore.Encoder, level zapcore.LevelEnabler) *zap.Logger {
		return zap.New(zapcore.NewTee(zapcore.NewCore(encoder, out, level),
			&ringCore{level, zapcore.NewJSONEncoder(enc), l.ring}))
	}
	l.Logger, l.Always = logger(encoder, lv), logger(encoder.Clone(), zapcore.InfoLevel)
	hook := zapcore.SamplerHook(func(_ zapcore.Entry, d zapcore.SamplingDecision) {
		if d&zapcore.LogDropped != 0 {
			l.suppressed.Add(1)
		}
	})
	l.sampled = zapcore.NewSamplerWithOptions(l.Core(), sampleTick, sampleFirst, sampleThen, hook)
	return l, nil
}

// Console returns a logger that writes lines for people to w.
func Console(w io.Writer, level zapcore.Level) *zap.Logger {
	enc := consoleEncoder(zap.NewProductionEncoderConfig())
	return zap.New(zapcore.NewCore(enc, zapcore.Lock(zapcore.AddSync(w)), level))
}

func consoleEncoder(enc zapcore.EncoderConfig) zapcore.Encoder {
	enc.EncodeTime = zapcore.TimeEncoderOfLayout("15:04:05.000")
	enc.EncodeLevel = zapcore.CapitalLevelEncoder
	enc.ConsoleSeparator = " "
	return zapcore.NewConsoleEncoder(enc)
}

// Library is the logger of a package whose messages can be about single packets or connections.
// Lines with the same message are sampled.
func (l *Log) Library(name string) *zap.Logger { return zap.New(l.sampled).Named(name) }

// Slog is Library for a public package, which takes a *slog.Logger because it imports the standard
// library alone.
func (l *Log) Slog(name string) *slog.Logger { return Slog(l.Library(name)) }

// Slog returns a logger of log/slog that writes to l.
func Slog(l *zap.Logger) *slog.Logger {
	const never = slog.LevelError + 1
	return slog.New(zapslog.NewHandler(l.Core(), zapslog.WithName(l.Name()), zapslog.AddStacktraceAt(never)))
}

// ErrorLog returns a logger for http.Server.ErrorLog that writes warnings to l.
func ErrorLog(l *zap.Logger) *log.Logger {
	std, _ := zap.NewStdLogAt(l, zapcore.WarnLevel) // fails for unknown levels alone
	return std
}

func isTerminal(f *os.File) bool {
	_, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
	return err == nil
}
