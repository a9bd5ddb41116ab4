package fault

import (
	"fmt"
	"os"
	"strings"
	"testing"
)

// STYLE 20: the table of errors in docs/api.md has every reason with its code and status,
// says of each whether it comes with Retry-After, and has no other row.
func TestReasonsAreDocumented(t *testing.T) {
	b, err := os.ReadFile("../../docs/api.md")
	if err != nil {
		t.Fatal(err)
	}
	_, table, found := strings.Cut(string(b), "| reason | code | status | when |\n| --- | --- | --- | --- |\n")
	if !found {
		t.Fatal("docs/api.md has no table of reasons")
	}
	rows := strings.Split(strings.TrimSpace(table), "\n")
	for _, reason := range Reasons() {
		begin := fmt.Sprintf("| `%s` | %d | %d | ", reason, reason.Code(), reason.Status())
		found := 0
		for _, row := range rows {
			if strings.HasPrefix(row, begin) {
				found++
				if strings.Contains(row, "Retry-After") != reason.row().retry {
					t.Errorf("%q: whether there is a Retry-After is %t", row, reason.row().retry)
				}
			}
		}
		if found != 1 {
			t.Errorf("there are %d rows that begin with %q", found, begin)
		}
	}
	if len(rows) != len(Reasons()) {
		t.Errorf("there are %d rows for %d reasons", len(rows), len(Reasons()))
	}
}
