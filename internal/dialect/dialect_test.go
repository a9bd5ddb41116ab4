package dialect_test

import (
	"net/http"
	"testing"

	"roundhouse/internal/dialect"
)

// A.2, C1: what a request is follows from its method and path alone.
func TestRequestsAreClassifiedByMethodAndPath(t *testing.T) {
	const post, get, head = http.MethodPost, http.MethodGet, http.MethodHead
	for _, c := range []struct {
		method, path string
		api          dialect.API
		class        dialect.Class
	}{
		{post, "/v1/chat/completions", dialect.Chat, dialect.Generation},
		{post, "v1/chat/completions", dialect.Chat, dialect.Generation},
		{post, "//v1//chat/completions/", dialect.Chat, dialect.Generation},
		{post, "/v1/messages", dialect.Messages, dialect.Generation},
		{post, "/v1/messages/", dialect.Messages, dialect.Generation},
		{post, "/v1/%6dessages", dialect.Messages, dialect.Generation},
		{post, "/v1/responses", dialect.Responses, dialect.Generation},
		{post, "/v1/messages/count_tokens", dialect.Messages, dialect.Auxiliary},
		{post, "/v1/messages/batches", dialect.Messages, dialect.Auxiliary},
		{get, "/v1/messages", dialect.Messages, dialect.Auxiliary},
		{head, "/api/hello", dialect.Messages, dialect.Auxiliary},
		{post, "/api/hello", dialect.Messages, dialect.Refused},
		{get, "/v1/models", dialect.Chat, dialect.Auxiliary},
		{get, "/v1/chat/completions", dialect.Chat, dialect.Auxiliary},
		{"post", "/v1/chat/completions", dialect.Chat, dialect.Auxiliary},
		{post, "/v1/embeddings", dialect.Chat, dialect.Auxiliary},
		{post, "/v1/Messages", dialect.Chat, dialect.Auxiliary},
		{post, "/v1/threads/1/messages", dialect.Chat, dialect.Auxiliary},
		{post, "/v1/chat%2Fcompletions", dialect.Chat, dialect.Auxiliary},
		{post, "/v1/messages/x/v1/messages", dialect.Messages, dialect.Auxiliary},
		{get, "/v1/responses/resp_1", dialect.Responses, dialect.Auxiliary},
		{post, "/v1/responses/resp_1/cancel", dialect.Responses, dialect.Auxiliary},
		{post, "/responses", dialect.Chat, dialect.Refused},
		{post, "/proxy/v1/messages", dialect.Chat, dialect.Refused},
		{post, "/terminate", dialect.Chat, dialect.Refused},
		{post, "/update_weights", dialect.Chat, dialect.Refused},
		{post, "/v1/load_lora_adapter", dialect.Chat, dialect.Refused},
		{post, "/v1/%6coad_lora_adapter", dialect.Chat, dialect.Refused},
		{post, "/v1/SLEEP", dialect.Chat, dialect.Refused},
		{post, "/v1/x%2fterminate", dialect.Chat, dialect.Refused},
		{post, "/v1/../terminate", dialect.Chat, dialect.Refused},
		{post, "/v1/%2e%2e/terminate", dialect.Chat, dialect.Refused},
		{post, "/v1/..%2fx", dialect.Chat, dialect.Refused},
		{post, "/v1/..%5cx", dialect.Chat, dialect.Refused},
		{post, "/v1/./messages", dialect.Chat, dialect.Refused},
		{post, "/v1/%zz", dialect.Chat, dialect.Refused},
		{post, "/v1/a%00", dialect.Chat, dialect.Refused},
		{post, "/v1", dialect.Chat, dialect.Refused},
		{get, "/", dialect.Chat, dialect.Refused},
		{get, "", dialect.Chat, dialect.Refused},
	} {
		got := dialect.Classify(c.method, c.path)
		if got.API != c.api || got.Class != c.class {
			t.Errorf("%s %q: %s, class %d; want %s, class %d", c.method, c.path, got.API, got.Class, c.api, c.class)
		}
	}
}
