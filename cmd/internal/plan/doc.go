// Package plan says what a change of exports and ports would do: the changes themselves, and which
// clients would notice. It asks the rules of now and those to come about every client that is
// connected, or that the recorder has seen with an export, as the NFS servers ask them for a call.
//
// It changes nothing, and knows nothing of where a change comes from: what is compared comes from
// cmd/internal/desired. Begin with plan.go; disruptions.go has the clients. A Running is made for
// one Plan, and used by one goroutine. What it refers to may serve calls meanwhile.
//
//	r := plan.Running{State: now, Exports: set, Table: table, NFS4: clients, Locks: locks}
//	p := r.Plan(&next) // p.Changes, p.Disruptions
package plan
