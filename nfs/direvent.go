package nfs

import "github.com/rstored/rstored/blockstore"

// DirEvent is a change of the entries of a directory. An entry that is renamed within the directory
// has both names. An entry that is removed has only Removed, and a new entry only Added.
type DirEvent struct {
	Removed, Added string
	// Replaced: the directory had another entry with the name Added, which is gone.
	Replaced bool
}

// Renamed returns the events of a RENAME. Within one directory (same) that is one event. Otherwise
// it is one for the directory that the entry leaves, and one for the directory that it enters.
// moved and replaced are the objects that the two names had before; zero: none. If both names are
// of one object, rename(2) changes nothing, and there is no event.
func Renamed(same bool, from, to string, moved, replaced blockstore.Handle) []DirEvent {
	gone := replaced != blockstore.Handle{}
	switch {
	case gone && moved == replaced:
		return nil
	case same:
		return []DirEvent{{Removed: from, Added: to, Replaced: gone}}
	}
	return []DirEvent{{Removed: from}, {Added: to, Replaced: gone}}
}
