package daemon

import (
	"context"
	"strings"
	"testing"
	"time"
)

// TestWatchdog: a packet loop that hangs is noticed, and what is well is not said to be ill.
func TestWatchdog(t *testing.T) {
	d, _ := startDaemon(t, testConfig(t, "memory:m"))
	defer stopDaemon(t, d)
	if err := d.CheckLoops(t.Context()); err != nil {
		t.Fatal(err)
	}
	release := make(chan struct{})
	dev := d.devices.List()[0]
	hangs := make(chan struct{})
	dev.Loops()[0].Submit(func() { close(hangs); <-release })
	<-hangs
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := d.CheckLoops(ctx); err == nil || !strings.Contains(err.Error(), dev.Choice.Addr.String()) {
		t.Errorf("with a loop that hangs: %v", err)
	}
	close(release)
	if err := d.CheckLoops(t.Context()); err != nil {
		t.Errorf("after it went on: %v", err)
	}
}
