package main

import (
	"bytes"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"text/template"

	nfsclient "github.com/rstored/rstored/nfs/client"
	"github.com/rstored/rstored/nfs/dial"
	"github.com/rstored/rstored/test/bench/compare"
)

// What -ceph compares, inside of test/ceph/run: rstored and nfs-ganesha in front of one CephFS, and
// a program that calls libcephfs itself.
const (
	cephRDMA  compare.Variant = "ceph-rstored rdma go"
	cephTCP   compare.Variant = "ceph-rstored tcp go"
	cephGan   compare.Variant = "ceph-ganesha tcp go"
	cephLimit compare.Variant = "ceph-native calls c"
	cephTwo   compare.Variant = "ceph-two rdma go"
)

// The ports of the servers, and the address of the second gateway.
const (
	secondAddr = "127.0.0.3"
	// cephFile is the size of the file in bytes: the OSD is in memory.
	cephFile = 64 << 20
)

//go:embed ganesha-ceph.conf
var ganeshaCephConf string

func cephExperiments() []experiment {
	const mib = 1 << 20
	var all []experiment
	for _, e := range []struct {
		op          string
		size, depth int
	}{
		{"read", mib, 16},
		{"write", mib, 16},
		{"random-read", 4096, 32},
		{"random-write", 4096, 32},
		{"getattr", 1, 32},
		{"lookup", 1, 32},
		{"create", 1, 16},
	} {
		name := "ceph-" + e.op
		served := nfs(name, "ceph", e.op, e.size, e.depth)
		all = append(all, experiment{name: name, run: func(ctx context.Context, m *measurer, v compare.Variant) (
			compare.Sample, error,
		) {
			switch v {
			case cephLimit:
				return m.native(ctx, e.op, e.size, e.depth)
			case cephTwo:
				return m.two(ctx, e.op, e.size, e.depth)
			}
			return served.run(ctx, m, v)
		}})
	}
	return all
}

func cephRows() []compare.Row {
	one := func(v compare.Variant) []compare.Variant { return []compare.Variant{v} }
	const limit, gan, single = "libcephfs by itself", "Ganesha over TCP", "one gateway"
	var rs []row
	for _, e := range []struct{ name, op string }{
		{"READ 1 MiB, 16 in flight", "read"}, {"WRITE 1 MiB and COMMIT, 16 in flight", "write"},
	} {
		rs = append(rs, row{
			e.name + ", over RDMA", limit, "ceph-" + e.op, rate, one(cephRDMA), one(cephLimit), one(cephTCP), 0.8,
		})
	}
	for _, e := range []struct {
		name, op string
		m        compare.Metric
	}{
		{"READ 1 MiB, 16 in flight", "read", rate},
		{"WRITE 1 MiB and COMMIT, 16 in flight", "write", rate},
		{"random READ 4 KiB, 32 in flight", "random-read", ops},
		{"random WRITE 4 KiB, 32 in flight", "random-write", ops},
		{"GETATTR", "getattr", ops},
		{"LOOKUP", "lookup", ops},
		{"CREATE and REMOVE", "create", ops},
	} {
		rs = append(rs, row{
			e.name + ", over RDMA", gan, "ceph-" + e.op, e.m, one(cephRDMA), one(cephGan), one(cephTCP), 1.3,
		})
	}
	rs = append(rs, row{"READ 1 MiB by two gateways", single, "ceph-read", rate, one(cephTwo), one(cephRDMA), nil, 0},
		row{"WRITE 1 MiB by two gateways", single, "ceph-write", rate, one(cephTwo), one(cephRDMA), nil, 0})
	list := make([]compare.Row, len(rs))
	for i, r := range rs {
		list[i] = compare.Row(r)
	}
	return list
}

// beginCeph starts a server of -ceph.
func (s *servers) beginCeph(ctx context.Context, name string) *server {
	conf := os.Getenv("RSTORED_CEPH")
	switch name {
	case "ceph-rstored", "ceph-two":
		addr := host
		if name == "ceph-two" {
			addr = secondAddr
		}
		dir := filepath.Join(s.dir, name)
		r := s.launch(name, s.bin("rstored"), "--state-dir", dir, "--control", dir+"-control", "--log-level", "warn",
			"--export", "ceph:fs/ *(rw,no_root_squash)", "--rdma-listen", fmt.Sprint(addr, ":", portRDMA), "--tcp-listen",
			fmt.Sprint(addr, ":", portTCP))
		if r.err == nil {
			r.err = until(ctx, r, func() error { return s.fillCeph(ctx, addr, name) })
		}
		return r
	case "ceph-ganesha":
		if b := s.get(ctx, "rpcbind"); b.err != nil {
			return &server{name: name, err: b.err}
		}
		if r := s.get(ctx, "ceph-rstored"); r.err != nil {
			return &server{name: name, err: r.err}
		}
		if err := s.fillCeph(ctx, host, name); err != nil {
			return &server{name: name, err: err}
		}
		file := filepath.Join(s.dir, "ganesha-ceph.conf")
		if err := os.WriteFile(file, ganeshaCeph(os.Getenv("RSTORED_CEPH_ROOT"), conf), 0o644); err != nil {
			return &server{name: name, err: err}
		}
		r := s.launch(name, "ganesha.nfsd", "-F", "-f", file, "-L", filepath.Join(s.dir, "ganesha.log"), "-p",
			"/run/ganesha.pid")
		if r.err == nil {
			r.err = s.retry(ctx, r, s.bin("load"), s.url(name, "tcp", "ceph"), "getattr", "1", "1", "0.01",
				strconv.Itoa(cephFile))
		}
		return r
	}
	return &server{name: name, err: fmt.Errorf("there is no server %q", name)}
}

