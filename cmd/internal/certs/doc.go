// Package certs loads a certificate with its key, and the certificates of authorities for peers,
// from PEM files. It makes configurations of TLS 1.3 from them. When the files change, it loads
// them again, so that renewed certificates need no restart. It knows no connection.
//
// A new set of files with a mistake, such as a certificate without its key, changes nothing. The
// old certificates stay in use, and the failure is logged and counted.
//
// Begin reading at Load and Store.Server. The methods of a Store may be called from any goroutine.
// A handshake uses the certificates that are loaded when it begins.
//
//	s, err := certs.Load(certs.Files{Cert: "server.pem", Key: "server.key"}, log)
//	cfg, err := s.Server(certs.Ask)
package certs
