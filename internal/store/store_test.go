package store

import (
	"bufio"
	"bytes"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// quick is a directory in memory, where there is such a thing: for tests that sync much
// and do not ask what the disk has, or ask our own disk.
func quick(t testing.TB) string {
	t.Helper()
	if _, err := os.Stat("/dev/shm"); err != nil {
		return t.TempDir()
	}
	dir, err := os.MkdirTemp("/dev/shm", "store")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return dir
}

const roleVariable = "ROUNDHOUSE_STORE_TEST_PATH"

// TestMain is also a process that commits calls until it is killed.
func TestMain(m *testing.M) {
	if path := os.Getenv(roleVariable); path != "" {
		commitForEver(path)
		return
	}
	os.Exit(m.Run())
}

func commitForEver(path string) {
	s, err := Open(context.Background(), Config{Path: path})
	if err != nil {
		panic(err)
	}
	var mu sync.Mutex
	for w := range 4 {
		go func() {
			for i := 0; ; i++ {
				id := fmt.Sprintf("%d-%d", w, i)
				if s.Begin(context.Background(), call(id)) != nil || s.Commit(context.Background(), key, id, result(id)) != nil {
					panic("a write failed")
				}
				mu.Lock()
				fmt.Println(id)
				mu.Unlock()
			}
		}()
	}
	select {}
}

// G1, C6: kill -9 loses no committed turn; and while the process lives nobody else
// gets at its database.
func TestAKilledProcessLosesNoCommittedTurn(t *testing.T) {
	path := filepath.Join(quick(t), "test.db")
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	child := exec.CommandContext(t.Context(), exe)
	child.Env = append(os.Environ(), roleVariable+"="+path)
	child.Stderr = os.Stderr
	out, err := child.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	var committed []string
	lines := bufio.NewScanner(out)
	for lines.Scan() {
		committed = append(committed, lines.Text())
		if len(committed) == 10 {
			_, err := Open(t.Context(), Config{Path: path})
			wantErr(t, err, ErrInUse)
		}
		if len(committed) == 100 {
			if err := child.Process.Kill(); err != nil {
				t.Fatal(err)
			}
		}
	}
	_ = child.Wait() // it was killed
	s := openAt(t, path, hooks{})
	for _, id := range committed {
		if r := read(t, s, id).Result; r == nil || r.Outcome != Complete {
			t.Errorf("call %q, of %d that were committed, became %+v", id, len(committed), r)
		}
	}
}

// C6: what was committed survives a loss of power, whatever part of the rest does; and
// what is found then is whole.
func TestCommittedTurnsSurviveALossOfPower(t *testing.T) {
	d := newDisk(t)
	s := openAt(t, filepath.Join(quick(t), "test.db"), hooks{vfs: t.Name()})
	var mu sync.Mutex
	committed := map[string]bool{}
	var wg sync.WaitGroup
	for w := range 4 {
		wg.Go(func() {
			for i := range 40 {
				id := fmt.Sprintf("%d-%d", w, i)
				err := s.Begin(context.Background(), call(id))
				if err == nil {
					err = s.Commit(context.Background(), key, id, result(strings.Repeat(id, 500)))
				}
				if err != nil {
					t.Error(err)
					return
				}
				mu.Lock()
				committed[id] = true
				mu.Unlock()
			}
		})
	}
	defer wg.Wait()
	for i := range 9 {
		time.Sleep(5 * time.Millisecond) // anywhere in their work
		mu.Lock()
		before := maps.Clone(committed)
		mu.Unlock()
		image := d.powerLoss(t, []func() bool{never, chance, always}[i%3])
		after := openAt(t, filepath.Join(image, "test.db"), hooks{pragmas: noSync})
		for v, err := range after.Calls(t.Context(), CallFilter{Outcomes: []Outcome{Complete}}) {
			if err != nil {
				t.Fatal(err)
			}
			answer, err := v.Result.Answer().Bytes()
			if err != nil || string(answer) != strings.Repeat(v.ID, 500) {
				t.Fatalf("call %q has the answer %.20q, %v", v.ID, answer, err)
			}
			delete(before, v.ID)
		}
		if len(before) > 0 {
			t.Fatalf("lost: %v", before)
		}
		var verdict string
		if err := after.read.QueryRow("PRAGMA integrity_check").Scan(&verdict); err != nil || verdict != "ok" {
			t.Fatalf("the database is %s, %v", verdict, err)
		}
	}
}

// J5: when a sync fails, a write is reported as not stored only if no loss of power
// can bring it back.
func TestAFailedSyncIsNeverReportedAsNotStoredYetStored(t *testing.T) {
	for _, bad := range []int{1, 2, 3, 4, -1} {
		t.Run(fmt.Sprint(bad), func(t *testing.T) {
			d := newDisk(t)
			s := openAt(t, filepath.Join(quick(t), "test.db"), hooks{vfs: t.Name()})
			begin(t, s, call("c"))
			d.set(bad, 0)
			err := s.Commit(t.Context(), key, "c", result("answer"))
			if bad < 0 {
				wantErr(t, err, ErrUnknown)
			}
			for _, survives := range []func() bool{never, always} {
				after := openAt(t, filepath.Join(d.powerLoss(t, survives), "test.db"), hooks{pragmas: noSync})
				stored := read(t, after, "c").Result.Outcome == Complete // it was open: else lost
				if err == nil && !stored || err != nil && !errors.Is(err, ErrUnknown) && stored {
					t.Errorf("the commit returned %v, and after a loss of power stored is %v", err, stored)
				}
			}
			d.set(0, 0)
			commit(t, s, "c", result("answer")) // the store goes on by itself
			if r := read(t, s, "c").Result; r == nil || r.Outcome != Complete {
				t.Errorf("it became %+v", r)
			}
		})
	}
}

// A full disk fails what does not fit, leaves nothing half stored, and takes what
// fits; with room again the store goes on by itself.
func TestAFullDisk(t *testing.T) {
	d := newDisk(t)
	s := openAt(t, filepath.Join(quick(t), "test.db"), hooks{vfs: t.Name()})
	begin(t, s, call("large"))
	begin(t, s, call("small"))
	large := result("answer")
	large.Raw = Pack(noise(1 << 20))
	d.set(0, d.size()+200<<10)
	var wg sync.WaitGroup
	wg.Go(func() {
		err := s.Commit(t.Context(), key, "large", large)
		if !errors.Is(err, ErrFull) || errors.Is(err, ErrUnknown) {
			t.Errorf("the large one: %v", err)
		}
	})
	wg.Go(func() {
		if err := s.Commit(t.Context(), key, "small", result("answer")); err != nil {
			t.Errorf("the small one: %v", err)
		}
	})
	wg.Wait()
	if r := read(t, s, "large").Result; r != nil {
		t.Errorf("the large one is stored as %+v", r)
	}
	d.set(0, 0)
	if err := s.Commit(t.Context(), key, "large", large); err != nil {
		t.Error(err)
	}
}

// A database that may not grow is as good as full, until something is deleted.
func TestAFullDatabase(t *testing.T) {
	s := openAt(t, filepath.Join(t.TempDir(), "test.db"), hooks{pragmas: []string{"max_page_count(200)", "synchronous(off)"}})
	other := call("c")
	other.Session.ID = "other"
	other.Request = Pack(noise(200 << 10))
	begin(t, s, other)
	var err error
	for i := 0; err == nil; i++ {
		v := call(fmt.Sprint(i))
		v.Request = Pack(noise(50 << 10))
		err = s.Begin(t.Context(), v)
	}
	wantErr(t, err, ErrFull)
	n := len(all(t, s, CallFilter{}))
	if err := s.DeleteSession(t.Context(), other.Session); err != nil {
		t.Fatal(err)
	}
	v := call("again")
	v.Request = Pack(noise(50 << 10))
	begin(t, s, v)
	wantEqual(t, len(all(t, s, CallFilter{})), n)
}

// gate holds up transactions after the first ones.
type gate struct {
	transactions atomic.Int64
	reached      chan struct{} // one value for each transaction that waits
	pass         chan struct{}
}

func newGate() *gate { return &gate{reached: make(chan struct{}), pass: make(chan struct{})} }

func (g *gate) hook(bool) error {
	g.transactions.Add(1)
	g.reached <- struct{}{}
	<-g.pass
	return nil
}

func (g *gate) let(n int) {
	for range n {
		<-g.reached
		g.pass <- struct{}{}
	}
}

func gated(t *testing.T) (*Store, *gate) {
	g := newGate()
	var wg sync.WaitGroup
	wg.Go(func() { g.let(1) }) // of Open
	s := openAt(t, filepath.Join(t.TempDir(), "test.db"), hooks{before: g.hook, pragmas: noSync})
	wg.Wait()
	return s, g
}

// C6: what waits while a transaction is under way goes into the next one together.
func TestWaitingWritesShareATransaction(t *testing.T) {
	s, g := gated(t)
	var wg sync.WaitGroup
	first := g.transactions.Load()
	wg.Go(func() { begin(t, s, call("first")) })
	<-g.reached
	for i := range 100 {
		wg.Go(func() { begin(t, s, call(fmt.Sprint(i))) })
	}
	waitFor(t, func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return len(s.queue) == 100
	})
	g.pass <- struct{}{}
	g.let(1)
	wg.Wait()
	if n := g.transactions.Load() - first; n != 2 {
		t.Errorf("101 writes took %d transactions", n)
	}
}

