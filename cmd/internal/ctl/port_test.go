package ctl

import "testing"

// TestPortSpec: where to listen, in the spelling of the daemon.
func TestPortSpec(t *testing.T) {
	for _, c := range []struct{ transport, where, want string }{
		{"rdma", "10.0.0.1", "10.0.0.1:20049"},
		{"rdma", "0.0.0.0", "0.0.0.0:20049"},
		{"rdma", "7", ":7"},
		{"rdma", ":7", ":7"},
		{"rdma", "fd00::1", "[fd00::1]:20049"},
		{"rdma", "[fd00::1]:7", "[fd00::1]:7"},
		{"rdma", "soft://10.0.0.1", "soft://10.0.0.1:20049"},
		{"rdma", "verbs://mlx5_0", "verbs://mlx5_0:20049"},
		{"rdma", "verbs://mlx5_0:7", "verbs://mlx5_0:7"},
		{"rdma", "verbs://[fd00::1]", "verbs://[fd00::1]:20049"},
		{"rdma", "verbs://7", "verbs://:7"},
		{"perf", "verbs://10.0.0.1", "verbs://10.0.0.1:18515"},
		{"tcp", "10.0.0.1", "10.0.0.1:2049"},
		{"tcp", "soft://10.0.0.1", ""},
		{"rdma", "rxe://10.0.0.1", ""},
		{"rdma", "soft://mlx5_0", ""},
		{"rdma", "mlx5_0", ""},
		{"rdma", "10.0.0.1:0", ""},
		{"rdma", "", ":20049"},
		{"disk", "10.0.0.1", ""},
	} {
		args := []string{c.transport}
		if c.where != "" {
			args = append(args, c.where)
		}
		p, err := portSpec(args)
		if (err != nil) != (c.want == "") || err == nil && (p.Listen != c.want || p.Transport != c.transport) {
			t.Errorf("%q: %+v, %v", args, p, err)
		}
	}
}
