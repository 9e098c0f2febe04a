// Package kubernetes holds the manifests of deploy/kubernetes against the types of Kubernetes and
// against each other, and the programs that they start against their arguments.
package kubernetes

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	monitoring "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	apps "k8s.io/api/apps/v1"
	core "k8s.io/api/core/v1"
	rbac "k8s.io/api/rbac/v1"
	storage "k8s.io/api/storage/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/validation"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/kyaml/filesys"
	"sigs.k8s.io/yaml"
)

// kinds are what the manifests may have.
var kinds = map[string]func() meta.Object{
	"v1 Namespace": func() meta.Object { return new(core.Namespace) },
	"v1 ConfigMap": func() meta.Object { return new(core.ConfigMap) },
	"v1 Service":   func() meta.Object { return new(core.Service) },
	"v1 Pod":       func() meta.Object { return new(core.Pod) },

	"v1 ServiceAccount":        func() meta.Object { return new(core.ServiceAccount) },
	"v1 PersistentVolumeClaim": func() meta.Object { return new(core.PersistentVolumeClaim) },

	"apps/v1 DaemonSet":  func() meta.Object { return new(apps.DaemonSet) },
	"apps/v1 Deployment": func() meta.Object { return new(apps.Deployment) },

	"storage.k8s.io/v1 StorageClass": func() meta.Object { return new(storage.StorageClass) },
	"storage.k8s.io/v1 CSIDriver":    func() meta.Object { return new(storage.CSIDriver) },

	"rbac.authorization.k8s.io/v1 ClusterRole":        func() meta.Object { return new(rbac.ClusterRole) },
	"rbac.authorization.k8s.io/v1 ClusterRoleBinding": func() meta.Object { return new(rbac.ClusterRoleBinding) },
	"rbac.authorization.k8s.io/v1 Role":               func() meta.Object { return new(rbac.Role) },
	"rbac.authorization.k8s.io/v1 RoleBinding":        func() meta.Object { return new(rbac.RoleBinding) },

	"monitoring.coreos.com/v1 ServiceMonitor": func() meta.Object { return new(monitoring.ServiceMonitor) },
	"monitoring.coreos.com/v1 PrometheusRule": func() meta.Object { return new(monitoring.PrometheusRule) },
}

// Build is what kustomize makes of a directory.
func Build(fs filesys.FileSystem, dir string) ([]byte, error) {
	m, err := krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(fs, dir)
	if err != nil {
		return nil, err
	}
	return m.AsYaml()
}

// Decode reads objects, by their types, and refuses every key that a type does not have.
func Decode(text []byte) (list []meta.Object, err error) {
	for _, doc := range bytes.Split(text, []byte("\n---\n")) {
		if len(bytes.TrimSpace(doc)) == 0 {
			continue
		}
		var t meta.TypeMeta
		if err := yaml.Unmarshal(doc, &t); err != nil {
			return nil, err
		}
		f := kinds[t.APIVersion+" "+t.Kind]
		if f == nil {
			return nil, fmt.Errorf("nobody expects a %s %s", t.APIVersion, t.Kind)
		}
		o := f()
		if err := yaml.UnmarshalStrict(doc, o); err != nil {
			return nil, fmt.Errorf("%s: %w\n%s", t.Kind, err, doc)
		}
		list = append(list, o)
	}
	if len(list) == 0 {
		return nil, io.ErrUnexpectedEOF
	}
	return list, nil
}

// workload is what makes pods.
type workload struct {
	name      string
	namespace string
	selector  *meta.LabelSelector // nil for a pod by itself
	template  core.PodTemplateSpec
	everyNode bool
}

func workloads(list []meta.Object) (all []workload) {
	for _, o := range list {
		switch o := o.(type) {
		case *apps.DaemonSet:
			all = append(all, workload{o.Name, o.Namespace, o.Spec.Selector, o.Spec.Template, true})
		case *apps.Deployment:
			all = append(all, workload{o.Name, o.Namespace, o.Spec.Selector, o.Spec.Template, false})
		case *core.Pod:
			all = append(all, workload{
				o.Name, o.Namespace, nil,
				core.PodTemplateSpec{ObjectMeta: o.ObjectMeta, Spec: o.Spec},
				false,
			})
		}
	}
	return all
}

// find is the object of a type with a name and a namespace.
func find[T meta.Object](list []meta.Object, namespace, name string) (found T, ok bool) {
	for _, o := range list {
		if o, is := o.(T); is && o.GetName() == name && o.GetNamespace() == namespace {
			return o, true
		}
	}
	return found, false
}

