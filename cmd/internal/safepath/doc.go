// Package safepath checks whether another user can change what a path leads to: the file or
// directory itself, a directory on the way to it, or a symbolic link there. It opens nothing,
// changes nothing, and knows nothing of what the path is for. Begin reading at Check. It may be
// called from any goroutine.
//
//	err := safepath.Check("/usr/sbin/rstored", 0) // only root may change it
package safepath
