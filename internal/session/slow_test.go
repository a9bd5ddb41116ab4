package session

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ncruces/go-sqlite3"

	"roundhouse/internal/config"
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
