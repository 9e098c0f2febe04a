// Package bundle writes the data for a search for a fault into one compressed archive without
// secrets. The manifest lists missing parts with the reason. The package asks a Daemon and reads
// files; it changes nothing, and does not know what the parts mean.
//
// Begin reading at Write. parts.go has the parts, redact.go removes secrets, anonymous.go replaces
// names and addresses. One goroutine writes an archive.
//
//	m, err := bundle.Write(ctx, file, bundle.Config{Daemon: daemon, Unit: "rstored", Root: "/"})
package bundle
