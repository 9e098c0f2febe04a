package nfs4

import "github.com/rstored/rstored/nfs"

// Statuses that this server never has.
const (
	errBadiomode          nfs.Status = 10049
	errBadlayout          nfs.Status = 10050
	errBadSessionDigest   nfs.Status = 10051
	errDelegAlreadyWanted nfs.Status = 10056
	errBackChanBusy       nfs.Status = 10057
	errLayouttrylater     nfs.Status = 10058
	errLayoutunavailable  nfs.Status = 10059
	errRecallconflict     nfs.Status = 10061
	errUnknownLayouttype  nfs.Status = 10062
	errPnfsIoHole         nfs.Status = 10075
	errPnfsNoLayout       nfs.Status = 10080
	errDirdelegUnavail    nfs.Status = 10084
)
