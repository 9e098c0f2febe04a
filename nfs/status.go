package nfs

import (
	"errors"
	"fmt"

	"github.com/rstored/rstored/blockstore"
)

// Status is the status of an NFS version 3 result (nfsstat3, RFC 1813 section
// 2.6). As an error it matches the error of package blockstore that it stands
// for, so that a client may test it with errors.Is.
type Status uint32

// Statuses.
const (
	OK             Status = 0
	ErrPerm        Status = 1
	ErrNoEnt       Status = 2
	ErrIO          Status = 5
	ErrNXIO        Status = 6
	ErrAcces       Status = 13
	ErrExist       Status = 17
	ErrXDev        Status = 18
	ErrNoDev       Status = 19
	ErrNotDir      Status = 20
	ErrIsDir       Status = 21
	ErrInval       Status = 22
	ErrFBig        Status = 27
	ErrNoSpc       Status = 28
	ErrROFS        Status = 30
	ErrMLink       Status = 31
	ErrNameTooLong Status = 63
	ErrNotEmpty    Status = 66
	ErrDQuot       Status = 69
	ErrStale       Status = 70
	ErrRemote      Status = 71
	ErrBadHandle   Status = 10001
	ErrNotSync     Status = 10002
	ErrBadCookie   Status = 10003
	ErrNotSupp     Status = 10004
	ErrTooSmall    Status = 10005
	ErrServerFault Status = 10006
	ErrBadType     Status = 10007
	ErrJukebox     Status = 10008
)

// statusRow ties a status to its name and to what a store calls it.
type statusRow struct {
	status Status
	name   string
	err    error // nil: no store says so
}

// statuses is in the order in which StatusOf looks.
var statuses = [...]statusRow{
	{OK, "OK", nil},
	{ErrNoEnt, "NOENT", blockstore.ErrNotExist},
	{ErrExist, "EXIST", blockstore.ErrExist},
	{ErrAcces, "ACCES", blockstore.ErrAccess},
	{ErrJukebox, "JUKEBOX", blockstore.ErrJukebox},
	{ErrStale, "STALE", blockstore.ErrStale},
	{ErrPerm, "PERM", blockstore.ErrPerm},
	{ErrIO, "IO", blockstore.ErrIO},
	{ErrNXIO, "NXIO", blockstore.ErrNXIO},
	{ErrXDev, "XDEV", blockstore.ErrXDev},
	{ErrNoDev, "NODEV", blockstore.ErrNoDev},
	{ErrNotDir, "NOTDIR", blockstore.ErrNotDir},
	{ErrIsDir, "ISDIR", blockstore.ErrIsDir},
	{ErrInval, "INVAL", blockstore.ErrInval},
	{ErrFBig, "FBIG", blockstore.ErrFBig},
	{ErrNoSpc, "NOSPC", blockstore.ErrNoSpace},
	{ErrROFS, "ROFS", blockstore.ErrROFS},
	{ErrMLink, "MLINK", blockstore.ErrMLink},
	{ErrNameTooLong, "NAMETOOLONG", blockstore.ErrNameTooLong},
	{ErrNotEmpty, "NOTEMPTY", blockstore.ErrNotEmpty},
	{ErrDQuot, "DQUOT", blockstore.ErrQuota},
	{ErrRemote, "REMOTE", nil},
	{ErrBadHandle, "BADHANDLE", blockstore.ErrBadHandle},
	{ErrNotSync, "NOT_SYNC", blockstore.ErrNotSync},
	{ErrBadCookie, "BAD_COOKIE", blockstore.ErrBadCookie},
	{ErrNotSupp, "NOTSUPP", blockstore.ErrNotSupp},
	{ErrTooSmall, "TOOSMALL", nil},
	{ErrServerFault, "SERVERFAULT", nil},
	{ErrBadType, "BADTYPE", blockstore.ErrBadType},
}

// StatusOf is the status for a store's error. A store that would have to wait
// where it must not is a reason for the client to come again; an error outside
// the vocabulary is IO.
func StatusOf(err error) Status {
	if err == nil {
		return OK
	}
	var s Status
	if errors.As(err, &s) {
		return s
	}
	for i := range statuses {
		if r := &statuses[i]; r.err != nil && errors.Is(err, r.err) {
			return r.status
		}
	}
	if errors.Is(err, blockstore.ErrWouldBlock) {
		return ErrJukebox
	}
	return ErrIO
}

func (s Status) row() int {
	for i := range statuses {
		if statuses[i].status == s {
			return i
		}
	}
	return -1
}

// String is the name in RFC 1813, without its prefix.
func (s Status) String() string {
	if i := s.row(); i >= 0 {
		return statuses[i].name
	}
	return fmt.Sprintf("status %d", uint32(s))
}

// Error implements error.
func (s Status) Error() string {
	if i := s.row(); i >= 0 && statuses[i].err != nil {
		return statuses[i].err.Error()
	}
	switch s {
	case OK:
		return "success"
	case ErrRemote:
		return "too many levels of remote in path"
	case ErrTooSmall:
		return "the reply does not fit into the size that was asked for"
	case ErrServerFault:
		return "the server failed"
	}
	return fmt.Sprintf("unknown NFS status %d", uint32(s))
}

// Is makes a status match the store error that it stands for.
func (s Status) Is(target error) bool {
	i := s.row()
	return i >= 0 && statuses[i].err != nil && statuses[i].err == target
}

// Err is s as an error: nil for OK.
func (s Status) Err() error {
	if s == OK {
		return nil
	}
	return s
}
