package control

import (
	"encoding/json"
	"net/http"

	"go.yaml.in/yaml/v3"
)

// Action is a request that can change something, that shows what clients do, or that was refused.
type Action struct {
	Peer    Peer
	Method  string
	Request string // path and query
	Status  int    // of HTTP
	Error   string // that was answered; empty if it was done
	// Old and New are the values that have changed, by name. A value that did not exist is missing.
	Old, New map[string]any
}

// answered records the status of an answer, and its error.
type answered struct {
	http.ResponseWriter
	status int
	err    string
}

// WriteHeader implements http.ResponseWriter.
func (a *answered) WriteHeader(status int) {
	a.status = status
	a.ResponseWriter.WriteHeader(status)
}

// Unwrap is for http.ResponseController.
func (a *answered) Unwrap() http.ResponseWriter { return a.ResponseWriter }

// Snapshot has everything that actions can change, by name.
func Snapshot(b Backend) map[string]any {
	out := map[string]any{"log_level": b.Status().LogLevel, "pprof": b.Ops().Pprof, "grace": b.Grace().On}
	for _, e := range b.Exports() {
		out["export "+e.Pseudo] = e
	}
	for _, p := range b.Ports() {
		out["port "+p.Transport+" "+p.Listen] = p
	}
	for _, k := range b.PKeys() {
		out["pkey "+k.PKey] = k
	}
	for _, c := range b.NFS4Clients() {
		out["client "+c.ID] = c.Owner
	}
	var cfg map[string]any
	if y, err := b.Config(); err == nil && yaml.Unmarshal(y, &cfg) == nil {
		for k, v := range cfg {
			out["config "+k] = v
		}
	}
	return out
}

// Difference returns the values of two snapshots that differ.
func Difference(before, after map[string]any) (was, is map[string]any) {
	was, is = make(map[string]any), make(map[string]any)
	for k, v := range before {
		if w, ok := after[k]; !ok || !sameJSON(v, w) {
			was[k] = v
		}
	}
	for k, v := range after {
		if w, ok := before[k]; !ok || !sameJSON(v, w) {
			is[k] = v
		}
	}
	return was, is
}

func sameJSON(a, b any) bool {
	x, err := json.Marshal(a)
	y, err2 := json.Marshal(b)
	return err == nil && err2 == nil && string(x) == string(y)
}
