package loop

import (
	"context"
	"errors"
	"sync"
	"testing"

	"roundhouse/internal/config"
	"roundhouse/internal/pool"
	"roundhouse/internal/session"
)

// X2, B.4: the states of tool sessions. Nothing is opened or called after their end, which
// comes once, whoever wants it, and ends the session that is theirs.
func TestToolSessionsEndOnce(t *testing.T) {
	shared := pool.New(pool.Config{Dial: func(context.Context, *config.Server) (pool.Link, error) {
		return nil, errors.New("nothing is dialled here")
	}})
	sessions := session.NewManager(session.Config{Pool: shared, Settings: session.Settings{
		Servers: []*config.Server{{Name: "a", Transport: config.Stdio, Command: "a", Sharing: config.Session}}, Limits: config.Defaults().Sessions,
	}})
	defer shared.Drain(t.Context(), true)
	defer sessions.Shutdown(t.Context())
	engine := New(Config{Sessions: sessions, Limits: config.Defaults().LLM.Responses})
	server := &Server{Label: "a", Invitation: session.Invitation{Server: "a"}}
	known := func(id string) bool {
		_, err := sessions.Get("local", false, id)
		return err == nil
	}

	newToolSessions(engine, &Task{Principal: "local", Run: "unused"}).Close() // of what was never opened
	if known("unused") {
		t.Error("a session was begun for nothing")
	}

	for _, named := range []string{"", "mine"} {
		s := newToolSessions(engine, &Task{Principal: "local", Session: named, Run: "run"})
		ts, err := s.Open(server)
		if err != nil {
			t.Fatal(err)
		}
		if ts.state != open || !known(s.id) {
			t.Errorf("it is %s, and its session is known: %v", ts.state, known(s.id))
		}
		if _, err := ts.Call(t.Context(), "x", []byte("{}"), 0, nil); err == nil || ts.state != used {
			t.Errorf("a call: %v; it is %s", err, ts.state)
		}
		var wg sync.WaitGroup
		for range 3 {
			wg.Go(s.Close)
		}
		wg.Wait()
		if ts.state != closed || known(s.id) != (named != "") {
			t.Errorf("after the end it is %s, and the session %q is known: %v", ts.state, s.id, known(s.id))
		}
		if _, err := s.Open(server); err == nil {
			t.Error("something was opened after the end")
		}
		if _, err := ts.Tools(t.Context()); err == nil {
			t.Error("tools were listed after the end")
		}
		if _, err := ts.Call(t.Context(), "x", []byte("{}"), 0, nil); err == nil {
			t.Error("a tool was called after the end")
		}
	}
	if _, err := newToolSessions(engine, &Task{Principal: "local", Session: "mine"}).Open(&Server{Label: "b", Invitation: session.Invitation{Server: "b"}}); err == nil {
		t.Error("a server that is not there was opened")
	}
}