// Check holds objects against each other.
func Check(list []meta.Object) error {
	var errs []error
	wrong := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	for _, o := range list {
		for _, msg := range validation.IsDNS1123Subdomain(o.GetName()) {
			wrong("%T %s: %s", o, o.GetName(), msg)
		}
		if ns := o.GetNamespace(); ns != "" && ns != "default" {
			if _, ok := find[*core.Namespace](list, "", ns); !ok {
				wrong("%T %s: there is no namespace %s", o, o.GetName(), ns)
			}
		}
		switch o := o.(type) {
		case *rbac.ClusterRoleBinding:
			if _, ok := find[*rbac.ClusterRole](list, "", o.RoleRef.Name); !ok {
				wrong("%s: there is no role %s", o.Name, o.RoleRef.Name)
			}
			subjects(list, o.Name, "", o.Subjects, wrong)
		case *rbac.RoleBinding:
			if _, ok := find[*rbac.Role](list, o.Namespace, o.RoleRef.Name); !ok {
				wrong("%s: there is no role %s", o.Name, o.RoleRef.Name)
			}
			subjects(list, o.Name, o.Namespace, o.Subjects, wrong)
		case *rbac.ClusterRole:
			for _, r := range o.Rules {
				if slices.Contains(r.Verbs, "*") || slices.Contains(r.Resources, "*") || slices.Contains(r.Resources, "secrets") {
					wrong("%s may do too much: %v", o.Name, r)
				}
			}
		case *storage.StorageClass:
			if _, ok := find[*storage.CSIDriver](list, "", o.Provisioner); !ok {
				wrong("%s: there is no driver %s", o.Name, o.Provisioner)
			}
		case *core.PersistentVolumeClaim:
			if _, ok := find[*storage.StorageClass](list, "", *o.Spec.StorageClassName); !ok {
				wrong("%s: there is no class %s", o.Name, *o.Spec.StorageClassName)
			}
		case *core.Service:
			service(list, o, wrong)
		case *monitoring.ServiceMonitor:
			monitor(list, o, wrong)
		}
	}
	node := make(map[string]string) // ports of a node to who has them
	for _, w := range workloads(list) {
		pod(list, w, wrong)
		if !w.template.Spec.HostNetwork {
			continue
		}
		for _, c := range w.template.Spec.Containers {
			for _, p := range c.Ports {
				at := fmt.Sprint(p.Protocol, p.ContainerPort)
				if who := node[at]; who != "" {
					wrong("%s and %s both have port %d of the node", who, w.name, p.ContainerPort)
				}
				node[at] = w.name
			}
		}
	}
	return errors.Join(errs...)
}

func subjects(list []meta.Object, name, namespace string, all []rbac.Subject, wrong func(string, ...any)) {
	for _, s := range all {
		if namespace != "" && s.Namespace != namespace {
			wrong("%s: %s is of another namespace", name, s.Name)
		}
		if _, ok := find[*core.ServiceAccount](list, s.Namespace, s.Name); !ok {
			wrong("%s: there is no account %s in %q", name, s.Name, s.Namespace)
		}
	}
}

func service(list []meta.Object, s *core.Service, wrong func(string, ...any)) {
	n := 0
	for _, w := range workloads(list) {
		if w.namespace != s.Namespace || !labels.SelectorFromSet(s.Spec.Selector).Matches(labels.Set(w.template.Labels)) {
			continue
		}
		n++
		for _, p := range s.Spec.Ports {
			if _, ok := port(w.template.Spec.Containers, p.TargetPort); !ok {
				wrong("service %s: %s has no port %s", s.Name, w.name, p.TargetPort.String())
			}
		}
	}
	if n == 0 {
		wrong("service %s selects nothing", s.Name)
	}
}

func monitor(list []meta.Object, m *monitoring.ServiceMonitor, wrong func(string, ...any)) {
	sel, err := meta.LabelSelectorAsSelector(&m.Spec.Selector)
	if err != nil {
		wrong("%s: %v", m.Name, err)
		return
	}
	n := 0
	for _, o := range list {
		s, ok := o.(*core.Service)
		if !ok || s.Namespace != m.Namespace || !sel.Matches(labels.Set(s.Labels)) {
			continue
		}
		for _, e := range m.Spec.Endpoints {
			if slices.ContainsFunc(s.Spec.Ports, func(p core.ServicePort) bool { return p.Name == e.Port }) {
				n++
			}
		}
	}
	if n == 0 {
		wrong("monitor %s finds no service with its port", m.Name)
	}
}

// port is a container's port by name or number.
func port(all []core.Container, p intstr.IntOrString) (n int32, ok bool) {
	for _, c := range all {
		for _, have := range c.Ports {
			if p.Type == intstr.String && have.Name == p.StrVal || p.Type == intstr.Int && have.ContainerPort == p.IntVal {
				return have.ContainerPort, true
			}
		}
	}
	return 0, false
}

