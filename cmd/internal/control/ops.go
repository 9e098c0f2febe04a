package control

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"net/url"
	"time"

	"go.uber.org/zap"
)

// OpsBackend is the part of a Backend for monitoring.
type OpsBackend interface {
	Ops() Ops
	SetPprof(on bool)
	Slow() []SlowCall
	Denials() []Denial
	// Trace writes calls as lines of JSON (TraceCall) to w until ctx ends, and calls flush after
	// each line.
	Trace(ctx context.Context, client netip.Addr, w io.Writer, flush func() error) error
}

// Ops describes the ops ports.
type Ops struct {
	Addresses []string `json:"addresses"` // of the ops ports
	Pprof     bool     `json:"pprof"`     // profiles are answered there
}

// SlowCall is a slow call with the places where its time went, in microseconds. The server itself
// took the rest of TookUS.
type SlowCall struct {
	Ended     time.Time `json:"ended"`
	Client    string    `json:"client"`
	Transport string    `json:"transport"`
	Operation string    `json:"operation"` // as in nfs4.READ
	Export    string    `json:"export"`    // empty: about none
	XID       string    `json:"xid"`
	Status    string    `json:"status"`
	BytesIn   int       `json:"bytes_in"`
	BytesOut  int       `json:"bytes_out"`
	TookUS    int64     `json:"took_us"`
	// QueueUS is the wait for a worker, RDMAUS the wait for registered memory and for data by RDMA
	// READ, StoreUS the time in the store.
	QueueUS int64 `json:"queue_us"`
	RDMAUS  int64 `json:"rdma_us"`
	StoreUS int64 `json:"store_us"`
}

// Denial is a client that the rules of an export, or the setting nfs_versions, have denied.
type Denial struct {
	Client string    `json:"client"`
	Export string    `json:"export"` // empty if it asked for a version that is not served
	Reason string    `json:"reason"` // the rule and its option
	Count  uint64    `json:"count"`
	Last   time.Time `json:"last"`
}

func onOff(on bool) string {
	if on {
		return "on"
	}
	return "off"
}

func setOps(b Backend, r *http.Request) error {
	switch v := r.FormValue("pprof"); v {
	case "on", "off":
		b.SetPprof(v == "on")
		return nil
	default:
		return fmt.Errorf("pprof=%q is neither on nor off", v)
	}
}

// TraceCall is a call in a trace.
type TraceCall struct {
	SlowCall
	UID       uint32 `json:"uid"` // of AUTH_SYS
	Arguments string `json:"arguments"`
	// Missed counts the calls before this one that the trace dropped because it was too slow.
	Missed uint64 `json:"missed,omitempty"`
}

// trace answers GET /v1/trace.
func (s *Server) trace(w http.ResponseWriter, r *http.Request) {
	var client netip.Addr
	if v := r.FormValue("client"); v != "" {
		var err error
		if client, err = netip.ParseAddr(v); err != nil {
			reply(w, http.StatusBadRequest, failure{fmt.Sprintf("client %q is not an IP address", v)})
			return
		}
	}
	w.Header().Set("Content-Type", "application/x-ndjson")
	control := http.NewResponseController(w)
	if err := control.Flush(); err != nil { // the headers
		return
	}
	if err := s.b.Trace(r.Context(), client.Unmap(), w, control.Flush); err != nil {
		s.log.Warn("control: a trace ended", zap.Error(err))
	}
}

// Trace calls f for each call of a client, or of all clients if the address is not valid, until ctx
// ends or f returns an error.
func (d *Dialer) Trace(ctx context.Context, client netip.Addr, f func(*TraceCall) error) error {
	q := url.Values{}
	if client.IsValid() {
		q.Set("client", client.String())
	}
	res, err := d.open(ctx, http.MethodGet, "/v1/trace", q, nil)
	if err != nil {
		return err
	}
	defer func() { _ = res.Body.Close() }()
	for dec := json.NewDecoder(res.Body); ; {
		var c TraceCall
		err := dec.Decode(&c)
		switch {
		case ctx.Err() != nil, errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		}
		if err := f(&c); err != nil {
			return err
		}
	}
}
