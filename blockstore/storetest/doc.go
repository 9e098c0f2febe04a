// Package storetest is the conformance suite of blockstore.FS: what every store must do alike, so
// that the protocols above need not know which one they have. It knows no store. Begin reading at
// Run; Compare runs random operations on two stores and on a model. Some
// tests call the store from several goroutines.
//
//	func TestStore(t *testing.T) {
//		open := func(t *testing.T) blockstore.FS { return memfs.New(memfs.Options{}) }
//		storetest.Run(t, open, storetest.Options{})
//	}
package storetest
