package filecmd

import (
	"errors"
	"syscall"

	"github.com/rstored/rstored/nfs"
)

// hint returns an addition to an error: which side is full, or why the server refuses root. uid is
// the user of this process.
func hint(err error, uid int) string {
	status, remote := errors.AsType[nfs.Status](err)
	switch {
	case remote && (status == nfs.ErrNoSpc || status == nfs.ErrDQuot):
		return " (on the server)"
	case !remote && (errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT)):
		return " (on this host)"
	case remote && uid == 0 && (status == nfs.ErrAcces || status == nfs.ErrPerm):
		return " (the server may treat root of this host as another user, root_squash: 'rstorectl export show' there)"
	}
	return ""
}
