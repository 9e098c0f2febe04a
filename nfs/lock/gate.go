package lock

// Gate says whether new locks may be granted. A grace period that several servers share can begin
// while a lock is being taken in a file system that they share.
type Gate interface {
	// Begin reports whether a lock may be granted now. After true the period is not enforced before
	// End. Both must not wait.
	Begin() bool
	End()
}

// UseGate lets the table grant new locks, also to requests that wait, only as a gate allows.
// Reclaims do not ask it. Requests that wait need Retry after the gate has opened. Call it before
// anything else.
func (t *Table) UseGate(g Gate) { t.gate = g }

// Reclaim is Lock for a lock that the owner had before, in a grace period.
func (t *Table) Reclaim(f File, l Lock) (holder Lock, ok bool, err error) {
	holder, ok, granted, err := t.lock(f, &l, nil, true)
	t.notify(granted)
	return holder, ok, err
}
