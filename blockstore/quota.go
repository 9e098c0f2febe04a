package blockstore

// Quotas is optional: a store that has quotas of users, if Limits.Quotas says so.
type Quotas interface {
	// Quota returns the quota of the caller in the filesystem of an object.
	Quota(c *Cred, h Handle) (Quota, error)
}

// ProjectQuotas is optional: a store whose directories can be in projects with quotas.
type ProjectQuotas interface {
	// ProjectQuota returns the quota of the project of a directory: new files in the directory
	// count against this quota. It returns the zero Quota if there is none.
	ProjectQuota(dir Handle) (Quota, error)
}

// Quota is the use and the limits of a user or project: bytes, and numbers of files. A limit of 0
// means that there is none.
type Quota struct {
	Used, Soft, Hard            uint64
	Files, FilesSoft, FilesHard uint64
	// Until and FilesUntil are when exceeded soft limits become hard ones, in seconds since 1970; 0
	// if they are not exceeded.
	Until, FilesUntil int64
}

// Left returns how many bytes of a limit are left. avail is what the filesystem has for all users.
func (q *Quota) Left(limit, avail uint64) uint64 {
	switch {
	case limit == 0:
		return avail
	case limit <= q.Used:
		return 0
	}
	return min(limit-q.Used, avail)
}
