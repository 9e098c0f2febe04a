// Package audit is the daemon's audit log: mounts, clients that come and go, and changes of
// settings with the old and the new value. It has its own output, so that neither the level nor the
// amount of the ordinary log hides an event. It does not know what the events mean.
//
// Begin reading at Log.Event. Record writes at once, for actions of administrators. Event hands a
// line to a goroutine, and drops and counts what comes faster than that writes: clients cause these
// events. The methods may be called from any goroutine.
//
//	l, err := audit.Open("file /var/log/rstored/audit.log", log)
//	l.Event("mount", zap.String("path", path))
package audit