func waitFor(t *testing.T, done func() bool) {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); !done(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("it does not happen")
		}
	}
}

// A caller that gives up learns what is known: its write is not stored if the writer
// had not begun, and unknown if it had.
func TestACallerThatGivesUpLearnsWhatIsKnown(t *testing.T) {
	s, g := gated(t)
	errGiveUp := errors.New("enough")
	var wg sync.WaitGroup
	give := func(id string) (cancel func(), result chan error) {
		ctx, stop := context.WithCancelCause(t.Context())
		result = make(chan error, 1)
		wg.Go(func() { result <- s.Begin(ctx, call(id)) })
		return func() { stop(errGiveUp) }, result
	}
	cancelTaken, taken := give("taken")
	<-g.reached
	cancelWaiting, waiting := give("waiting")
	waitFor(t, func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return len(s.queue) == 1
	})
	cancelWaiting()
	err := <-waiting
	if !errors.Is(err, errGiveUp) || errors.Is(err, ErrUnknown) {
		t.Errorf("the one that waited: %v", err)
	}
	cancelTaken()
	if err := <-taken; !errors.Is(err, errGiveUp) || !errors.Is(err, ErrUnknown) {
		t.Errorf("the one that was under way: %v", err)
	}
	g.pass <- struct{}{}
	wg.Go(func() { g.let(1) })
	begin(t, s, call("next"))
	wg.Wait()
	wantEqual(t, all(t, s, CallFilter{}), []string{"taken", "next"})
	ctx, stop := context.WithCancel(t.Context())
	stop()
	wantErr(t, s.Begin(ctx, call("dead")), context.Canceled)
}

