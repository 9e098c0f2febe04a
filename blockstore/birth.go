package blockstore

import "time"

// Births is optional: a store that knows when objects were made, if Limits.Births says so.
type Births interface {
	// Birth returns when an object was made. Nothing changes this time. Every user may call it.
	Birth(c *Cred, h Handle) (time.Time, error)
}
