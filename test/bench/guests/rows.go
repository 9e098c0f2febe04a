package main

import (
	"fmt"

	"github.com/rstored/rstored/test/bench/compare"
)

// The variants.
const (
	knfsd   compare.Variant = "knfsd guest kernel"
	inGuest compare.Variant = "rstored guest kernel"
	onHost  compare.Variant = "rstored host kernel"
)

// place is where the client has mounted what a variant serves.
func place(v compare.Variant) string {
	switch v {
	case knfsd:
		return "knfsd"
	case inGuest:
		return "guest"
	}
	return "host"
}

// What the client works on: a file of so many MiB for each of the jobs. It is small, so that all
// of it has been touched when it counts: a page that a process in User-Mode Linux touches first
// takes longer than sending it.
const (
	jobs   = 8
	sizeMB = 8
)

// experiment is what fio does.
type experiment struct {
	name    string
	version string // of NFS
	where   string // memory or disk
	rw      string // fio's name of it
	block   string
	measure string
	metric  compare.Metric
	sec     string // the flavor, if it is not sys; then the same with sys is measured as well
}

// flavors are those of Kerberos.
var flavors = []string{"krb5", "krb5i", "krb5p"}

var (
	rate   = compare.Metric{Unit: "MB/s", Scale: 1e-6, Of: func(s *compare.Sample) float64 { return s.Rate }}
	ops    = compare.Metric{Unit: "/s", Scale: 1, Of: func(s *compare.Sample) float64 { return s.Ops }}
	perGiB = compare.Metric{
		Unit: "CPU s/GiB", Scale: 1, Less: true,
		Of: func(s *compare.Sample) float64 { return s.PerGiB },
	}
	// share is of what the same server does with sec=sys, measured right before.
	share = compare.Metric{Unit: "% of sys", Scale: 100, Of: func(s *compare.Sample) float64 { return s.Value }}
)

func experiments() (all []experiment) {
	for _, version := range []string{"3", "4.2"} {
		for _, where := range []string{"memory", "disk"} {
			files := map[string]string{"memory": "tmpfs", "disk": "ext4"}[where]
			for _, e := range []experiment{
				{rw: "read", block: "1m", measure: "sequential READ 1 MiB", metric: rate},
				{rw: "write", block: "1m", measure: "sequential WRITE 1 MiB", metric: rate},
				{rw: "randread", block: "4k", measure: "random READ 4 KiB", metric: ops},
			} {
				e.version, e.where = version, where
				e.name = fmt.Sprintf("%s-%s-%s", version, where, e.rw)
				e.measure = fmt.Sprintf("%s, version %s, %s", e.measure, version, files)
				all = append(all, e)
			}
		}
	}
	for _, sec := range flavors {
		for _, e := range []experiment{
			{rw: "read", block: "1m", measure: "sequential READ 1 MiB", metric: rate},
			{rw: "write", block: "1m", measure: "sequential WRITE 1 MiB", metric: rate},
			{rw: "randread", block: "4k", measure: "random READ 4 KiB", metric: ops},
		} {
			e.version, e.where, e.sec = secVersion, secWhere, sec
			e.name = sec + "-" + e.rw
			e.measure = fmt.Sprintf("%s, version %s, tmpfs, sec=%s", e.measure, secVersion, sec)
			all = append(all, e)
		}
	}
	return all
}

// What is measured with Kerberos.
const (
	secVersion = "4.2"
	secWhere   = "memory"
)

// variants are what an experiment measures.
func (e *experiment) variants() []compare.Variant {
	if e.sec != "" {
		return []compare.Variant{knfsd, onHost}
	}
	return []compare.Variant{knfsd, inGuest, onHost}
}

func rows() (all []compare.Row) {
	for _, e := range experiments() {
		r := compare.Row{
			Measure: e.measure, Against: "knfsd", Experiment: e.name, Metric: e.metric,
			Ours: []compare.Variant{onHost}, Peer: []compare.Variant{knfsd}, Wanted: 1.2,
		}
		if e.sec != "" {
			r.Wanted = 1
			all = append(all, r)
			r.Measure, r.Metric = "server CPU of "+e.measure, perGiB
			all = append(all, r)
			r.Measure, r.Metric = "share of sec=sys of "+e.measure, share
			all = append(all, r)
			continue
		}
		all = append(all, r)
		r.Measure, r.Metric, r.Wanted = "server CPU of "+e.measure, perGiB, 1
		all = append(all, r)
		r.Measure, r.Metric, r.Wanted = e.measure+", rstored in the guest", e.metric, 0
		r.Ours = []compare.Variant{inGuest}
		if e.rw == "randread" {
			// A system call in the guest takes 71 µs, and knfsd makes none.
			r.Wanted = 0.7
		}
		all = append(all, r)
	}
	return all
}
