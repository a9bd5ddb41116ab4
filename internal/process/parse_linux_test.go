package process

import (
	"bytes"
	"os"
	"reflect"
	"strings"
	"testing"
	"time"
)

func FuzzParseStat(f *testing.F) {
	f.Add("7 (a) b (c)) S 1 2 3 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 99 1 2 3")
	f.Add(") (")
	f.Add("1 (")
	f.Fuzz(func(t *testing.T, text string) {
		e, err := parseStat([]byte(text))
		if err == nil && (e.pid < 1 || !strings.Contains(text, "("+e.name+")")) {
			t.Errorf("entry %+v of %q", e, text)
		}
	})
}

// P3: the name of a process may hold anything.
func TestParseStat(t *testing.T) {
	e, err := parseStat([]byte("7 (a) Z (c)) S 1 2 3 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 99 1 2 3"))
	if want := (entry{
		pid: 7, parent: 1, group: 2, session: 3, start: 99, name: "a) Z (c)",
		cpu: 110 * time.Millisecond, rss: 2 * int64(os.Getpagesize()),
	}); err != nil || e != want {
		t.Errorf("entry %+v, %v", e, err)
	}
	dead := "7 (a) Z 1 2 3 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 99 1 2 3"
	if e, err := parseStat([]byte(dead)); err != nil || !e.zombie {
		t.Errorf("zombie: %+v, %v", e, err)
	}
	if e, err := parseStat([]byte(strings.Replace(dead, " 20 0 1 ", " 20 0 2 ", 1))); err != nil || e.zombie {
		t.Errorf("a zombie thread that has others: %+v, %v", e, err)
	}
}

func FuzzLaunch(f *testing.F) {
	f.Add("sh", "-c", "A=1", "/tmp")
	f.Add("", "", "", "")
	f.Fuzz(func(t *testing.T, a, b, env, dir string) {
		if strings.Contains(a+b+env+dir, "\x00") {
			t.Skip()
		}
		l := launch{path: a, argv: []string{a, b}, env: []string{env, "B=2"}, dir: dir, waits: waits{1, -1, 3}}
		encoded := encodeLaunch(l)
		got, err := readLaunch(bytes.NewReader(encoded))
		if err != nil || !reflect.DeepEqual(got, l) {
			t.Errorf("got %+v, %v; want %+v", got, err, l)
		}
		if _, err := readLaunch(bytes.NewReader(encoded[:len(encoded)-1])); err == nil {
			t.Error("half an order was read")
		}
		_, _ = readLaunch(strings.NewReader(a + b + env + dir)) // It must not panic.
	})
}

// What a process has used is in the table: we have memory, and time once we work.
func TestUseOfAProcess(t *testing.T) {
	for deadline := time.Now().Add(10 * time.Second); ; {
		e, err := readEntry(os.Getpid())
		if err != nil || e.rss < 1<<20 {
			t.Fatalf("entry %+v, %v", e, err)
		}
		if e.cpu > 0 {
			return
		}
		if time.Now().After(deadline) {
			t.Fatal("it works and takes no time")
		}
	}
}
