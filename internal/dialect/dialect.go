// Package dialect knows the three model APIs that roundhouse relays: OpenAI chat
// completions, Anthropic messages and OpenAI responses. It says what a request is,
// what to send upstream, where an answer ends, what it was worth, and how an API
// reports an error. It does no I/O and starts nothing (C13).
//
// A generation goes through it like this:
//
//	endpoint := dialect.Classify(r.Method, r.URL.EscapedPath())
//	request, err := dialect.ParseRequest(endpoint.API, body)
//	if errors.Is(err, dialect.ErrUnreadable) {
//		call = dialect.Opaque(endpoint.API, body) // the upstream decides what to make of it
//	} else if err != nil {
//		// 400: dialect.Failure{Status: 400, …}.Body(endpoint.API)
//	}
//	call := request.Forward(profile, tokens)
//	// send call.Body
//
// A streamed answer, that is one whose Content-Type is text/event-stream, or which has none
// where a stream was asked for:
//
//	s := call.Stream(dialect.Options{})
//	for each piece that was read {
//		out, err := s.Feed(piece) // write out to the client at once
//		if err != nil || s.Done() {
//			break
//		}
//	}
//	result := s.End(cause) // cause is nil at a clean end
//
// Any other 2xx answer:
//
//	result := call.Whole(body, dialect.Options{})
//
// Then the turn is stored with result.Outcome, result.Response and result.Tokens. If
// that went well and result.Release is set, result.Tail is written; if not, a native
// error takes its place: Failure.Body if no byte of the answer has left,
// Stream.Failure otherwise. In the end the connection is aborted if result.Abort is
// set, or if a native error was written into a stream (A.10).
//
// Answers with other statuses belong to the upstream: they are passed on byte for
// byte and never come here (A.7).
package dialect

import (
	"net/http"
	"net/url"
	"strings"
)

// API is a model API.
type API uint8

const (
	// Chat is OpenAI's chat completions.
	Chat API = iota + 1
	// Messages is Anthropic's messages.
	Messages
	// Responses is OpenAI's responses.
	Responses
)

// String returns the API's name as the store and logs have it.
func (a API) String() string {
	switch a {
	case Chat:
		return "chat"
	case Messages:
		return "messages"
	case Responses:
		return "responses"
	}
	return "unknown"
}

// Class is what roundhouse does with a request.
type Class uint8

const (
	// Refused requests are never forwarded: they are none of a model API's, or
	// manage an engine.
	Refused Class = iota
	// Auxiliary requests are forwarded as they are, less what names a session.
	Auxiliary
	// Generation is a request for an answer of a model, which is a turn.
	Generation
)

// Endpoint is what a request is about.
type Endpoint struct {
	// API says in which form errors are told.
	API   API
	Class Class
}

// Classify says what a request is, by its method and path alone (C1, A.2). The path
// is as it was sent, still escaped; what stands before /v1, a session's path or a
// configured prefix, is cut off by the caller. A missing slash in front, double
// slashes and one behind do not matter, letter case does.
func Classify(method, escapedPath string) Endpoint {
	var segments []string
	for segment := range strings.SplitSeq(escapedPath, "/") {
		if segment == "" {
			continue
		}
		text, err := url.PathUnescape(segment)
		if err != nil || climbs(text) {
			return Endpoint{API: Chat}
		}
		segments = append(segments, text)
	}
	endpoint := Endpoint{API: apiOf(segments)}
	switch {
	case len(segments) == 2 && segments[0] == "api" && segments[1] == "hello":
		// Anthropic's clients ask this to find out whether they are online.
		if method == http.MethodHead || method == http.MethodGet {
			endpoint.Class = Auxiliary
		}
	case len(segments) < 2 || segments[0] != "v1" || manages(segments[1:]):
	case method == http.MethodPost && generates(segments[1:]):
		endpoint.Class = Generation
	default:
		endpoint.Class = Auxiliary
	}
	return endpoint
}

func apiOf(segments []string) API {
	if len(segments) == 2 && segments[0] == "api" && segments[1] == "hello" {
		return Messages
	}
	if len(segments) >= 2 && segments[0] == "v1" {
		switch segments[1] {
		case "messages":
			return Messages
		case "responses":
			return Responses
		}
	}
	return Chat
}

func generates(tail []string) bool {
	switch len(tail) {
	case 1:
		return tail[0] == "messages" || tail[0] == "responses"
	case 2:
		return tail[0] == "chat" && tail[1] == "completions"
	}
	return false
}

// words returns what a segment is made of for a server that takes an escaped slash,
// or a backslash, for a separator.
func words(segment string) []string {
	return strings.FieldsFunc(segment, func(r rune) bool { return r == '/' || r == '\\' })
}

// climbs reports whether some server might take the segment for a way out of where
// it stands.
func climbs(segment string) bool {
	for _, word := range words(segment) {
		if word == "." || word == ".." {
			return true
		}
	}
	return strings.ContainsRune(segment, 0)
}

// management has the names under which engines are managed, at the top or below /v1.
// Agents have no business there (C1).
var management = map[string]bool{
	"terminate": true, "sleep": true, "wakeup": true, "wake_up": true, "is_sleeping": true, "pause": true, "resume": true,
	"update_weights": true, "update_weights_from_disk": true, "update_weights_from_tensor": true, "update_weights_from_distributed": true,
	"init_weights_update_group": true, "release_memory_occupation": true, "resume_memory_occupation": true,
	"load_lora_adapter": true, "unload_lora_adapter": true, "reset_prefix_cache": true, "flush_cache": true,
	"collective_rpc": true, "abort_request": true, "abort_requests": true, "shutdown": true, "distserve": true,
	"start_profile": true, "stop_profile": true, "slots": true, "lora-adapters": true,
}

func manages(segments []string) bool {
	for _, segment := range segments {
		for _, word := range words(segment) {
			if management[strings.ToLower(word)] {
				return true
			}
		}
	}
	return false
}
