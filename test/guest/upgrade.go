package guest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"
)

// upgrades has another process of the same program take the daemon's place five times, under load.
func upgrades(ctx context.Context, r *Run) error {
	if err := r.Await(ctx, "loaded"); err != nil {
		return err
	}
	locks, err := r.CtlOutput("locks", "-o", "json")
	if err != nil {
		return err
	}
	for range 5 {
		if err := r.Sleep(ctx, 2*time.Second); err != nil {
			return err
		}
		out, err := r.CtlOutput("upgrade", "-o", "json")
		if err != nil {
			return errors.Join(err, errors.New(lastLines(r.log.Name(), 5)))
		}
		var u struct {
			RDMA    int     `json:"rdma_connections"`
			TCP     int     `json:"tcp_connections"`
			Dropped int     `json:"dropped_connections"`
			Pause   float64 `json:"pause_ms"`
		}
		if err := json.Unmarshal([]byte(out), &u); err != nil {
			return err
		}
		r.Logf("upgraded, a pause of %.1f ms, %d connections over RDMA and %d over TCP", u.Pause, u.RDMA, u.TCP)
		if u.RDMA+u.TCP == 0 || u.Dropped != 0 {
			return fmt.Errorf("connections were lost: %s", out)
		}
	}
	if after, err := r.CtlOutput("locks", "-o", "json"); err != nil || after != locks {
		return errors.Join(fmt.Errorf("the locks were %s, and are %s", locks, after), err)
	}
	if err := r.Sleep(ctx, 2*time.Second); err != nil {
		return err
	}
	return r.Tell("stop")
}
