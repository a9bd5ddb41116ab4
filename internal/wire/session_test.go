package wire

import (
	"strings"
	"testing"
)

func TestValidSessionID(t *testing.T) {
	for _, id := range []string{"a", "A-Z.a_z:0-9", ".", "-", strings.Repeat("x", 128)} {
		if !ValidSessionID(id) {
			t.Errorf("%q is refused", id)
		}
	}
	for _, id := range []string{"", strings.Repeat("x", 129), "a b", "a/b", "a,b", "é", "a\x00", "a\n", "a%2Fb", "a*", "a@b"} {
		if ValidSessionID(id) {
			t.Errorf("%q is accepted", id)
		}
	}
}
