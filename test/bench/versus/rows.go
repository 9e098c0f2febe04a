package main

import (
	"context"
	"fmt"
	"strings"

	"github.com/rstored/rstored/test/bench/compare"
)

// The variants. Those of the transport have the kind of datagrams and their window in the
// place of carrier and client.
const (
	rdma       compare.Variant = "rstored rdma go"
	tcp        compare.Variant = "rstored tcp go"
	tcpLibnfs  compare.Variant = "rstored tcp libnfs"
	gan        compare.Variant = "ganesha tcp go"
	ganLibnfs  compare.Variant = "ganesha tcp libnfs"
	goNFS      compare.Variant = "go-nfs tcp go"
	goLibnfs   compare.Variant = "go-nfs tcp libnfs"
	verbs      compare.Variant = "rstored verbs perf"
	bareStream compare.Variant = "udp stream 512"
	barePing   compare.Variant = "udp wait 1"
	bareKernel compare.Variant = "udp ping 1"
	bareSingle compare.Variant = "udp single 1024"
	bareDepth  compare.Variant = "udp single 64"
	// Whole files: the last word is the program that copies.
	rdmaCopy   compare.Variant = "rstored rdma rstorectl"
	tcpCopy    compare.Variant = "rstored tcp rstorectl"
	ganCopy    compare.Variant = "ganesha tcp rstorectl"
	libnfsCopy compare.Variant = "ganesha tcp libnfs"
)

// kinds are of variants, for the rows that take the fastest.
var (
	ganesha = []compare.Variant{gan, ganLibnfs}
	ourTCP  = []compare.Variant{tcp, tcpLibnfs}
	gonfs   = []compare.Variant{goNFS, goLibnfs}
)

// flavors are those of Kerberos, with the share of sys that a row wants; 0: none.
var flavors = []struct {
	name   string
	wanted float64
}{{"krb5", 0.9}, {"krb5i", 0}, {"krb5p", 0}}

const rcPackets = 256 // of 1 MiB with a path MTU of 4096

func experiments() []experiment {
	const mib = 1 << 20
	return []experiment{
		// Before anything else: memory that the server has from before is used again.
		{name: "idle", run: func(ctx context.Context, m *measurer, v compare.Variant) (compare.Sample, error) {
			return idle(ctx, m, v)
		}},
		perf("rc-write", mib, "write", "bw"),
		perf("rc-read", mib, "read", "bw"),
		perf("rc-latency", 64, "send", "lat"),
		perf("rc-rate", 64, "send", "bw", "-t", "64"),
		nfs("read", "memory", "read", mib, 16),
		nfs("write", "memory", "write", mib, 16),
		nfs("write-disk", "disk", "write", mib, 16),
		nfs("random-read", "memory", "random-read", 4096, 32),
		nfs("random-write", "memory", "random-write", 4096, 32),
		nfs("getattr", "memory", "getattr", 1, 32),
		nfs("lookup", "memory", "lookup", 1, 32),
		nfs("create", "memory", "create", 1, 16),
		nfs("readdir", "memory", "readdir", 1, 1),
		nfs("read-latency", "memory", "random-read", 4096, 1),
		nfs("write-latency", "memory", "random-write", 4096, 1),
		copies("large-in", "large", false),
		copies("large-out", "large", true),
		copies("tree-in", "tree", false),
		copies("tree-out", "tree", true),
		{name: "allocs-packet", run: allocations("roce.test", "^BenchmarkDevice$/^WRITE$/^1048576$", rcPackets)},
		{name: "allocs-read", run: allocations("nfs.test", "^BenchmarkNFS$/^rdma$/^READ$/^1024KiB$/^16-in-flight$", 1)},
		{name: "allocs-write", run: allocations("nfs.test", "^BenchmarkNFS$/^rdma$/^WRITE$/^1024KiB$/^16-in-flight$", 1)},
	}
}

var (
	rate   = compare.Metric{Unit: "MB/s", Scale: 1e-6, Of: func(s *compare.Sample) float64 { return s.Rate }}
	ops    = compare.Metric{Unit: "/s", Scale: 1, Of: func(s *compare.Sample) float64 { return s.Ops }}
	median = compare.Metric{Unit: "us", Scale: 1e6, Less: true, Of: func(s *compare.Sample) float64 { return s.P50 }}
	tail   = compare.Metric{Unit: "us", Scale: 1e6, Less: true, Of: func(s *compare.Sample) float64 { return s.P99 }}
	perGiB = compare.Metric{
		Unit: "CPU s/GiB", Scale: 1, Less: true,
		Of: func(s *compare.Sample) float64 { return s.PerGiB },
	}
	perOp = compare.Metric{Unit: "CPU us", Scale: 1e6, Less: true, Of: func(s *compare.Sample) float64 { return s.PerOp }}
	count = compare.Metric{Unit: "", Scale: 1, Less: true, Of: func(s *compare.Sample) float64 { return s.Value }}
	kib   = compare.Metric{
		Unit: "KiB", Scale: 1. / 1024, Less: true,
		Of: func(s *compare.Sample) float64 { return s.Value },
	}
)

