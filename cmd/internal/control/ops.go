package control

import (
	"fmt"
	"net/http"
	"time"
)

// OpsBackend is the part of a Backend that says how it is watched.
type OpsBackend interface {
	Ops() Ops
	SetPprof(on bool)
	Slow() []SlowCall
}

// Ops says how the daemon is watched.
type Ops struct {
	Addresses []string `json:"addresses"` // of the ops ports
	Pprof     bool     `json:"pprof"`     // profiles are answered there
}

// SlowCall is a call that took long, and where its time went, in microseconds. What is left of
// TookUS was spent in the server itself.
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
	// QueueUS: it waited for a worker. RDMAUS: it waited for registered memory, and for
	// its data by RDMA READ. StoreUS: in the store.
	QueueUS int64 `json:"queue_us"`
	RDMAUS  int64 `json:"rdma_us"`
	StoreUS int64 `json:"store_us"`
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
