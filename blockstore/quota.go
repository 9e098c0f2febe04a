package blockstore

// Quotas is optional: a store that has quotas of users, if Limits.Quotas says so.
type Quotas interface {
	// Quota returns the quota of the caller in the filesystem of an object.
	Quota(c *Cred, h Handle) (Quota, error)
}

// Quota is what a user has, in bytes. A limit of 0 is none.
type Quota struct {
	Used, Soft, Hard uint64
}

// Left is how much of a limit is left, if the filesystem has avail bytes for everybody.
func (q *Quota) Left(limit, avail uint64) uint64 {
	switch {
	case limit == 0:
		return avail
	case limit <= q.Used:
		return 0
	}
	return min(limit-q.Used, avail)
}