// row is one in the order of its fields.
type row compare.Row

func rows() []compare.Row {
	one := func(v compare.Variant) []compare.Variant { return []compare.Variant{v} }
	const (
		bare      = "bare UDP with GSO and GRO, ICRC and one copy"
		byGanesha = "Ganesha over TCP"
		byOurTCP  = "rstored over TCP"
	)
	rs := []row{
		{"RC RDMA WRITE 1 MiB", bare, "rc-write", rate, one(verbs), one(bareStream), nil, 0.9},
		{"RC RDMA READ 1 MiB", bare, "rc-read", rate, one(verbs), one(bareStream), nil, 0.9},
		{"RC SEND 64 B ping-pong, median", "UDP ping-pong", "rc-latency", median, one(verbs), one(barePing), nil, 1.3},
		{"RC SEND 64 B ping-pong, p99", "UDP ping-pong", "rc-latency", tail, one(verbs), one(barePing), nil, 1.3},
		{
			"RC SEND 64 B ping-pong, median", "UDP ping-pong that waits in the kernel", "rc-latency", median, one(verbs),
			one(bareKernel), nil, 1.3,
		},
		{
			"RC SEND 64 B ping-pong, p99", "UDP ping-pong that waits in the kernel", "rc-latency", tail, one(verbs),
			one(bareKernel), nil, 1.3,
		},
		{"RC SEND 64 B, 64 under way", "single datagrams", "rc-rate", ops, one(verbs), one(bareSingle), nil, 0.7},
		{
			"RC SEND 64 B, 64 under way", "single datagrams, 64 under way", "rc-rate", ops, one(verbs), one(bareDepth), nil,
			0.7,
		},
		{"READ 1 MiB over RDMA, 16 in flight", byGanesha, "read", rate, one(rdma), ganesha, nil, 2},
		{"READ 1 MiB over RDMA, 16 in flight", "go-nfs over TCP", "read", rate, one(rdma), gonfs, nil, 10},
		{"READ 1 MiB over RDMA, 16 in flight", byOurTCP, "read", rate, one(rdma), ourTCP, nil, 1.1},
		{"WRITE 1 MiB and COMMIT over RDMA, 16 in flight, tmpfs", byGanesha, "write", rate, one(rdma), ganesha, nil, 2},
		{"WRITE 1 MiB and COMMIT over RDMA, 16 in flight, disk", byGanesha, "write-disk", rate, one(rdma), ganesha, nil, 2},
		{"WRITE 1 MiB and COMMIT over RDMA, 16 in flight, tmpfs", byOurTCP, "write", rate, one(rdma), ourTCP, nil, 1.1},
		{"random READ 4 KiB over RDMA, 32 in flight", byGanesha, "random-read", ops, one(rdma), ganesha, nil, 2},
		{"random WRITE 4 KiB over RDMA, 32 in flight", byGanesha, "random-write", ops, one(rdma), ganesha, nil, 2},
		{"random READ 4 KiB over RDMA, 32 in flight", byOurTCP, "random-read", ops, one(rdma), ourTCP, nil, 1.2},
		{"random WRITE 4 KiB over RDMA, 32 in flight", byOurTCP, "random-write", ops, one(rdma), ourTCP, nil, 1.2},
		{"READ 4 KiB over RDMA, one at a time, median", byOurTCP, "read-latency", median, one(rdma), one(tcp), nil, 1.1},
		{"WRITE 4 KiB over RDMA, one at a time, median", byOurTCP, "write-latency", median, one(rdma), one(tcp), nil, 1.1},
	}
	for _, e := range []struct{ name, experiment string }{
		{"GETATTR", "getattr"},
		{"LOOKUP", "lookup"},
		{"CREATE and REMOVE", "create"},
		{"READDIRPLUS", "readdir"},
	} {
		rs = append(rs, row{e.name + " over RDMA", byOurTCP, e.experiment, ops, one(rdma), ourTCP, nil, 1})
	}
	for _, e := range []struct {
		name, experiment string
		metric           compare.Metric
	}{
		{"a file of 256 MiB, in", "large-in", rate},
		{"a file of 256 MiB, out", "large-out", rate},
		{"files of 4 KiB in 128 directories, in", "tree-in", ops},
		{"files of 4 KiB in 128 directories, out", "tree-out", ops},
	} {
		name := "rstorectl over RDMA, " + e.name
		rs = append(rs, row{name, byOurTCP, e.experiment, e.metric, one(rdmaCopy), one(tcpCopy), nil, 1})
		if e.metric.Unit == ops.Unit {
			const together = "Ganesha over TCP, 16 at a time"
			rs = append(
				rs,
				row{name, together, e.experiment, ops, one(rdmaCopy), one(libnfsCopy), nil, 2},
				row{name, byGanesha, e.experiment, ops, one(rdmaCopy), one(ganCopy), nil, 2},
			)
		}
	}
	for _, c := range []struct {
		name       string
		ours, peer compare.Variant
	}{{"Go client", tcp, gan}, {"libnfs", tcpLibnfs, ganLibnfs}} {
		for _, e := range []struct {
			name, experiment string
			metric           compare.Metric
		}{
			{"READ 1 MiB", "read", rate},
			{"WRITE 1 MiB", "write", rate},
			{"random READ 4 KiB", "random-read", ops},
			{"random WRITE 4 KiB", "random-write", ops},
		} {
			rs = append(rs, row{
				fmt.Sprintf("%s over TCP, %s", e.name, c.name), byGanesha, e.experiment, e.metric, one(c.ours),
				one(c.peer), nil, 1.2,
			})
		}
	}
	for _, e := range []struct{ name, experiment string }{{"READ", "random-read"}, {"WRITE", "random-write"}} {
		rs = append(rs, row{
			fmt.Sprintf("random %s 4 KiB over TCP, Go client", e.name), "the same server over TCP", e.experiment, ops,
			one(tcp), one(tcpLibnfs), nil, 1,
		})
	}
	for _, e := range []struct {
		name, experiment string
		metric           compare.Metric
	}{
		{"READ 1 MiB", "read", rate},
		{"WRITE 1 MiB and COMMIT", "write", rate},
		{"random READ 4 KiB", "random-read", ops},
	} {
		for _, sys := range []compare.Variant{tcp, rdma} {
			server, carrier, _ := sys.Split()
			for _, flavor := range flavors {
				secured := compare.Variant(server + " " + carrier + " " + flavor.name)
				rs = append(rs, row{
					fmt.Sprintf("%s over %s, sec=%s, Go client", e.name, strings.ToUpper(carrier), flavor.name),
					"the same with sec=sys",
					e.experiment, e.metric, one(secured), one(sys), nil, flavor.wanted,
				})
			}
		}
	}
	rs = append(
		rs,
		row{"GETATTR over TCP", byGanesha, "getattr", ops, ourTCP, ganesha, nil, 1.2},
		row{"LOOKUP over TCP", byGanesha, "lookup", ops, ourTCP, ganesha, nil, 1.2},
		row{"CREATE and REMOVE over TCP", byGanesha, "create", ops, ourTCP, ganesha, nil, 1.2},
		row{"READDIRPLUS over TCP, entries of a large directory", byGanesha, "readdir", ops, ourTCP, ganesha, nil, 1.2},
		row{"server CPU of READ 1 MiB over RDMA", byGanesha, "read", perGiB, one(rdma), ganesha, one(tcp), 0.5},
		row{"server CPU of WRITE 1 MiB over RDMA", byGanesha, "write", perGiB, one(rdma), ganesha, one(tcp), 0.5},
		row{
			"server CPU of a random READ 4 KiB over RDMA", byGanesha, "random-read", perOp, one(rdma), ganesha, one(tcp),
			0.7,
		},
		row{
			"server CPU of a random WRITE 4 KiB over RDMA", byGanesha, "random-write", perOp, one(rdma), ganesha, one(tcp),
			0.7,
		},
		row{"allocations per packet", "", "allocs-packet", count, one(verbs), nil, nil, 0},
		row{"allocations per READ 1 MiB, client and server", "", "allocs-read", count, one(rdma), nil, nil, 0},
		row{"allocations per WRITE 1 MiB, client and server", "", "allocs-write", count, one(rdma), nil, nil, 0},
		row{"memory of an idle mount over RDMA", "", "idle", kib, one(rdma), nil, nil, 64},
	)
	all := make([]compare.Row, len(rs))
	for i, r := range rs {
		all[i] = compare.Row(r)
	}
	return all
}