// Close finishes what waits and refuses what comes.
func TestCloseFinishesWhatWaits(t *testing.T) {
	s, g := gated(t)
	var wg sync.WaitGroup
	wg.Go(func() { begin(t, s, call("first")) })
	<-g.reached
	wg.Go(func() { begin(t, s, call("waiting")) })
	waitFor(t, func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return len(s.queue) == 1
	})
	for range 2 {
		wg.Go(func() {
			if err := s.Close(); err != nil {
				t.Error(err)
			}
		})
	}
	waitFor(t, func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.closed
	})
	wantErr(t, s.Begin(t.Context(), call("late")), ErrClosed)
	g.pass <- struct{}{}
	g.let(1)
	wg.Wait()
	_, err := s.Call(t.Context(), key, "first")
	wantErr(t, err, ErrClosed)
	s = openAt(t, s.path, hooks{})
	wantEqual(t, all(t, s, CallFilter{}), []string{"first", "waiting"})
}

// A read that is under way holds up no write, nor the other way round.
func TestReadsAndWritesDoNotWaitForEachOther(t *testing.T) {
	s, g := gated(t)
	var wg sync.WaitGroup
	wg.Go(func() { g.let(1) })
	begin(t, s, call("c0"))
	wg.Wait()
	for v, err := range s.Calls(t.Context(), CallFilter{}) {
		if err != nil {
			t.Fatal(err)
		}
		if v.ID == "c0" { // in the middle of a read
			wg.Go(func() { g.let(1) })
			begin(t, s, call("c1"))
			wg.Wait()
		}
	}
	wg.Go(func() { begin(t, s, call("c2")) })
	<-g.reached // in the middle of a write
	wantEqual(t, all(t, s, CallFilter{}), []string{"c0", "c1"})
	g.pass <- struct{}{}
	wg.Wait()
}

