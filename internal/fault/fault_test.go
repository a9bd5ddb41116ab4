package fault_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"testing"
	"time"

	"roundhouse/internal/fault"
)

func TestNewKeepsEveryCause(t *testing.T) {
	if err := fault.New(fault.Internal, "plain"); err.Err != nil || err.Message != "plain" {
		t.Errorf("%+v", err)
	}
	if err := fault.New(fault.Internal, "read: %w", io.EOF); !errors.Is(err, io.EOF) || err.Message != "read: EOF" {
		t.Errorf("%+v", err)
	}
	err := fault.New(fault.Internal, "read: %w, close: %w", io.EOF, io.ErrClosedPipe)
	if !errors.Is(err, io.EOF) || !errors.Is(err, io.ErrClosedPipe) {
		t.Errorf("%+v", err)
	}
}

func TestOfFindsTheFaultInsideAnError(t *testing.T) {
	e := fault.New(fault.TooLarge, "big")
	if got := fault.Of(fmt.Errorf("read: %w", errors.Join(io.EOF, e))); got != e {
		t.Errorf("%+v", got)
	}
	if got := fault.Of(io.EOF); got.Reason != fault.Internal || !errors.Is(got, io.EOF) {
		t.Errorf("%+v", got)
	}
	if fault.Of(nil) != nil {
		t.Error("nil became a fault")
	}
	if got := fault.Reason("no such reason"); got.Code() != -32603 || got.Status() != 500 {
		t.Errorf("an unknown reason is %d, %d", got.Code(), got.Status())
	}
}

// R2: only what certainly was not sent may be tried again.
func TestSafeToRetry(t *testing.T) {
	for sent, want := range map[fault.Sent]bool{fault.SentNo: true, fault.SentMaybe: false, "": false} {
		err := fmt.Errorf("call: %w", &fault.Error{Reason: fault.Interrupted, Sent: sent})
		if fault.SafeToRetry(err) != want {
			t.Errorf("sent %q: %t", sent, !want)
		}
	}
	if fault.SafeToRetry(io.EOF) || fault.SafeToRetry(nil) {
		t.Error("an error that says nothing is retried")
	}
}

func TestBodiesCarryWhatTheFaultKnows(t *testing.T) {
	e := &fault.Error{
		Reason: fault.Interrupted, Message: "lost", Server: "files", Generation: 3, Sent: fault.SentMaybe,
		RetryAfter: 1500 * time.Millisecond, Data: map[string]any{"holders": []string{"a"}}, Err: io.EOF,
	}
	const data = `"generation":3,"holders":["a"],%s"reason":"interrupted","retryAfterMs":1500,"sent":"maybe","server":"files"`
	if got, want := string(e.RPC()), `{"code":-32010,"message":"lost","data":{`+fmt.Sprintf(data, "")+`}}`; got != want {
		t.Errorf("RPC\n%s, want\n%s", got, want)
	}
	if got, want := string(e.HTTP()), `{"error":{`+fmt.Sprintf(data, `"message":"lost",`)+`}}`; got != want {
		t.Errorf("HTTP\n%s, want\n%s", got, want)
	}
}

// Data that JSON cannot say costs the data, not the reason.
func TestBodiesKeepTheReasonWhateverDataHolds(t *testing.T) {
	e := &fault.Error{Reason: fault.TooLarge, Message: "big", Data: map[string]any{"bad": func() {}}}
	var rpc struct {
		Code int
		Data struct{ Reason fault.Reason }
	}
	if err := json.Unmarshal(e.RPC(), &rpc); err != nil || rpc.Code != -32014 || rpc.Data.Reason != fault.TooLarge {
		t.Errorf("%v %s", err, e.RPC())
	}
	var http struct {
		Error struct{ Reason fault.Reason }
	}
	if err := json.Unmarshal(e.HTTP(), &http); err != nil || http.Error.Reason != fault.TooLarge {
		t.Errorf("%v %s", err, e.HTTP())
	}
}
