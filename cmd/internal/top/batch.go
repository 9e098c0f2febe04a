package top

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/rstored/rstored/cmd/internal/live"
)

// Fetch asks the server for a sample.
type Fetch func(context.Context) (*live.Sample, error)

// Batch is top for scripts and logs.
type Batch struct {
	Fetch    Fetch
	Interval time.Duration
	Count    int  // views to write; 0 is no end
	JSON     bool // a View in each line
	// All writes every table, not only the one of Model. Rows bounds the rows of each; 0 is no
	// bound.
	All   bool
	Rows  int
	Model *Model
}

// Run writes Count views, the first one after an interval. It ends earlier if ctx ends, or if the
// server does not answer. The end of ctx is not an error.
func (b *Batch) Run(ctx context.Context, w io.Writer) error {
	before, err := b.Fetch(ctx)
	t := time.NewTicker(b.Interval)
	defer t.Stop()
	for n := 0; err == nil && (b.Count == 0 || n < b.Count); n++ {
		select {
		case <-ctx.Done():
			return nil
		case <-t.C:
		}
		var after *live.Sample
		if after, err = b.Fetch(ctx); err == nil {
			err = b.write(w, live.Between(before, after), n)
			before = after
		}
	}
	if errors.Is(ctx.Err(), context.Canceled) {
		return nil
	}
	return err
}

func (b *Batch) write(w io.Writer, v *live.View, n int) error {
	if b.JSON {
		enc := json.NewEncoder(w)
		enc.SetEscapeHTML(false)
		return enc.Encode(v)
	}
	b.Model.Show(v)
	lines := b.Model.header()
	if n > 0 {
		lines = append([]string{""}, lines...)
	}
	for i := range tables {
		if !b.All && i != b.Model.table {
			continue
		}
		list, _ := b.Model.lines(i)
		if len(list) == 0 {
			continue
		}
		if b.Rows > 0 {
			list = list[:min(b.Rows, len(list))]
		}
		lines = append(append(lines, ""), b.Model.format(i, list)...)
	}
	for _, l := range lines {
		if _, err := fmt.Fprintln(w, l); err != nil {
			return err
		}
	}
	return nil
}
