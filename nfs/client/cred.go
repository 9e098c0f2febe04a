package client

import (
	"context"

	"github.com/rstored/rstored/rpcrdma/rpc"
)

type credKey struct{}

// WithCred returns a context whose calls have the identity cred in place of Config.Cred. A
// program that serves several users has one client for all of them. The caller does not change
// cred any more.
//
// Calls that concern the client as a whole (EXCHANGE_ID, CREATE_SESSION and the like) keep the
// identity of the client.
func WithCred(ctx context.Context, cred *rpc.Cred) context.Context {
	return context.WithValue(ctx, credKey{}, cred)
}

// credOf returns the identity of a call with ctx.
func credOf(ctx context.Context, of *rpc.Cred) *rpc.Cred {
	if c, _ := ctx.Value(credKey{}).(*rpc.Cred); c != nil {
		return c
	}
	return of
}
