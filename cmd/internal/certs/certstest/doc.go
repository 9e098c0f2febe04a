// Package certstest makes authorities and certificates for tests. It knows nothing of package
// certs, which reads the files. Begin reading at New. A test calls it from its own goroutine.
//
//	ca := certstest.New(t, "authority")
//	cert, key := ca.Issue(t, time.Now().Add(time.Hour), "localhost").Write(t, t.TempDir(), "server")
package certstest
