package nfs

import "github.com/rstored/rstored/blockstore"

// DirEvent is a change of the entries of a directory. An entry that is renamed within the directory
// has both names; another one is removed or added.
type DirEvent struct {
	Removed, Added string
	// Replaced: there was an entry of the name Added, which is gone.
	Replaced bool
}

// Renamed returns the events of a rename: that of the one directory, or those of the directories
// that the entry leaves and enters. moved and replaced are the objects of the two names before;
// zero if there is none. Two names of one object stay as they are (rename(2)), so there is no event
// then.
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