// pod checks the pods of a workload.
func pod(list []meta.Object, w workload, wrong func(string, ...any)) {
	spec := &w.template.Spec
	if w.selector != nil {
		sel, err := meta.LabelSelectorAsSelector(w.selector)
		if err != nil || sel.Empty() || !sel.Matches(labels.Set(w.template.Labels)) {
			wrong("%s does not select its own pods: %v", w.name, err)
		}
	}
	if a := spec.ServiceAccountName; a != "" {
		if _, ok := find[*core.ServiceAccount](list, w.namespace, a); !ok {
			wrong("%s: there is no account %s", w.name, a)
		}
	}
	if p := spec.PriorityClassName; p != "" && p != "system-node-critical" && p != "system-cluster-critical" {
		wrong("%s: there is no priority class %s", w.name, p)
	}
	volumes := make(map[string]bool) // whether it is used
	for _, v := range spec.Volumes {
		volumes[v.Name] = false
		if v.ConfigMap != nil {
			if _, ok := find[*core.ConfigMap](list, w.namespace, v.ConfigMap.Name); !ok {
				wrong("%s: there is no map %s", w.name, v.ConfigMap.Name)
			}
		}
		if c := v.PersistentVolumeClaim; c != nil {
			if _, ok := find[*core.PersistentVolumeClaim](list, w.namespace, c.ClaimName); !ok {
				wrong("%s: there is no claim %s", w.name, c.ClaimName)
			}
		}
	}
	for i := range spec.Containers {
		c := &spec.Containers[i]
		who := w.name + "/" + c.Name
		if !strings.Contains(strings.TrimPrefix(c.Image, "registry.k8s.io/"), ":") || strings.HasSuffix(c.Image, ":latest") {
			wrong("%s: the image %s has no version", who, c.Image)
		}
		for _, m := range c.VolumeMounts {
			if _, ok := volumes[m.Name]; !ok {
				wrong("%s mounts %s, which is not a volume", who, m.Name)
			}
			volumes[m.Name] = true
			if privileged := c.SecurityContext != nil && c.SecurityContext.Privileged != nil &&
				*c.SecurityContext.Privileged; !privileged &&
				m.MountPropagation != nil && *m.MountPropagation == core.MountPropagationBidirectional {
				wrong("%s is not privileged, and has a bidirectional mount", who)
			}
		}
		for name, p := range map[string]*core.Probe{
			"startup": c.StartupProbe, "liveness": c.LivenessProbe,
			"readiness": c.ReadinessProbe,
		} {
			if p == nil || p.HTTPGet == nil {
				continue
			}
			n, ok := port(spec.Containers, p.HTTPGet.Port)
			// Somebody in the pod is told to listen there.
			if told := slices.ContainsFunc(spec.Containers, func(c core.Container) bool {
				return slices.ContainsFunc(c.Args, func(a string) bool {
					return strings.HasSuffix(a, fmt.Sprintf(":%d", n)) || strings.HasSuffix(a, fmt.Sprintf("-port=%d", n))
				})
			}); !ok || !told {
				wrong("%s: nobody listens on the port %s of its %s probe", who, p.HTTPGet.Port.String(), name)
			}
		}
		for _, p := range c.Ports {
			for _, msg := range validation.IsValidPortName(p.Name) {
				wrong("%s: port %s: %s", who, p.Name, msg)
			}
		}
		for _, a := range c.Args {
			if _, after, ok := strings.Cut(a, "$("); ok {
				name, _, _ := strings.Cut(after, ")")
				if !slices.ContainsFunc(c.Env, func(e core.EnvVar) bool { return e.Name == name }) {
					wrong("%s: %s, and there is no such variable", who, a)
				}
			}
			if file, ok := strings.CutPrefix(a, "--config="); ok {
				mounted(list, w, c, file, wrong)
			}
		}
		if w.selector != nil && (c.Resources.Requests.Cpu().IsZero() || c.Resources.Limits.Memory().IsZero()) {
			wrong("%s asks for no processor, or may have any memory", who)
		}
	}
	for _, v := range slices.Sorted(maps.Keys(volumes)) {
		if !volumes[v] {
			wrong("%s: nobody mounts %s", w.name, v)
		}
	}
}

// mounted checks that a file comes from a map that has it.
func mounted(list []meta.Object, w workload, c *core.Container, file string, wrong func(string, ...any)) {
	for _, m := range c.VolumeMounts {
		name, ok := strings.CutPrefix(file, m.MountPath+"/")
		if !ok {
			continue
		}
		for _, v := range w.template.Spec.Volumes {
			if v.Name != m.Name || v.ConfigMap == nil {
				continue
			}
			if cm, ok := find[*core.ConfigMap](list, w.namespace, v.ConfigMap.Name); ok && cm.Data[name] != "" {
				return
			}
		}
	}
	wrong("%s: nothing brings %s", w.name, file)
}