// fillCeph makes the files of a server, through rstored.
func (s *servers) fillCeph(ctx context.Context, addr, server string) error {
	d := &dial.Dialer{Version: nfsclient.Version3}
	defer d.Close()
	fs, err := d.FS(ctx, fmt.Sprint("nfs+tcp://", addr, ":", portTCP, "/fs"))
	if err != nil {
		return err
	}
	if _, err := fs.Stat(server + "/names"); err == nil {
		return nil
	}
	content := bytes.Repeat([]byte("rstored "), cephFile/8)
	err = errors.Join(fs.MkdirAll(server, 0o777), fs.WriteFile(server+"/file", content, 0o666),
		fs.MkdirAll(server+"/names", 0o777))
	for i := 0; i < 1000 && err == nil; i++ {
		err = fs.WriteFile(fmt.Sprintf("%s/names/name-%06d", server, i), nil, 0o644)
	}
	return err
}

func ganeshaCeph(root, conf string) []byte {
	plugins := root
	if found, _ := filepath.Glob(filepath.Join(root, "usr/lib/*/ganesha")); len(found) > 0 {
		plugins = found[0]
	}
	var b bytes.Buffer
	t := template.Must(template.New("ganesha-ceph.conf").Parse(ganeshaCephConf))
	if err := t.Execute(&b, struct {
		Port, MountPort       int
		Plugins, Conf, Export string
	}{portGanesha, mountGanesha, plugins, conf, "/ceph-ganesha"}); err != nil {
		panic(err) // of the template
	}
	return b.Bytes()
}

// native runs the program that calls libcephfs itself.
func (m *measurer) native(ctx context.Context, op string, size, depth int) (s compare.Sample, err error) {
	out, err := exec.CommandContext(ctx, m.bin("native"), op, "native", strconv.Itoa(size), strconv.Itoa(depth),
		strconv.FormatFloat(m.took.Seconds(), 'f', -1, 64)).Output()
	if err != nil {
		return s, err
	}
	if _, err = fmt.Sscan(string(out), &s.Rate, &s.Ops); err == nil {
		s.Rate *= 1 << 20
	}
	return s, err
}

// two has two gateways serve a load each, at the same time.
func (m *measurer) two(ctx context.Context, op string, size, depth int) (sum compare.Sample, err error) {
	var wg sync.WaitGroup
	var samples [2]compare.Sample
	var errs [2]error
	for i, server := range []string{"ceph-rstored", "ceph-two"} {
		srv := m.get(ctx, server)
		if srv.err != nil {
			return sum, srv.err
		}
		wg.Go(func() {
			samples[i], errs[i] = m.drive(ctx, srv, []string{
				m.bin("load"), m.url(server, "rdma", "ceph"), op, strconv.Itoa(size), strconv.Itoa(depth),
				strconv.FormatFloat(m.took.Seconds(), 'f', -1, 64), strconv.Itoa(cephFile),
			})
		})
	}
	wg.Wait()
	return compare.Sample{Rate: samples[0].Rate + samples[1].Rate, Ops: samples[0].Ops + samples[1].Ops},
		errors.Join(errs[:]...)
}

// cephURL is that of a server's directory in CephFS.
func cephURL(server, carrier string) string {
	switch {
	case server == "ceph-ganesha":
		return "nfs+tcp://" + address(portGanesha) + "/" + server
	case server == "ceph-two":
		return fmt.Sprint("nfs+rdma://", secondAddr, ":", portRDMA, "/fs/", server)
	case carrier == "rdma":
		return fmt.Sprint("nfs+rdma://", address(portRDMA), "/fs/", server)
	}
	return fmt.Sprint("nfs+tcp://", address(portTCP), "/fs/", server)
}

// buildCeph makes the programs of -ceph.
func buildCeph(ctx context.Context, bin string) error {
	gcc := []string{
		"-O2", "-o", filepath.Join(bin, "native"), tests + "/ceph/native/native.c", "-Wl,--allow-shlib-undefined",
	}
	gcc = append(gcc, strings.Fields(os.Getenv("CGO_CFLAGS"))...)
	for _, dir := range filepath.SplitList(os.Getenv("LD_LIBRARY_PATH")) {
		gcc = append(gcc, "-L"+dir)
	}
	for _, args := range [][]string{
		{"go", "build", "-tags", "cephfs", "-o", bin + "/", "./cmd/rstored"},
		{"go", "build", "-C", tests, "-o", bin + "/", "./bench/versus/load"},
		append(append([]string{"gcc"}, gcc...), "-l:libcephfs.so.2"),
	} {
		cmd := exec.CommandContext(ctx, args[0], args[1:]...)
		cmd.Env, cmd.Stderr = append(os.Environ(), "CGO_ENABLED=1"), os.Stderr
		if err := cmd.Run(); err != nil {
			return fmt.Errorf("%v: %w", args, err)
		}
	}
	return nil
}

// sizeOf is the size of the file of an export, in bytes.
func sizeOf(where string) int {
	if where == "ceph" {
		return cephFile
	}
	return fileSize
}
