// Package plan says what a change of exports and ports would do: the changes themselves, and which
// clients would notice. It asks the rules of now and those to come about every client that is
// connected, or that the recorder has seen with an export, as the NFS servers ask them for a call.
//
// It changes nothing. What is compared comes from cmd/internal/desired. Begin with plan.go;
// disruptions.go has the clients.
package plan
