package ops

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/rstored/rstored/cmd/internal/measure"
)

const root = "../../.."

var update = flag.Bool("update", false, "write the table of metrics in docs/monitoring.md")

// table is the catalog as docs/monitoring.md has it.
func table() string {
	var b strings.Builder
	b.WriteString("| metric | type | labels | |\n| --- | --- | --- | --- |\n")
	for _, m := range Catalog() {
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s |\n", m.Name, m.Type, strings.Join(m.Labels, ", "), m.Help)
	}
	return b.String()
}

// TestDocumented: docs/monitoring.md has every metric as the daemon says it is; -update writes it.
func TestDocumented(t *testing.T) {
	const begin, end = "<!-- metrics: go test ./cmd/internal/ops -update -->\n", "<!-- end -->\n"
	name := filepath.Join(root, "docs/monitoring.md")
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	head, rest, ok := strings.Cut(string(text), begin)
	have, tail, ok2 := strings.Cut(rest, end)
	if !ok || !ok2 {
		t.Fatalf("%s has no place for the metrics", name)
	}
	if have == table() {
		return
	}
	if !*update {
		t.Fatalf("the metrics of %s are not those of the daemon; -update writes them", name)
	}
	if err := os.WriteFile(name, []byte(head+begin+table()+end+tail), 0o644); err != nil {
		t.Fatal(err)
	}
}

// TestNames: names and types follow the guidelines of Prometheus.
func TestNames(t *testing.T) {
	seen := make(map[string]bool)
	for _, m := range Catalog() {
		if seen[m.Name] || !regexp.MustCompile(`^rstored_[a-z0-9]+(_[a-z0-9]+)*$`).MatchString(m.Name) {
			t.Errorf("%s is there twice, or no name", m.Name)
		}
		seen[m.Name] = true
		if (m.Type == counter) != strings.HasSuffix(m.Name, "_total") {
			t.Errorf("%s is a %s", m.Name, m.Type)
		}
		if m.Type == histogram && !strings.HasSuffix(m.Name, "_seconds") {
			t.Errorf("%s has no unit", m.Name)
		}
		if !strings.HasSuffix(m.Help, ".") || m.Help == "." {
			t.Errorf("the help of %s is no sentence", m.Name)
		}
	}
	for name, want := range map[string]string{
		"RC.TxBytesReadResponse": "rc_tx_bytes_read_response", "ICRCErrors": "icrc_errors",
		"RC.RxNAKSequence": "rc_rx_nak_sequence",
		"DropUnknownQPN":   "drop_unknown_qpn", "RC.TxRNR": "rc_tx_rnr", "QPs": "qps",
		"RC.RNRRetryExceeded": "rc_rnr_retry_exceeded", "Link.GSODisabled": "link_gso_disabled",
	} {
		if got := snake(name); got != want {
			t.Errorf("%s: %s, want %s", name, got, want)
		}
	}
}

// TestDeployed: the rules and the dashboard name metrics that the daemon has, and no others.
func TestDeployed(t *testing.T) {
	kinds := make(map[string]string)
	for _, m := range Catalog() {
		kinds[m.Name] = m.Type
	}
	rules, err := os.ReadFile(filepath.Join(root, "deploy/prometheus/rstored.rules.yml"))
	if err != nil {
		t.Fatal(err)
	}
	recorded := make(map[string]bool)
	for _, m := range regexp.MustCompile(`record: (\S+)`).FindAllSubmatch(rules, -1) {
		recorded[string(m[1])] = true
	}
	dashboard, err := os.ReadFile(filepath.Join(root, "deploy/grafana/rstored.json"))
	if err != nil {
		t.Fatal(err)
	}
	if !json.Valid(dashboard) {
		t.Error("the dashboard is no JSON")
	}
	alerts, err := os.ReadFile(filepath.Join(root, "deploy/prometheus/rstored.rules.test.yml"))
	if err != nil {
		t.Fatal(err)
	}
	for file, text := range map[string][]byte{
		"the rules": rules, "the dashboard": dashboard,
		"the tests of the rules": alerts,
	} {
		names := regexp.MustCompile(`[a-zA-Z_:]*\brstored_[a-z0-9_:]+|[a-z_]+:rstored_[a-z0-9_:]+`).FindAll(text, -1)
		if len(names) < 5 {
			t.Errorf("%s name %d metrics; are they still being read?", file, len(names))
		}
		for _, n := range names {
			name := string(n)
			if recorded[name] || kinds[name] == counter || kinds[name] == gauge {
				continue
			}
			base := name
			for _, suffix := range []string{"_bucket", "_count", "_sum"} {
				base = strings.TrimSuffix(base, suffix)
			}
			if base == name || kinds[base] != histogram {
				t.Errorf("%s name %s, which the daemon does not have", file, name)
			}
		}
	}
	// Each alert has a name, and what it means is in the documentation.
	doc, err := os.ReadFile(filepath.Join(root, "docs/monitoring.md"))
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range regexp.MustCompile(`alert: (\S+)`).FindAllSubmatch(rules, -1) {
		if !bytes.Contains(doc, append([]byte("`"), append(m[1], '`')...)) {
			t.Errorf("docs/monitoring.md says nothing of %s", m[1])
		}
	}
}

// TestEmpty: a daemon that has nothing yet can be scraped, and the checks of Prometheus'
// own registry find nothing.
func TestEmpty(t *testing.T) {
	r := prometheus.NewPedanticRegistry()
	r.MustRegister(NewCollector(func() State { return State{Recorder: measure.NewRecorder(measure.Config{})} }))
	got, err := r.Gather()
	if err != nil {
		t.Fatal(err)
	}
	if len(got) < 30 {
		t.Errorf("%d metrics", len(got))
	}
}
