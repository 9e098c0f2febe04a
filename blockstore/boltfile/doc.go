// Package boltfile opens bbolt databases that may be damaged: cut off by a file system that lost
// its tail, or overwritten. bbolt maps its file and trusts it. Such a file would end the process by
// SIGBUS or a panic, at once or at a later read. The package knows nothing of what a database
// contains.
//
// Begin reading at Open. Any goroutine may call it. Only one at a time may open the same file.
//
//	db, damage, err := boltfile.Open("places.db", &bbolt.Options{Timeout: time.Second})
//	if damage != nil {
//		log.Warn("the database is empty now", "why", damage)
//	}
package boltfile