// C15: a newer schema is refused and not touched; neither is what is none of ours.
func TestWhatIsNotOursIsNotTouched(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "test.db")
	make := func(statement string) {
		t.Helper()
		db, err := sql.Open("sqlite3", path)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := db.Exec(statement); err != nil {
			t.Fatal(err)
		}
		if err := db.Close(); err != nil {
			t.Fatal(err)
		}
	}
	refused := func(want error) {
		t.Helper()
		before := contents(t, dir)
		_, err := Open(t.Context(), Config{Path: path})
		wantErr(t, err, want)
		after := contents(t, dir)
		delete(after, "test.db.lock")
		delete(before, "test.db.lock")
		if !maps.Equal(after, before) {
			t.Errorf("there is now %v, before there was %v", slices.Sorted(maps.Keys(after)), slices.Sorted(maps.Keys(before)))
		}
	}
	s := openAt(t, path, hooks{})
	begin(t, s, call("c"))
	s.Close()
	make("PRAGMA user_version = 1000")
	refused(ErrNewer)

	// The newer one was killed, and left a log.
	make(fmt.Sprintf("PRAGMA user_version = %d", len(migrationFiles())))
	s = openAt(t, path, hooks{})
	begin(t, s, call("d"))
	image := contents(t, dir)
	s.Close()
	for name, b := range image {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(b), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	db, err := sql.Open("sqlite3", path)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := db.Exec("PRAGMA user_version = 1001"); err != nil {
		t.Fatal(err)
	}
	image = contents(t, dir)
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	delete(image, "test.db-shm") // which is rebuilt
	for name, b := range image {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(b), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if len(image["test.db-wal"]) == 0 {
		t.Fatal("there is no log")
	}
	before := contents(t, dir)
	_, err = Open(t.Context(), Config{Path: path})
	wantErr(t, err, ErrNewer)
	after := contents(t, dir)
	for _, name := range []string{"test.db", "test.db-wal"} {
		if after[name] != before[name] {
			t.Errorf("%s was touched", name)
		}
	}

	for name := range contents(t, dir) {
		if err := os.Remove(filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	make("CREATE TABLE others (x)")
	refused(ErrForeign)
	if err := os.WriteFile(path, bytes.Repeat([]byte("a letter "), 1000), 0o600); err != nil {
		t.Fatal(err)
	}
	refused(ErrForeign)
}

func contents(t *testing.T, dir string) map[string]string {
	t.Helper()
	out := map[string]string{}
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		b, err := os.ReadFile(filepath.Join(dir, e.Name()))
		if err != nil {
			t.Fatal(err)
		}
		out[e.Name()] = string(b)
	}
	return out
}

// A second Open is refused, however the file is called.
func TestADatabaseHasOneUser(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "test.db")
	s := openAt(t, path, hooks{})
	link := filepath.Join(dir, "link.db")
	if err := os.Symlink(path, link); err != nil {
		t.Skip(err)
	}
	for _, name := range []string{path, link} {
		_, err := Open(t.Context(), Config{Path: name})
		wantErr(t, err, ErrInUse)
	}
	s.Close()
	openAt(t, link, hooks{})
}

// The files that hold traces are for their owner alone, also after the writer had to
// begin anew.
func TestFilesAreForTheirOwnerAlone(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("rights are inherited from the directory")
	}
	dir := t.TempDir()
	private := func() {
		t.Helper()
		for name := range contents(t, dir) {
			info, err := os.Stat(filepath.Join(dir, name))
			if err != nil {
				t.Fatal(err)
			}
			if info.Mode() != fs.FileMode(0o600) {
				t.Errorf("%s has the mode %v", name, info.Mode())
			}
		}
	}
	s := openAt(t, filepath.Join(dir, "test.db"), hooks{})
	begin(t, s, call("c"))
	private()
	s.Close()
	if err := os.Chmod(s.path, 0o644); err != nil {
		t.Fatal(err)
	}
	s = openAt(t, s.path, hooks{})
	if err := s.submit(t.Context(), "begin anew", 0, func(*conn) error { s.disconnect(); return errFault }); err == nil {
		t.Fatal("the connection is not gone")
	}
	begin(t, s, call("d"))
	private()
}

// C14: credentials are not stored, whatever the caller hands over.
func TestCredentialsAreNotStored(t *testing.T) {
	dir := t.TempDir()
	s := openAt(t, filepath.Join(dir, "test.db"), hooks{})
	v := call("c")
	r := result("answer")
	r.Header = v.Header.Clone()
	for _, name := range []string{"Authorization", "Proxy-Authorization", "Cookie", "Set-Cookie", "X-Api-Key", "Api-Key", "X-Goog-Api-Key", "X-Auth-Token", "X-Roundhouse-Token"} {
		v.Header.Set(name, "sesame")
		r.Header.Set(name, "sesame")
	}
	begin(t, s, v)
	commit(t, s, "c", r)
	for name, b := range contents(t, dir) {
		if strings.Contains(b, "sesame") {
			t.Errorf("%s has it", name)
		}
	}
	wantEqual(t, read(t, s, "c").Header, call("c").Header)
}
