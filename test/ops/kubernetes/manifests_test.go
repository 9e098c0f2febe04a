package kubernetes

import (
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	monitoring "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	core "k8s.io/api/core/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/kustomize/kyaml/filesys"
	"sigs.k8s.io/yaml"
)

const (
	root = "../../.."
	at   = root + "/deploy/kubernetes"
)

// memory has the manifests, as they are or changed.
func memory(t *testing.T, change func(name, text string) string) filesys.FileSystem {
	t.Helper()
	fs := filesys.MakeFsInMemory()
	err := filepath.WalkDir(at, func(name string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		b, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(at, name)
		if err != nil {
			return err
		}
		text := string(b)
		if rel == "example/kustomization.yaml" { // with everything
			text = strings.ReplaceAll(strings.ReplaceAll(text, "#components", "components"), "#  - ../", "  - ../")
			if !strings.Contains(text, "\ncomponents:\n  - ../monitoring\n  - ../rdma\n") {
				t.Fatal("the example does not show its components")
			}
		}
		if change != nil {
			text = change(rel, text)
		}
		return fs.WriteFile("/"+rel, []byte(text))
	})
	if err != nil {
		t.Fatal(err)
	}
	return fs
}

func built(fs filesys.FileSystem, dir string) ([]meta.Object, error) {
	text, err := Build(fs, dir)
	if err != nil {
		return nil, err
	}
	list, err := Decode(text)
	if err != nil {
		return nil, err
	}
	return list, Check(list)
}

func asked(t *testing.T) {
	t.Helper()
	if os.Getenv("RSTORED_OPS") == "" {
		t.Skip("make test-ops runs this")
	}
}

// TestManifests: what kustomize makes is of Kubernetes' types, fits together, and starts our
// programs with arguments that they take.
func TestManifests(t *testing.T) {
	asked(t)
	fs := memory(t, nil)
	for _, dir := range []string{"/server", "/csi"} {
		if _, err := built(fs, dir); err != nil {
			t.Errorf("%s: %v", dir, err)
		}
	}
	// As it lies there, too.
	if _, err := built(filesys.MakeFsOnDisk(), at+"/example"); err != nil {
		t.Errorf("the example: %v", err)
	}
	list, err := built(fs, "/example")
	if err != nil {
		t.Fatal(err)
	}

	bin := t.TempDir()
	for name, dir := range map[string]string{"rstored": "./cmd/rstored", "rstored-csi": "./deploy/csi"} {
		cmd := exec.Command("go", "build", "-o", filepath.Join(bin, name), dir)
		cmd.Dir, cmd.Env = root, append(os.Environ(), "CGO_ENABLED=0")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
	}
	started := 0
	for _, w := range workloads(list) {
		for _, c := range w.template.Spec.Containers {
			name, ok := strings.CutPrefix(c.Image, "registry.example/")
			if !ok {
				continue
			}
			name, _, _ = strings.Cut(name, ":")
			started++
			if q := c.Resources.Limits["rdma/hca_shared_devices_a"]; name == "rstored" &&
				(q.Value() != 1 || !slices.Contains(c.SecurityContext.Capabilities.Add, "IPC_LOCK")) {
				t.Errorf("%s/%s has no RDMA device, or may not lock memory: %v", w.name, c.Name, c.Resources)
			}
			out, err := exec.Command(filepath.Join(bin, name), append(c.Args, "--help")...).CombinedOutput()
			if err != nil {
				t.Errorf("%s/%s: %q: %v\n%s", w.name, c.Name, c.Args, err, out)
			}
		}
	}
	if started != 3 {
		t.Errorf("%d of our containers, want 3", started)
	}
	configs := 0
	for _, o := range list {
		m, ok := o.(*core.ConfigMap)
		if !ok {
			continue
		}
		for name, text := range m.Data {
			configs++
			// What is exported has to be there.
			text = strings.ReplaceAll(text, "path: /srv/rstored", "path: "+t.TempDir())
			file := filepath.Join(t.TempDir(), name)
			if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
			if out, err := exec.Command(filepath.Join(bin, "rstored"), "config", "validate", "--config",
				file).CombinedOutput(); err != nil {
				t.Errorf("%s: %v\n%s", m.Name, err, out)
			}
		}
	}
	if configs != 1 {
		t.Errorf("%d configurations, want 1", configs)
	}
}

