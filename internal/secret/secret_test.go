package secret_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"roundhouse/internal/secret"
)

// Case 67: no way of printing a secret shows it.
func TestSecretsNeverPrint(t *testing.T) {
	type holder struct {
		Token secret.String
		Map   map[string]secret.String
	}
	h := holder{secret.New("s3cr3t"), map[string]secret.String{"a": secret.New("s3cr3t")}}
	var log bytes.Buffer
	slog.New(slog.NewJSONHandler(&log, nil)).Info("x", "token", h.Token, "holder", h)
	slog.New(slog.NewTextHandler(&log, nil)).Info("x", "token", h.Token, "holder", h)
	j, err := json.Marshal(h)
	if err != nil {
		t.Fatal(err)
	}
	all := fmt.Sprintf("%v %+v %#v %s %q %x", h, h, h, h.Token, h.Token, h.Token) + string(j) + log.String()
	if strings.Contains(all, "s3cr3t") || strings.Contains(all, "733363723374") {
		t.Errorf("a secret was printed: %s", all)
	}
	if !strings.Contains(all, "***") {
		t.Errorf("no mask in %s", all)
	}
	if h.Token.Reveal() != "s3cr3t" || h.Token.Empty() {
		t.Error("Reveal and Empty do not give the secret back")
	}
}
