package session

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ncruces/go-sqlite3"

	"roundhouse/internal/config"
	"roundhouse/internal/fault"
	"roundhouse/internal/wire"
)

// hold has everything that is written to the store wait, as behind a disk that is slow or
// hangs, until the function that it returns is called: a transaction of somebody else is
// under way.
func (w *kept) hold() (free func()) {
	w.Helper()
	synctest.Wait() // what is being written has its time
	db, err := sqlite3.Open("file:" + w.path)
	if err == nil {
		err = db.Exec("BEGIN IMMEDIATE")
	}
	if err != nil {
		w.Fatal(err)
	}
	return func() {
		if err := errors.Join(db.Exec("ROLLBACK"), db.Close()); err != nil {
			w.Error(err)
		}
	}
}

// N6: an answer waits for a store that hangs as long as it may, and no longer; the session,
// and the instance that is lent to it, are there, and it ends.
func TestAnswersDoNotWaitForAStoreThatHangs(t *testing.T) {
	inKeptWorld(t, usual, []*config.Server{exclusive("browser", 1)}, func(w *kept) {
		free := w.hold()
		begun := time.Now()
		c := w.client("browser", "run-1")
		if took := time.Since(begun); took != keepWait {
			w.Errorf("initialize took %s", took)
		}
		begun = time.Now()
		w.works(c.do(1, wire.ToolsCall, echo))
		if took := time.Since(begun); took != keepWait {
			w.Errorf("the first call took %s", took)
		}
		begun = time.Now()
		w.works(c.do(2, wire.ToolsCall, echo))
		if took := time.Since(begun); took != 0 {
			w.Errorf("the second call took %s", took)
		}
		begun = time.Now()
		if err := w.m.End(w.Context(), "local", false, "run-1", false); err != nil {
			w.Error(err)
		}
		if took := time.Since(begun); took != keepWait {
			w.Errorf("the end took %s", took)
		}
		free()
	})
}

// N1, N6: who begins a session by the API waits for a store that is slow; of one that hangs
// the error says that the session has begun.
func TestASessionIsCreatedAlsoIfTheStoreIsSlow(t *testing.T) {
	inKeptWorld(t, usual, nil, func(w *kept) {
		free := w.hold()
		time.AfterFunc(2*keepWait, free)
		if _, err := w.m.Create(w.Context(), Spec{Principal: "local", ID: "run-1"}); err != nil {
			w.Error(err)
		}
		free = w.hold()
		begun := time.Now()
		_, err := w.m.Create(w.Context(), Spec{Principal: "local", ID: "run-2"})
		if took := time.Since(begun); !fault.Is(err, fault.Internal) || !strings.Contains(err.Error(), `"run-2" has begun`) || took <= 2*keepWait || took > storeTimeout {
			w.Errorf("after %s: %v", took, err)
		}
		free()
		time.Sleep(storeTimeout)
		if row, err := w.store.Session(w.Context(), "local", "run-2"); err != nil || row.State != string(Active) {
			w.Errorf("%+v, %v", row, err)
		}
	})
}

// N6, V4: a filter that somebody was told of is stored; of one that is not yet, the error says
// so, also when it is asked for again.
func TestAFilterIsStoredBeforeItIsToldOf(t *testing.T) {
	inKeptWorld(t, usual, nil, func(w *kept) {
		c := w.client("", "run-1")
		free := w.hold()
		time.AfterFunc(2*keepWait, free)
		hidden := &Tools{Exclude: []string{"x__*"}}
		if err := w.m.SetTools(w.Context(), "local", "run-1", hidden); err != nil {
			w.Error(err)
		}
		w.kill()
		w.begin(w.T)
		if info, err := w.m.Get("local", false, c.Session().ID()); err != nil || info.Tools == nil {
			w.Errorf("after a restart: %+v, %v", info, err)
		}
		free = w.hold()
		for range 2 {
			err := w.m.SetTools(w.Context(), "local", "run-1", &Tools{})
			if !fault.Is(err, fault.Internal) || !strings.Contains(err.Error(), "has the filter from now on") {
				w.Error(err)
			}
		}
		free()
	})
}

// I2, N6: an instance can be given back also while the first call waits until the store
// knows that it is lent: then the session does not have it any more.
func TestALeaseThatIsNotStoredYetCanBeReleased(t *testing.T) {
	inKeptWorld(t, usual, []*config.Server{exclusive("browser", 2)}, func(w *kept) {
		c := w.client("browser", "run-1")
		free := w.hold()
		x := newTray()
		go c.Session().Do(c, frame(2, wire.ToolsCall, echo), x)
		time.Sleep(keepWait / 2)
		before := w.leases()
		if len(before) != 1 {
			w.Fatalf("the leases are %v", before)
		}
		if err := w.m.ReleaseLease("local", false, "run-1", "browser"); err != nil {
			w.Fatal(err)
		}
		for _, l := range w.leases() { // of a call that came too late for it
			if l == before[0] {
				w.Errorf("%s was given back, and the session has it still", l)
			}
		}
		free()
		<-x.done
	})
}

// G1, N6: a store that hangs is seen in the counts, and keeps sessions from their end as long
// as it may, and no longer.
func TestAStoreThatHangsDoesNotKeepSessionsFromTheirEnd(t *testing.T) {
	inKeptWorld(t, usual, nil, func(w *kept) {
		w.client("", "run-1")
		free := w.hold()
		w.m.Resave("local", "run-1")
		time.Sleep(time.Second)
		if st := w.m.Stats(); st.Unsaved != 1 {
			w.Errorf("it says that %d sessions wait to be stored", st.Unsaved)
		}
		begun := time.Now()
		w.m.Drain()
		w.m.Shutdown(context.Background())
		if took := time.Since(begun); took > storeTimeout {
			w.Errorf("it took %s", took)
		}
		free()
	})
}

// A journal keeps what is logged.
type journal struct {
	mu   sync.Mutex
	text strings.Builder
}

// Write implements io.Writer.
func (j *journal) Write(b []byte) (int, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.text.Write(b)
}

// String returns it.
func (j *journal) String() string {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.text.String()
}

// N6: that sessions cannot be stored is said when it begins, now and then while it lasts,
// and when it is over.
func TestAStoreThatFailsIsToldOfNowAndThen(t *testing.T) {
	inKeptWorld(t, usual, nil, func(w *kept) {
		var log journal
		w.m.cfg.Log = slog.New(slog.NewTextHandler(&log, nil))
		told := func(what string) int {
			synctest.Wait()
			return strings.Count(log.String(), what)
		}
		free := w.hold()
		w.client("", "run-1")
		time.Sleep(100 * time.Second)
		if n := told("could not be stored"); n != 2 || told("stored again") != 0 {
			w.Errorf("it is told %d times:\n%s", n, log.String())
		}
		free()
		time.Sleep(time.Minute)
		if n := told("could not be stored"); n != 2 || told("sessions are stored again") != 1 {
			w.Errorf("at the end it is told %d times:\n%s", n, log.String())
		}
	})
}
