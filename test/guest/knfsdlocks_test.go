package guest

import (
	"context"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/rstored/rstored/nfs/client"
)

// TestLocksOfKernel is what the cases of knfsd start in the network of their guest.
func TestLocksOfKernel(t *testing.T) {
	args := strings.Fields(os.Getenv(locksEnv))
	if len(args) != 3 {
		t.Skip("not started by a case")
	}
	v, err := client.ParseVersion(args[2])
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 6*time.Minute)
	defer cancel()
	if err := kernelLocks(ctx, args[0], args[1], v); err != nil {
		t.Fatal(err)
	}
	if err := kernelDelegations(ctx, args[0], args[1], v); err != nil {
		t.Fatal(err)
	}
}

// TestConnectionsOfKernel is the same for several connections of one client.
func TestConnectionsOfKernel(t *testing.T) {
	args := strings.Fields(os.Getenv(manyEnv))
	if len(args) != 2 {
		t.Skip("not started by a case")
	}
	v, err := client.ParseVersion(args[1])
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	if err := kernelConnections(ctx, args[0], v); err != nil {
		t.Fatal(err)
	}
}
