// Package telemetry is the daemon's logging and its notifications to systemd. It knows nothing of
// the server.
//
// The programs log with zap. The public packages may import the standard library alone and take a
// *slog.Logger, so Slog makes one that writes to a zap logger. Begin reading at NewLog. ring.go
// retains the last lines for a support bundle, notify.go speaks to systemd (sd_notify(3)). Logs and
// Notifiers may be used from any goroutine.
//
//	log, err := telemetry.NewLog("info", "console")
//	tlog := log.Library("nfs4") // zap; log.Slog for a public package
package telemetry
