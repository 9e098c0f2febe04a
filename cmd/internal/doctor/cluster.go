package doctor

import "github.com/rstored/rstored/cmd/internal/control"

// cluster checks the cluster of servers, and the Ceph below it.
func (r *Report) cluster(h control.ClusterHealth) {
	if h.Node == "" {
		return // the server is alone
	}
	level := Warn
	if h.Ceph != "HEALTH_WARN" {
		level = Fail
	}
	switch {
	case h.Error != "":
		r.add(Fail, "ceph", "is the keyring of this host readable, has its client the capability \"mon 'allow r'\", and are "+
			"the monitors reachable? 'ceph -s' as the same client shows it", "the monitors of Ceph do not answer: %s", h.Error)
	case h.Ceph == "HEALTH_OK":
		r.ok("ceph", "Ceph is HEALTH_OK")
	case len(h.Checks) == 0:
		r.add(level, "ceph", "ceph health detail", "Ceph is %s", h.Ceph)
	}
	for _, c := range h.Checks {
		r.add(level, "ceph", "ceph health detail", "%s: %s", h.Ceph, c)
	}
	for _, n := range h.Lost {
		r.add(Warn, "cluster", "start it again, or move its address to another server ('rstorectl cluster nodes')",
			"the server %s is lost, and its clients reclaim", n)
	}
	const old = 60
	if h.ReadSeconds > old {
		r.add(Fail, "cluster", "ceph -s", "the state of the cluster could not be read for %.0f s: no client gets new opens "+
			"or locks", h.ReadSeconds)
	}
}