// TestPrometheusRule: the operator's rules are those of deploy/prometheus.
func TestPrometheusRule(t *testing.T) {
	asked(t)
	var want monitoring.PrometheusRuleSpec
	b, err := os.ReadFile(root + "/deploy/prometheus/rstored.rules.yml")
	if err != nil {
		t.Fatal(err)
	}
	if err := yaml.UnmarshalStrict(b, &want); err != nil {
		t.Fatal(err)
	}
	if b, err = os.ReadFile(at + "/monitoring/prometheusrule.yaml"); err != nil {
		t.Fatal(err)
	}
	var got monitoring.PrometheusRule
	if err := yaml.UnmarshalStrict(b, &got); err != nil {
		t.Fatal(err)
	}
	if len(want.Groups) == 0 || !reflect.DeepEqual(got.Spec, want) {
		t.Error("they differ: take over what changed in deploy/prometheus/rstored.rules.yml")
	}
}

// TestManifestsCanFail: each of these mistakes is noticed.
func TestManifestsCanFail(t *testing.T) {
	asked(t)
	for _, tt := range []struct{ file, old, new, want string }{
		{"server/daemonset.yaml", "hostNetwork: true", "hostNetworks: true", "unknown field"},
		{"server/daemonset.yaml", "containerPort: 2049", "containerPort: nfs", "cannot unmarshal"},
		{
			"server/daemonset.yaml", "      labels:\n        app.kubernetes.io/name: rstored\n    spec",
			"      labels:\n        app.kubernetes.io/name: other\n    spec", "does not select its own pods",
		},
		{
			"server/daemonset.yaml", "configMap:\n            name: rstored", "configMap:\n            name: others",
			"there is no map others",
		},
		{"server/daemonset.yaml", "--config=/etc/rstored/rstored.yaml", "--config=/etc/rstored/other.yaml", "nothing brings"},
		{"server/daemonset.yaml", "path: /readyz, port: ops", "path: /readyz, port: opps", "readiness probe"},
		{
			"server/daemonset.yaml", "- name: data\n              mountPath", "- name: date\n              mountPath",
			"is not a volume",
		},
		{"server/daemonset.yaml", "priorityClassName: system-node-critical", "priorityClassName: high", "priority class"},
		{"server/daemonset.yaml", "cpu: 500m", "ephemeral-storage: 1Gi", "asks for no processor"},
		{"monitoring/listen.yaml", ":9049", ":9050", "nobody listens"},
		{"monitoring/service.yaml", "targetPort: ops", "targetPort: metrics", "has no port metrics"},
		{
			"monitoring/service.yaml", "selector:\n    app.kubernetes.io/name: rstored",
			"selector:\n    app.kubernetes.io/name: nobody", "selects nothing",
		},
		{"monitoring/servicemonitor.yaml", "port: ops", "port: metrics", "finds no service"},
		{"csi/node.yaml", "privileged: true", "privileged: false", "bidirectional"},
		{"csi/node.yaml", "serviceAccountName: rstored-csi-node", "serviceAccountName: nobody", "no account nobody"},
		{"csi/node.yaml", "$(NODE_NAME)", "$(NODE)", "no such variable"},
		{"csi/node.yaml", "29808", "2049", "both have port 2049"},
		{"csi/controller.yaml", "--health-port=9808", "--health-port=9809", "liveness probe"},
		{"csi/kustomization.yaml", "newTag: v5.3.0", "newTag: latest", "has no version"},
		{
			"csi/rbac.yaml", "kind: ClusterRole\n  name: rstored-csi-provisioner", "kind: ClusterRole\n  name: other",
			"no role other",
		},
		{"csi/node.yaml", "$(HOST_IP)", "$(HOST)", "no such variable"},
		{
			"csi/controller.yaml", "- name: control\n              mountPath",
			"- name: files\n              mountPath", "is not a volume",
		},
		{"csi/rbac.yaml", "resources: [events]", "resources: [secrets]", "too much"},
		{"csi/csidriver.yaml", "name: rstored.github.io", "name: other.github.io", "no driver"},
		{"example/claim.yaml", "storageClassName: rstored", "storageClassName: slow", "no class slow"},
		{"example/pod.yaml", "claimName: data", "claimName: date", "no claim date"},
	} {
		found := false
		fs := memory(t, func(name, text string) string {
			if name == tt.file {
				found = strings.Contains(text, tt.old)
				text = strings.ReplaceAll(text, tt.old, tt.new)
			}
			return text
		})
		if !found {
			t.Errorf("%s has no %q", tt.file, tt.old)
		}
		if _, err := built(fs, "/example"); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s with %q: %v; want %q", tt.file, tt.new, err, tt.want)
		}
	}
}
