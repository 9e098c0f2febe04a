package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rstored/rstored/blockstore"
	"github.com/rstored/rstored/nfs"
	"github.com/rstored/rstored/nfs/client"
)

// exit runs rstorectl and returns its exit code.
func (d *daemon) exit(args ...string) (code int, stdout, stderr string) {
	d.t.Helper()
	o, e, err := d.try(time.Minute, args...)
	var x *exec.ExitError
	switch {
	case errors.As(err, &x):
		return x.ExitCode(), o, e
	case err != nil:
		d.t.Fatalf("rstorectl %s: %v", strings.Join(args, " "), err)
	}
	return 0, o, e
}

// TestPlanAndApply: what the plan says of clients that have mounted is what they meet, over both
// carriers; exit codes, history, drift, and a kill of the daemon in between.
func TestPlanAndApply(t *testing.T) {
	d := newDaemon(t)
	dir := t.TempDir()
	file := filepath.Join(dir, "exports.yaml")
	write := func(readOnly bool, more string) {
		t.Helper()
		text := fmt.Sprintf("exports:\n- path: %s\n  pseudo: /data\n  clients:\n  - cidr: 127.0.0.0/8\n    read_only: "+
			"%v\n    squash: no_root_squash\n%s", d.export, readOnly, more)
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	code := func(want int, parts []string, args ...string) {
		t.Helper()
		got, out, e := d.exit(args...)
		if got != want {
			t.Errorf("rstorectl %s: exit code %d, want %d\n%s%s", strings.Join(args, " "), got, want, out, e)
		}
		for _, p := range parts {
			if !strings.Contains(out+e, p) {
				t.Errorf("rstorectl %s: no %q in\n%s%s", strings.Join(args, " "), p, out, e)
			}
		}
	}
	code(0, []string{"the running exports and ports are those of"}, "drift")

	ctx := t.Context()
	clients := map[string]*client.Client{"tcp": d.client("tcp"), "rdma": d.client("rdma")}
	put := func(transport, name string) error {
		c := clients[transport]
		root, err := c.Resolve(ctx, "/data")
		if err != nil {
			return err
		}
		h, err := c.Create(ctx, root.Handle, transport+name, blockstore.Unchecked, &blockstore.SetAttr{}, [8]byte{})
		if err == nil {
			_, err = c.Write(ctx, h.Handle, []byte("x"), 0, blockstore.Unstable)
		}
		return err
	}
	both := func(name string, check func(error) bool) {
		t.Helper()
		for transport := range clients {
			if err := put(transport, name); !check(err) {
				t.Errorf("over %s, %s: %v", transport, name, err)
			}
		}
	}
	fine := func(err error) bool { return err == nil }
	refused := func(err error) bool { return client.IsStatus(err, nfs.ErrROFS) }
	both("first", fine)

	write(false, "")
	code(2, []string{"~ export /data", "client ::1/128: ::1/128(rw,no_root_squash)", "1 change, 0 disruptions"}, "plan",
		file)
	code(0, []string{"applied as number 1"}, "apply", file, "--comment", "only this host")
	code(0, []string{"applied already"}, "apply", file)
	code(0, []string{"nothing would change"}, "plan", file)
	both("second", fine)

	write(true, "")
	code(3, []string{"disrupts: client 127.0.0.1 would lose write on /data"}, "plan", file)
	_, out, _ := d.exit("-o", "json", "plan", file)
	var plan struct {
		Disruptions []struct {
			Kind, Export, Client string
			Connected            bool
		}
	}
	if err := json.Unmarshal([]byte(out), &plan); err != nil ||
		len(plan.Disruptions) != len(clients) && len(plan.Disruptions) != 1 ||
		plan.Disruptions[0].Kind != "write" || plan.Disruptions[0].Export != "/data" || !plan.Disruptions[0].Connected {
		t.Errorf("as JSON: %v %+v\n%s", err, plan, out)
	}
	code(3, []string{"nothing was changed", "--allow-disruption"}, "apply", file)
	both("third", fine)
	code(0, []string{"would lose write", "applied as number 2"}, "apply", file, "--allow-disruption")
	both("fourth", refused)

	// It is the same after a kill, and what was not applied is not there.
	write(false, "- path: /no/such/directory\n")
	code(1, []string{"impossible: export /directory"}, "plan", file)
	code(1, []string{"nothing was changed"}, "apply", file)
	d.stop(syscall.SIGKILL)
	d.start()
	both("fifth", refused)
	code(0, []string{"the applied file 2"}, "drift")
	code(0, []string{"only this host", "NUMBER"}, "history")
	d.ctl("export", "add", dir, "--pseudo", "/extra")
	code(2, []string{"+ export /extra"}, "drift")
	code(0, []string{"- export /extra"}, "rollback") // nobody has used it
	both("sixth", fine)
	code(0, []string{"rollback of 1"}, "history")
	code(0, []string{"read_only: false"}, "history", "1")
	code(0, []string{"the applied file 3"}, "drift")

	// Mistakes on the command line are no findings.
	code(1, []string{"unknown flag"}, "plan", "--nonsense", file)
	code(1, []string{"give a FILE"}, "plan")
	code(1, []string{"unknown output format"}, "drift", "-o", "xml")
	code(2, []string{"give a FILE"}, "apply")
	write(false, "nonsense: 1\n")
	code(1, []string{`key "nonsense" is unknown`}, "plan", file)
	code(0, []string{"applied as number 4"}, "apply", "--configuration", "--yes")
	code(0, []string{"the running exports and ports are those of"}, "drift")
}
