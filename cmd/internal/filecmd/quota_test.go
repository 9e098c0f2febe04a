package filecmd

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/rstored/rstored/cmd/internal/cli"
)

// TestQuotaCommand: a store without quotas has none, another user's quota is not told, and a bad
// number is a mistake in the command line.
func TestQuotaCommand(t *testing.T) {
	r := newRig(t)
	quota := func(args ...string) (string, error) {
		var out bytes.Buffer
		c := (&tool{g: &cli.Globals{Out: &out, Err: &r.said, Output: cli.FormatTable}}).quota()
		c.SilenceErrors, c.SilenceUsage = true, true
		c.SetArgs(args)
		err := c.ExecuteContext(t.Context())
		return out.String(), err
	}
	if out, err := quota(r.url, r.url+"/below"); err != nil || strings.Count(out, "no quota") != 2 {
		t.Errorf("%q, %v, %s", out, err, r.said.String())
	}
	if _, err := quota("--uid", "4294967295", r.url); cli.Code(err) != cli.ExitUsage {
		t.Errorf("--uid 4294967295: %v", err)
	}
	if _, err := quota("--uid", "12345", r.url); cli.Code(err) != cli.ExitFailed ||
		!strings.Contains(r.said.String(), "another user's") {
		t.Errorf("another user's: %v, %s", err, r.said.String())
	}
}

func TestPrintQuotas(t *testing.T) {
	var out bytes.Buffer
	until := time.Date(2030, 1, 2, 3, 4, 5, 0, time.Local)
	printQuotas(&out, []*userQuota{
		{URL: "u", UID: 7, Used: 3 << 20, Soft: 2 << 20, Hard: 4 << 20, Until: &until, Files: 9, FilesHard: 10},
		{URL: "v", UID: 8, None: true},
		{URL: "w", Kind: kindDirectory, Used: 1 << 20, Hard: 2 << 20, Files: 1},
	})
	want := "UID\tUSED\tSOFT\tHARD\tUNTIL\tFILES\tSOFT\tHARD\tUNTIL\tURL\n" +
		"7\t3.0 MiB\t2.0 MiB\t4.0 MiB\t2030-01-02 03:04:05\t9\tnone\t10\t-\tu\n" +
		"8\tno quota\t\t\t\t\t\t\t\tv\n" +
		"directory\t1.0 MiB\tnone\t2.0 MiB\t-\t1\tnone\tnone\t-\tw\n"
	if out.String() != want {
		t.Errorf("%q", out.String())
	}
}
